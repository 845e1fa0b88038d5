"""FakeCluster: the Cluster port over the model of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everstep.core.cluster_state import (
    CLAIM_ANNOTATION,
    OUT_OF_SERVICE_LABEL,
    POOL_LABEL,
    SPARE_LABEL,
    SPARE_TAINT,
    NodeCondition,
    NodeView,
    PodView,
)
from everstep.core.errors import Conflict, NotFound, Unreachable
from everstep.core.health import NodeReport
from everstep.core.occurrences import Occurrence
from everstep.testing.fleet import Fleet, FleetNode


class FakeCluster:
    """Implements :class:`everstep.ports.Cluster`.

    Attributes:
        reachable: False makes every call raise Unreachable.
        events: (kind, name, reason, message) of every Event.
        conditions_written: how often a condition of a node was written.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.reachable = True
        self.events: list[tuple[str, str, str, str]] = []
        self.conditions_written = 0

    async def nodes(self) -> Sequence[NodeView]:
        self._ask()
        return [self._fleet.view(node) for node in self._fleet.nodes.values()]

    async def node(self, name: str) -> NodeView | None:
        self._ask()
        node = self._fleet.nodes.get(name)
        return self._fleet.view(node) if node else None

    async def pods_on(self, node: str) -> Sequence[PodView]:
        self._ask()
        return [pod for pod in self._fleet.pods.values() if pod.node == node]

    async def reports(self) -> Mapping[str, NodeReport]:
        self._ask()
        return {node.name: self._fleet.report(node) for node in self._fleet.nodes.values()}

    async def cordon(self, node: str) -> None:
        self._node(node).unschedulable = True

    async def uncordon(self, node: str) -> None:
        self._node(node).unschedulable = False

    async def evict(self, pod: PodView) -> None:
        self._ask()
        self._fleet.evict(pod.uid)

    async def claim_spare(self, node: str, remediation: str) -> None:
        spare = self._node(node)
        holder = spare.annotations.get(CLAIM_ANNOTATION)
        if holder not in (None, remediation):
            raise Conflict(f"spare {node} is held by {holder}")
        if SPARE_LABEL not in spare.labels:
            raise Conflict(f"node {node} is no spare any more")
        spare.annotations[CLAIM_ANNOTATION] = remediation

    async def release_spare(self, node: str, remediation: str) -> None:
        spare = self._node(node)
        holder = spare.annotations.get(CLAIM_ANNOTATION)
        if holder not in (None, remediation):
            raise Conflict(f"spare {node} is held by {holder}")
        spare.annotations.pop(CLAIM_ANNOTATION, None)

    async def join_pool(self, node: str, pool: str, remediation: str) -> None:
        spare = self._node(node)
        holder = spare.annotations.get(CLAIM_ANNOTATION)
        if holder is None and spare.labels.get(POOL_LABEL) == pool and SPARE_LABEL not in spare.labels:
            return
        if holder != remediation:
            raise Conflict(f"node {node} is held by {holder or 'nobody'}")
        if spare.faults or spare.lost_gpus:
            self._fleet.violations.append(f"spare {node} was put into service with a fault")
        for gone in (SPARE_LABEL, OUT_OF_SERVICE_LABEL):
            spare.labels.pop(gone, None)
        spare.annotations.pop(CLAIM_ANNOTATION)
        spare.labels[POOL_LABEL] = pool
        spare.taints = tuple(taint for taint in spare.taints if taint != SPARE_TAINT)
        spare.unschedulable = False

    async def leave_pool(self, node: str, remediation: str) -> None:
        leaving = self._node(node)
        if OUT_OF_SERVICE_LABEL in leaving.labels:
            return
        for gone in (POOL_LABEL, SPARE_LABEL):
            leaving.labels.pop(gone, None)
        leaving.annotations.pop(CLAIM_ANNOTATION, None)
        leaving.labels[OUT_OF_SERVICE_LABEL] = remediation

    async def set_condition(self, node: str, uid: str, condition: NodeCondition) -> None:
        found = self._node(node)
        if found.uid != uid:
            raise Conflict(f"node {node} is another one by now")
        self.conditions_written += 1
        found.conditions[condition.type] = condition

    async def tell_history(self, node: str, inherited: Sequence[Occurrence]) -> None:
        self._node(node).inherited = tuple(inherited)

    async def event(self, kind: str, name: str, reason: str, message: str, namespace: str = "") -> None:
        self._ask()
        self.events.append((kind, name, reason, message))

    def _ask(self) -> None:
        if not self.reachable:
            raise Unreachable("the API server does not answer")

    def _node(self, name: str) -> FleetNode:
        self._ask()
        node = self._fleet.nodes.get(name)
        if node is None:
            raise NotFound(f"there is no node {name}")
        return node
