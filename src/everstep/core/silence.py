"""Nodes that say nothing any more: one of them is lost, most of them at once are a network that is down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from everstep.core.cluster_state import NodeView
from everstep.core.draft import NODE_LOST
from everstep.core.health import Fault, FaultClass, FirstAction, NodeReport, Severity
from everstep.core.policy import Policy


def silent_for(now: float, node: NodeView, report: NodeReport | None) -> float:
    """Seconds since the agent's last heartbeat, if Kubernetes, too, does not call the node Ready; else 0."""
    if node.ready is True or report is None or report.heartbeat is None:
        return 0.0
    return max(0.0, now - report.heartbeat)


def mass_silence(
    now: float, nodes: Iterable[NodeView], reports: Mapping[str, NodeReport], policy: Policy
) -> tuple[str, ...]:
    """Nodes in service that are silent, if they are so many that the network is the likelier culprit; else empty."""
    serving = [node for node in nodes if node.pool]
    silent = tuple(
        node.name for node in serving if silent_for(now, node, reports.get(node.name)) > policy.node_lost_grace
    )
    return silent if len(silent) > 1 and 2 * len(silent) > len(serving) else ()


def lost_fault(now: float, node: NodeView, report: NodeReport | None, policy: Policy) -> Fault | None:
    """The fault of a node that both its kubelet and its agent have left; None while one of them speaks."""
    silent = silent_for(now, node, report)
    if silent <= policy.node_lost_grace:
        return None
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


def lost_at(now: float, node: NodeView, report: NodeReport | None, policy: Policy) -> float:
    """Unix seconds when a node that is lost could first be called so: nodes that went together stay together."""
    return now - silent_for(now, node, report) + policy.node_lost_grace
