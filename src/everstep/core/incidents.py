"""Which incidents to open: serious faults that agents report, and nodes that fell silent altogether."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from everstep.core.cluster_state import NodeView
from everstep.core.correlation.fleet import FleetIncident
from everstep.core.draft import NODE_LOST
from everstep.core.fleet_incidents import held_by
from everstep.core.health import Fault, FirstAction, NodeReport, Severity
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation, Spec
from everstep.core.silence import lost_at, lost_fault

Foreign = Mapping[str, Sequence[Fault]]
NOTHING: Foreign = MappingProxyType({})

# Advice that the action "replace" satisfies; a restart of the job or a person's eye is not answered with a new node.
ANSWERED_BY_REPLACEMENT = frozenset({FirstAction.RESET_GPU, FirstAction.REBOOT_NODE, FirstAction.REPLACE_NODE})


@dataclass(frozen=True, slots=True)
class Opening:
    """An incident that should exist."""

    name: str
    spec: Spec


def incident_name(node: NodeView, fault: Fault) -> str:
    """The same fault of the same boot of the same node always gets the same name, so no crash can open it twice.

    At most 63 characters, because it is also used as the value of a label.
    """
    digest = hashlib.sha256(f"{node.uid}/{node.boot_id}/{fault.key}".encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", f"{node.name[:30]}-{fault.kind}-{fault.code}".lower()).strip("-")
    return f"{words[:54].rstrip('-')}-{digest}"


def suspicious(
    now: float,
    nodes: Iterable[NodeView],
    reports: Mapping[str, NodeReport],
    policy: Policy,
    foreign: Foreign = NOTHING,
) -> bool:
    """Whether anything may need an incident at all; spares the API server a list while all is well."""
    return any(_candidates(now, node, reports.get(node.name), policy, foreign) for node in nodes if node.pool)


def openings(
    now: float,
    nodes: Iterable[NodeView],
    reports: Mapping[str, NodeReport],
    known: Sequence[Remediation],
    policy: Policy,
    foreign: Foreign = NOTHING,
    shared: Sequence[FleetIncident] = (),
) -> list[Opening]:
    """Incidents that are not open yet, one a node at most. Only nodes in service (in a pool) are healed.

    Args:
        foreign: by node, evidence of others that policy may act on.
        shared: incidents of the fleet; what they explain opens nothing.
    """
    found: list[Opening] = []
    for node in nodes:
        if node.pool is None:
            continue
        mine = [r for r in known if r.spec.node == node.name]
        if any(not r.status.resolved for r in mine):
            continue  # one incident a node at a time: further faults join the open one
        report = reports.get(node.name)
        candidates = _candidates(now, node, report, policy, foreign)
        fresh = [
            f for f in candidates if not _covered(node, f, mine) and not _shared(now, node, report, f, policy, shared)
        ]
        if fresh:
            gpus = max(node.gpus_capacity, len(report.gpus) if report else 0)
            spec = Spec(node.name, node.uid, node.boot_id, node.pool, node.name, gpus, tuple(fresh), policy=policy.name)
            found.append(Opening(incident_name(node, fresh[0]), spec))
    return found


def _candidates(now: float, node: NodeView, report: NodeReport | None, policy: Policy, foreign: Foreign) -> list[Fault]:
    if lost := lost_fault(now, node, report, policy):
        return [lost]
    own = [f for f in (report.faults if report else ()) if f.boot_id in ("", node.boot_id) and _serious(f, policy)]
    return [*own, *(f for f in foreign.get(node.name, ()) if f.action is FirstAction.REPLACE_NODE)]


def _serious(fault: Fault, policy: Policy) -> bool:
    return (
        fault.severity is Severity.CRITICAL
        and fault.fault_class in policy.replace
        and fault.action in ANSWERED_BY_REPLACEMENT
    )


def _shared(
    now: float,
    node: NodeView,
    report: NodeReport | None,
    fault: Fault,
    policy: Policy,
    shared: Sequence[FleetIncident],
) -> bool:
    """An incident of the fleet explains the fault."""
    if (fault.kind, fault.code) == NODE_LOST:
        fault = replace(fault, first_seen=lost_at(now, node, report, policy))
    return bool(shared) and held_by(shared, node.name, fault) is not None


def _covered(node: NodeView, fault: Fault, mine: Iterable[Remediation]) -> bool:
    """An incident of this boot knew the fault, or ended after it was first seen."""
    for incident in mine:
        if incident.spec.boot_id != node.boot_id or incident.spec.node_uid != node.uid:
            continue
        keys = {f.key for f in incident.spec.faults} | set(incident.status.merged_faults)
        if fault.key in keys or fault.first_seen <= (incident.status.resolved_at or 0.0):
            return True
    return False
