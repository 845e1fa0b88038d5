"""Everything that one controller process watches, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from everstep.adapters.kube.records import PolicyObject, RemediationObject, policy_of, remediation_of
from everstep.adapters.kube.store import Key, Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.views import (
    Heartbeats,
    Lease,
    Node,
    NodeHealth,
    Pod,
    node_report,
    node_view,
    pod_view,
)
from everstep.api.meta import API_VERSION
from everstep.core.cluster_state import NodeView, PodView
from everstep.core.errors import Unreachable
from everstep.core.health import NodeReport
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
HEARTBEAT_NAMESPACE = "everstep-node-lease"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{HEARTBEAT_NAMESPACE}/leases"
HEALTHS = f"/apis/{API_VERSION}/nodehealths"
REMEDIATIONS = f"/apis/{API_VERSION}/remediations"
POLICIES = f"/apis/{API_VERSION}/remediationpolicies"


class Caches:
    """One store a kind; :meth:`running` keeps them equal to the API server."""

    def __init__(self) -> None:
        self.nodes: Store[Node, NodeView] = Store("nodes", node_view)
        self.pods: Store[Pod, PodView] = Store("pods", pod_view, index=lambda pod: pod.node)
        self.reports: Store[NodeHealth, NodeReport] = Store("nodehealths", node_report)
        self.heartbeats: Store[Lease, float | None] = Store("heartbeat leases", Heartbeats().seen)
        self.remediations: Store[RemediationObject, Remediation] = Store("remediations", remediation_of)
        self.policies: Store[PolicyObject, Policy] = Store("remediationpolicies", policy_of)

    @asynccontextmanager
    async def running(self, http: httpx2.AsyncClient, within: float = 30.0) -> AsyncIterator[Caches]:
        """Watches everything while the block runs; enters it once every list has arrived.

        Raises:
            Unreachable: the lists did not all arrive ``within`` seconds; the text names those that did not.
        """
        follows: list[Coroutine[Any, Any, None]] = [
            follow(http, NODES, Node, self.nodes),
            # A pod without a node holds nothing on any node; the scheduler's queue is none of ours.
            follow(http, PODS, Pod, self.pods, {"fieldSelector": "spec.nodeName!="}),
            follow(http, HEALTHS, NodeHealth, self.reports),
            follow(http, LEASES, Lease, self.heartbeats),
            follow(http, REMEDIATIONS, RemediationObject, self.remediations),
            follow(http, POLICIES, PolicyObject, self.policies),
        ]
        tasks = [asyncio.create_task(each) for each in follows]
        try:
            await self._synced(within)
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _synced(self, within: float) -> None:
        stores: list[Store[Any, Any]] = [
            self.nodes, self.pods, self.reports, self.heartbeats, self.remediations, self.policies
        ]  # fmt: skip
        try:
            async with asyncio.timeout(within):
                for store in stores:
                    await store.wait_synced()
        except TimeoutError as late:
            missing = "; ".join(f"{store.what}: {store.trouble}" for store in stores if not store.synced)
            raise Unreachable(f"not everything could be listed within {within:.0f} s: {missing}") from late

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Implements :class:`everstep.ports.Changes`."""

        def by_name(kind: str) -> Callable[[Key, object, object], None]:
            return lambda key, before, after: listener(kind, key[1])

        def by_node(key: Key, before: PodView | None, after: PodView | None) -> None:
            if pod := after or before:
                listener("Pod", pod.node)

        self.nodes.on_change(by_name("Node"))
        self.reports.on_change(by_name("NodeHealth"))
        self.remediations.on_change(by_name("Remediation"))
        self.policies.on_change(by_name("RemediationPolicy"))
        self.pods.on_change(by_node)
