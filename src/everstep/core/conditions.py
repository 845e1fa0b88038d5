"""Public conditions of a Remediation, computed from its status: what clients read instead of ``stage``."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.remediation_status import Outcome, Stage, Status, StepName


@dataclass(frozen=True, slots=True)
class Condition:
    """One Kubernetes condition; ``status`` is ``True``, ``False`` or ``Unknown``, ``since`` Unix seconds."""

    type: str
    status: str
    reason: str
    message: str
    since: float


# Condition type -> the step that makes it True.
_BY_STEP = {
    "Isolated": StepName.ISOLATED,
    "JobsRequeued": StepName.REQUEUED,
    "Vacated": StepName.DRAINED,
    "Replaced": StepName.REPLACED,
    "JobsResumed": StepName.RESUMED,
}


def conditions(status: Status) -> tuple[Condition, ...]:
    """Admitted, the milestones, and Resolved; a milestone that the outcome made needless is False with that reason."""
    found = [_admitted(status)]
    for type_, name in _BY_STEP.items():
        step = status.step(name)
        if step:
            found.append(Condition(type_, "True", "Done", step.reason, step.at))
        else:
            why = status.outcome.value if status.outcome else _waiting(status)
            found.append(Condition(type_, "False", why, status.reason, status.since))
    found.append(_resolved(status))
    return tuple(found)


def _waiting(status: Status) -> str:
    if status.stage is Stage.REPLACING and status.replacement is None:
        return "NoSpare"
    return status.stage.value


def _admitted(status: Status) -> Condition:
    if status.admitted_at is not None:
        return Condition("Admitted", "True", "Admitted", "the fleet's budget allows it", status.admitted_at)
    return Condition(
        "Admitted", "False", status.outcome.value if status.outcome else "Waiting", status.reason, status.since
    )


def _resolved(status: Status) -> Condition:
    if not status.resolved or status.outcome is None:
        return Condition("Resolved", "False", _waiting(status), status.reason, status.since)
    good = status.outcome is not Outcome.ESCALATED
    return Condition("Resolved", "True" if good else "False", status.outcome.value, status.reason, status.since)
