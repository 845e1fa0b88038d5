"""What the fleet shows of a node's health: the agent's verdict as one condition of the Kubernetes node.

The agent alone writes NodeHealth, so an agent that is dead cannot take its last word back. The condition can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.health import Fault, NodeReport, Verdict, accuses

HEALTHY = "EverstepHealthy"
# Seconds of silence after which the agent's last word is no longer believed: four renewals of its Lease (10 s each).
SILENT_AFTER = 40.0
SILENT = "AgentSilent"
_STATUS = {Verdict.HEALTHY: "True", Verdict.FAULTY: "False", Verdict.UNKNOWN: "Unknown"}


def verdict_condition(
    now: float, node: NodeView, report: NodeReport | None, foreign: Sequence[Fault] = ()
) -> NodeCondition | None:
    """The condition that the node should carry; None for a node that no agent looks after.

    Evidence of others counts where the agent itself finds nothing wrong. The message does not change with time, so
    that it need not be written again while nothing happens.
    """
    if report is None:
        if node.pool is None and node.spare_for is None:
            return None
        return _unknown(now, "NoReport", f"no agent has reported from node {node.name} yet")
    if report.heartbeat is None:
        return _unknown(now, "NoHeartbeat", f"the agent of node {node.name} has not sent a heartbeat yet")
    if now - report.heartbeat > SILENT_AFTER:
        last = f"; its last word was {report.verdict.value}: {report.reason}" if report.reason else ""
        return _unknown(
            now, SILENT, f"the agent of node {node.name} has been silent for more than {SILENT_AFTER:.0f} s{last}"
        )
    if report.boot_id and node.boot_id and report.boot_id != node.boot_id:
        return _unknown(now, "StaleReport", f"the agent of node {node.name} has not reported since the last boot")
    if report.verdict is Verdict.HEALTHY and foreign:
        return NodeCondition(HEALTHY, "False", camel(f"{foreign[0].kind} {foreign[0].code}"), foreign[0].reason, now)
    return NodeCondition(HEALTHY, _STATUS[report.verdict], _reason(report), report.reason, now)


def _unknown(now: float, reason: str, message: str) -> NodeCondition:
    return NodeCondition(HEALTHY, "Unknown", reason, message, now)


def _reason(report: NodeReport) -> str:
    """One word: the first fault that accuses the node, as ``Xid79``."""
    if report.verdict is Verdict.HEALTHY:
        return "NoFault"
    if report.verdict is Verdict.UNKNOWN:
        return "SourceBroken"
    fault = next((fault for fault in report.faults if accuses(fault)), None)
    return camel(f"{fault.kind} {fault.code}") if fault else "Faulty"


def camel(words: str) -> str:
    """``host node-lost`` as ``HostNodeLost``."""
    return "".join(word[0].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", words) if word)
