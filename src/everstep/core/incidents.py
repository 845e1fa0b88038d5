"""Which incidents to open: serious faults that agents report, and nodes that fell silent altogether."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everstep.core.cluster_state import NodeView
from everstep.core.draft import NODE_LOST
from everstep.core.health import Fault, FaultClass, FirstAction, NodeReport, Severity
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation, Spec

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


def suspicious(now: float, nodes: Iterable[NodeView], reports: Mapping[str, NodeReport], policy: Policy) -> bool:
    """Whether anything may need an incident at all; spares the API server a list while all is well."""
    return any(_candidates(now, node, reports.get(node.name), policy) for node in nodes if node.pool)


def openings(
    now: float,
    nodes: Iterable[NodeView],
    reports: Mapping[str, NodeReport],
    known: Sequence[Remediation],
    policy: Policy,
) -> list[Opening]:
    """Incidents that are not open yet, one a node at most. Only nodes in service (in a pool) are healed."""
    found: list[Opening] = []
    for node in nodes:
        if node.pool is None:
            continue
        mine = [r for r in known if r.spec.node == node.name]
        if any(not r.status.resolved for r in mine):
            continue  # one incident a node at a time: further faults join the open one
        report = reports.get(node.name)
        fresh = [f for f in _candidates(now, node, report, policy) if not _covered(node, f, mine)]
        if fresh:
            gpus = max(node.gpus_capacity, len(report.gpus) if report else 0)
            spec = Spec(node.name, node.uid, node.boot_id, node.pool, node.name, gpus, tuple(fresh), policy=policy.name)
            found.append(Opening(incident_name(node, fresh[0]), spec))
    return found


def mass_silence(
    now: float, nodes: Iterable[NodeView], reports: Mapping[str, NodeReport], policy: Policy
) -> tuple[str, ...]:
    """Nodes in service that are silent, if they are so many that the network is the likelier culprit; else empty."""
    serving = [node for node in nodes if node.pool]
    silent = tuple(
        node.name for node in serving if silent_for(now, node, reports.get(node.name)) > policy.node_lost_grace
    )
    return silent if len(silent) > 1 and 2 * len(silent) > len(serving) else ()


def silent_for(now: float, node: NodeView, report: NodeReport | None) -> float:
    """Seconds since the agent's last heartbeat, if Kubernetes, too, does not call the node Ready; else 0."""
    if node.ready is True or report is None or report.heartbeat is None:
        return 0.0
    return max(0.0, now - report.heartbeat)


def _candidates(now: float, node: NodeView, report: NodeReport | None, policy: Policy) -> list[Fault]:
    if silent_for(now, node, report) > policy.node_lost_grace:
        return [_lost(now, node)]
    return [f for f in (report.faults if report else ()) if f.boot_id in ("", node.boot_id) and _serious(f, policy)]


def _serious(fault: Fault, policy: Policy) -> bool:
    return (
        fault.severity is Severity.CRITICAL
        and fault.fault_class in policy.replace
        and fault.action in ANSWERED_BY_REPLACEMENT
    )


def _lost(now: float, node: NodeView) -> Fault:
    kind, code = NODE_LOST
    return Fault(
        key=f"{kind}:{code}@node",
        kind=kind,
        code=code,
        fault_class=FaultClass.HARDWARE,
        severity=Severity.CRITICAL,
        action=FirstAction.REPLACE_NODE,
        reason=f"node {node.name} is lost: Kubernetes does not call it Ready and its agent is silent",
        first_seen=now,
        last_seen=now,
        boot_id=node.boot_id,
    )


def _covered(node: NodeView, fault: Fault, mine: Iterable[Remediation]) -> bool:
    """An incident of this boot knew the fault, or ended after it was first seen."""
    for incident in mine:
        if incident.spec.boot_id != node.boot_id or incident.spec.node_uid != node.uid:
            continue
        keys = {f.key for f in incident.spec.faults} | set(incident.status.merged_faults)
        if fault.key in keys or fault.first_seen <= (incident.status.resolved_at or 0.0):
            return True
    return False
