"""The heal told in sentences: one a step, the same words in log, Event and CLI."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.core.remediation_status import Remediation, Status, Step, StepName

_TITLES = {
    StepName.DETECTED: "Fault detected",
    StepName.NOTIFIED: "Owner notified",
    StepName.ISOLATED: "Node isolated in Slurm",
    StepName.SIGNALLED: "Job asked to save",
    StepName.CHECKPOINTED: "Checkpoint",
    StepName.REQUEUED: "Job requeued",
    StepName.OPT_OUT_CHECKED: "Opt-out checked",
    StepName.CORDONED: "Node cordoned",
    StepName.DRAINED: "Node empty",
    StepName.REPLACED: "Node replaced",
    StepName.VALIDATED: "Replacement validated",
    StepName.RESUMED: "Job resumed",
}


def event_reason(step: Step) -> str:
    """CamelCase reason of the Kubernetes Event, for example ``OptOutChecked``."""
    return step.name.value[0].upper() + step.name.value[1:]


def sentence(step: Step, start: float) -> str:
    """``+ 4.2 s  Job requeued: job 7 waits ...`` with the time since the fault was detected."""
    return f"+{step.at - start:6.1f} s  {_TITLES[step.name]}: {step.reason}"


def story(remediation: Remediation) -> Iterator[str]:
    """The whole heal so far, in the order in which things happened."""
    steps = sorted(remediation.status.steps, key=lambda step: step.at)
    start = steps[0].at if steps else remediation.created
    for step in steps:
        yield sentence(step, start)
    yield remediation.status.reason


def new_steps(before: Status, after: Status) -> tuple[Step, ...]:
    """Steps that ``after`` has and ``before`` has not."""
    known = {step.name for step in before.steps}
    return tuple(step for step in after.steps if step.name not in known)
