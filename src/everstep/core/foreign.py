"""Evidence of others: conditions that somebody else set on a node, and drains in Slurm that are not ours.

Others know things that no agent of ours can see, and are wrong in ways that we cannot judge. So what they say is kept
word for word and shown; only a rule of the RemediationPolicy makes a reason to act of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.draft import OUR_PREFIX
from everstep.core.health import Fault, FaultClass, FirstAction, Severity
from everstep.core.policy import DrainRule, Policy
from everstep.core.scheduler_state import SchedulerLook, SlurmNode

CONDITION = "condition"
SLURM = "slurm"
DRAIN = "drain"
DRAINED = "EverstepSlurmDrained"
# What slurmctld and slurmd write by themselves when they drain a node; nobody has decided it.
_SLURMS_OWN = (
    "not responding", "kill task failed", "prolog error", "epilog error", "batch job complete failure",
    "duplicate jobid", "node unexpectedly rebooted", "gres/", "low ", "step not running", "reboot ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForeignDrain:
    """A node that somebody else took out of service in Slurm; ``reason`` is theirs, word for word."""

    cluster: str
    reason: str


def is_foreign(node: SlurmNode) -> bool:
    """Drained, and not by us."""
    return bool(node.states & {"DRAIN", "FAIL"}) and not node.reason.startswith(OUR_PREFIX)


def decided_by_a_person(node: SlurmNode) -> bool:
    """A drain that a person or their tool set, as far as its reason tells: neither ours nor Slurm's own."""
    return is_foreign(node) and not node.reason.lower().startswith(_SLURMS_OWN)


def foreign_drains(look: SchedulerLook) -> dict[str, ForeignDrain]:
    """By node name; of a node that several clusters drain, the first cluster."""
    found: dict[str, ForeignDrain] = {}
    for snapshot in look.answered:
        for node in snapshot.nodes:
            if is_foreign(node):
                found.setdefault(node.name, ForeignDrain(snapshot.cluster, node.reason or "no reason given"))
    return found


def drain_condition(
    now: float, node: NodeView, drains: Mapping[str, ForeignDrain], look: SchedulerLook
) -> NodeCondition | None:
    """What the node should show of it; None: leave it as it is."""
    if drain := drains.get(node.name):
        message = f"drained in Slurm cluster {drain.cluster} by somebody else: {drain.reason}"
        return NodeCondition(DRAINED, "True", "DrainedInSlurm", message, now)
    if node.condition(DRAINED) is None or any(each.may_hold(node.name, node.labels) for each in look.silent):
        return None
    return NodeCondition(DRAINED, "False", "NotDrained", "no drain of somebody else is seen in Slurm", now)


def drain_fault(now: float, node: NodeView, drain: ForeignDrain, since: float, policy: Policy) -> Fault | None:
    """The drain as a reason to replace the node, if the first rule that matches its reason says so.

    Args:
        since: Unix seconds when it was first seen.
    """
    if not _replaces(policy.slurm_drains, drain.reason):
        return None
    return Fault(
        key=f"{SLURM}:{DRAIN}@node",
        kind=SLURM,
        code=DRAIN,
        fault_class=FaultClass.HARDWARE,
        severity=Severity.CRITICAL,
        action=FirstAction.REPLACE_NODE,
        reason=f"node {node.name} was drained in Slurm cluster {drain.cluster} by somebody else: {drain.reason}",
        line=drain.reason,
        first_seen=since,
        last_seen=now,
        boot_id=node.boot_id,
    )


def _replaces(rules: Iterable[DrainRule], reason: str) -> bool:
    """The first rule whose pattern is found in the reason decides."""
    return next((rule.replace for rule in rules if re.search(rule.pattern, reason)), False)


def foreign_faults(now: float, node: NodeView, policy: Policy) -> tuple[Fault, ...]:
    """Conditions that the policy names and that the node carries now; gone with the condition."""
    found: list[Fault] = []
    for rule in policy.node_conditions:
        said = node.condition(rule.type)
        if said is None or said.status != rule.status or now - said.since < rule.seconds:
            continue
        why = ": ".join(part for part in (said.reason, said.message) if part)
        found.append(
            Fault(
                key=f"{CONDITION}:{rule.type}@node",
                kind=CONDITION,
                code=rule.type,
                fault_class=rule.fault_class,
                severity=Severity.CRITICAL if rule.replace else Severity.WARNING,
                action=FirstAction.REPLACE_NODE if rule.replace else FirstAction.CALL_HUMAN,
                reason=f"condition {rule.type} of node {node.name} is {said.status}" + (f" ({why})" if why else ""),
                line=said.message[:512],
                first_seen=said.since or now,
                last_seen=now,
                boot_id=node.boot_id,
            )
        )
    return tuple(found)
