"""Who may start now, and why not: the fleet-wide budget and the breaker, in one place.

The breaker stops new isolations only; an incident that has begun is always brought to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from everstep.core.observations import Admission
from everstep.core.policy import Policy
from everstep.core.remediation_status import Outcome, Remediation, Stage, StepName

NOBODY: Mapping[str, str] = MappingProxyType({})


def holds_budget(remediation: Remediation) -> bool:
    """Admitted, and no replacement is in service yet: the fleet is one node short because of it."""
    status = remediation.status
    replaced = status.replacement is not None and status.replacement.in_service_at is not None
    return status.admitted_at is not None and not (status.resolved or status.left_alone or replaced)


def failing_nodes(me: Remediation, fleet: Iterable[Remediation]) -> frozenset[str]:
    """Nodes whose incident, another than ``me``, is open while Slurm may still place jobs on them."""
    return frozenset(
        other.spec.node
        for other in fleet
        if other.spec.node != me.spec.node
        and not (other.status.resolved or other.status.cancelled or other.deleting)
        and other.status.step(StepName.ISOLATED) is None
    )


def admit(
    now: float,
    me: Remediation,
    fleet: Iterable[Remediation],
    policy: Policy,
    silent: Sequence[str],
    held: Mapping[str, str] = NOBODY,
) -> Admission:
    """Whether ``me`` may start (Pending) or go on to its first effect (Admitted).

    Args:
        fleet: every Remediation, freshly read.
        silent: nodes that fell silent together, so many that the network is the likelier culprit; else empty.
        held: by name, incidents whose faults the fleet shares, and why they wait; nobody waits behind them.
    """
    others = [r for r in fleet if r.name != me.name]
    for other in others:
        if other.spec.node == me.spec.node and not other.status.resolved and _first(other, me):
            return Admission(False, f"it is part of {other.name}", duplicate_of=other.name)
    if me.status.stage is Stage.ADMITTED:
        return _confirm(me, others, policy)
    if why := held.get(me.name):
        return Admission(False, why)
    if silent:
        return Admission(False, f"{len(silent)} nodes fell silent together ({', '.join(silent)}): is the network down?")
    recent = [r for r in others if r.status.admitted_at and now - r.status.admitted_at < policy.breaker_window]
    if len(recent) >= policy.breaker_starts:
        return Admission(
            False, f"{len(recent)} remediations started within {policy.breaker_window:.0f} s: breaker open"
        )
    failed = [r for r in recent if r.status.outcome is Outcome.ESCALATED]
    if len(failed) >= policy.breaker_escalations:
        return Admission(
            False, f"{len(failed)} remediations were escalated within {policy.breaker_window:.0f} s: breaker open"
        )
    holding = sorted(r.name for r in others if holds_budget(r))
    earlier = sum(
        r.status.stage is Stage.PENDING
        and (r.created, r.name) < (me.created, me.name)
        and not r.deleting
        and r.name not in held
        for r in others
    )
    if len(holding) >= policy.budget:
        return Admission(False, f"the budget of {policy.budget} is used by {', '.join(holding)}")
    if earlier >= policy.budget - len(holding):
        return Admission(False, f"{earlier} earlier incidents go first")
    return Admission(True, "the budget allows it")


def _first(other: Remediation, me: Remediation) -> bool:
    """Of two open incidents on one node, the one that began, else the older one, carries on."""
    waiting = (Stage.PENDING, Stage.ADMITTED)
    if other.status.stage not in waiting:
        return True
    return (other.created, other.name) < (me.created, me.name)


def _confirm(me: Remediation, others: Sequence[Remediation], policy: Policy) -> Admission:
    """Two controllers may admit two incidents at once (an old leader that was frozen); only one may go on.

    Who sees another incident that has begun, or was admitted before it, gives way. Who sees one admitted after it
    waits until that one gave way or began: its confirmation may already be on the wire, decided before we were seen.
    """
    key = (me.status.admitted_at or 0.0, me.name)
    admitted = [r for r in others if r.status.stage is Stage.ADMITTED and not r.deleting]
    begun = [r.name for r in others if holds_budget(r) and r.status.stage is not Stage.ADMITTED]
    ahead = [*begun, *(r.name for r in admitted if (r.status.admitted_at or 0.0, r.name) < key)]
    if len(ahead) >= policy.budget:
        return Admission(False, f"it gives way to {', '.join(sorted(ahead))}, which was first", give_way=True)
    if len(begun) + len(admitted) >= policy.budget:
        return Admission(False, f"it waits for {', '.join(sorted(r.name for r in admitted))} to give way or begin")
    return Admission(True, "the admission is confirmed")
