"""Kubernetes as the engine sees it: :class:`everstep.ports.Cluster`. Reads from caches, writes with preconditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

import msgspec

from everstep.adapters.kube.caches import HEALTHS, HEARTBEAT_NAMESPACE, NODES, Caches
from everstep.adapters.kube.events import About, Named, Recorder
from everstep.adapters.kube.mirror import moment, to_api
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api import cases
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
from everstep.core.errors import Conflict, InvalidInput, NotFound, Unreadable
from everstep.core.health import NodeReport, Verdict
from everstep.core.occurrences import Occurrence

# Of the steps of a heal, the detection alone; of a node's verdict, everything that is not healthy.
WARNINGS = frozenset({"Detected", "EverstepFaulty", "EverstepUnknown", "SlurmDrained", "FleetIncident"})
WRITE_ATTEMPTS = 4  # a kubelet may write its node between our read and our write; reading again settles it


class NodeBody(msgspec.Struct, frozen=True):
    """A node as it is read before it is changed; taints whole, because they are written back whole."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}

    @property
    def taints(self) -> list[dict[str, Any]]:
        return list(self.spec.get("taints") or [])


Change = dict[str, Any]


class KubeCluster:
    """Every method raises what :mod:`everstep.ports` says, and nothing else."""

    def __init__(self, verbs: Verbs, caches: Caches, recorder: Recorder) -> None:
        self._verbs, self._caches, self._recorder = verbs, caches, recorder

    # --- reads: caches that are in sync, or Unreachable ---------------------------------------------------------

    async def nodes(self) -> Sequence[NodeView]:
        """Unreadable while any node cannot be read: whoever misses it in the list would take it for gone."""
        nodes = self._caches.nodes.all()
        if unreadable := self._caches.nodes.unreadable:
            (_, name), why = next(iter(unreadable.items()))
            raise Unreadable(f"node {name} cannot be read: {why}")
        return nodes

    async def node(self, name: str) -> NodeView | None:
        return self._caches.nodes.get(name)

    async def pods_on(self, node: str) -> Sequence[PodView]:
        """Unreadable while any pod anywhere cannot be read: it might be on this node."""
        pods = self._caches.pods.indexed(node)
        if unreadable := self._caches.pods.unreadable:
            (namespace, name), why = next(iter(unreadable.items()))
            raise Unreadable(f"pod {namespace}/{name} cannot be read, and may be on {node}: {why}")
        return pods

    async def reports(self) -> Mapping[str, NodeReport]:
        """A NodeHealth that cannot be read counts as Unknown, with the reason."""
        self._caches.heartbeats.check()
        found = {report.node: report for report in self._caches.reports.all()}
        for (_, name), why in self._caches.reports.unreadable.items():
            found[name] = NodeReport(name, Verdict.UNKNOWN, reason=f"NodeHealth {name} cannot be read: {why}")
        return {name: replace(report, heartbeat=self._heartbeat(name)) for name, report in found.items()}

    def _heartbeat(self, node: str) -> float | None:
        return self._caches.heartbeats.find(node, HEARTBEAT_NAMESPACE)

    # --- writes ---------------------------------------------------------------------------------------------------

    async def cordon(self, node: str) -> None:
        await self._verbs.merge(f"{NODES}/{node}", {"spec": {"unschedulable": True}})

    async def uncordon(self, node: str) -> None:
        await self._verbs.merge(f"{NODES}/{node}", {"spec": {"unschedulable": None}})

    async def evict(self, pod: PodView) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        try:
            # Asked first, because the API server tries a failed precondition again for ten seconds.
            if (await self._verbs.get(path, Named)).metadata.uid == pod.uid:
                await self._verbs.create(f"{path}/eviction", body)
        except (NotFound, Conflict):  # it is gone, or another pod has its name by now
            return

    async def claim_spare(self, node: str, remediation: str) -> None:
        def claim(body: NodeBody) -> Change | None:
            meta = body.metadata
            holder = meta.annotations.get(CLAIM_ANNOTATION)
            if holder == remediation:
                return None
            if holder is not None:
                raise Conflict(f"spare {node} is held by {holder}")
            if SPARE_LABEL not in meta.labels:
                raise Conflict(f"node {node} is no spare any more")
            return {"metadata": {"annotations": {CLAIM_ANNOTATION: remediation}}}

        await self._change(node, claim)

    async def release_spare(self, node: str, remediation: str) -> None:
        def release(body: NodeBody) -> Change | None:
            holder = body.metadata.annotations.get(CLAIM_ANNOTATION)
            if holder is None:
                return None
            if holder != remediation:
                raise Conflict(f"spare {node} is held by {holder}")
            return {"metadata": {"annotations": {CLAIM_ANNOTATION: None}}}

        await self._change(node, release)

    async def join_pool(self, node: str, pool: str, remediation: str) -> None:
        def join(body: NodeBody) -> Change | None:
            meta = body.metadata
            holder = meta.annotations.get(CLAIM_ANNOTATION)
            if holder is None and meta.labels.get(POOL_LABEL) == pool and SPARE_LABEL not in meta.labels:
                return None  # done before
            if holder != remediation:
                raise Conflict(f"node {node} is held by {holder or 'nobody'}, not by {remediation}")
            return {
                "metadata": {
                    "labels": {POOL_LABEL: pool, SPARE_LABEL: None, OUT_OF_SERVICE_LABEL: None},
                    "annotations": {CLAIM_ANNOTATION: None},
                },
                "spec": {
                    "taints": [taint for taint in body.taints if taint.get("key") != SPARE_TAINT],
                    "unschedulable": None,
                },
            }

        await self._change(node, join)

    async def leave_pool(self, node: str, remediation: str) -> None:
        def leave(body: NodeBody) -> Change | None:
            labels = body.metadata.labels
            if OUT_OF_SERVICE_LABEL in labels:
                return None
            return {
                "metadata": {
                    "labels": {POOL_LABEL: None, SPARE_LABEL: None, OUT_OF_SERVICE_LABEL: remediation},
                    "annotations": {CLAIM_ANNOTATION: None},
                }
            }

        await self._change(node, leave)

    async def set_condition(self, node: str, uid: str, condition: NodeCondition) -> None:
        now = moment(time())
        entry = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": moment(condition.since) if condition.since else now,
            "lastHeartbeatTime": now,
        }
        try:
            body = {"metadata": {"uid": uid}, "status": {"conditions": [entry]}}
            await self._verbs.strategic(f"{NODES}/{node}/status", body)
        except InvalidInput as why:
            if "metadata.uid" in str(why):  # of a patch, the API server calls it an immutable field, not a conflict
                raise Conflict(f"node {node} is another one by now") from why
            raise

    async def tell_history(self, node: str, inherited: Sequence[Occurrence]) -> None:
        body = {"status": {"inherited": [to_api(item, cases.Occurrence) for item in inherited]}}
        await self._verbs.merge(f"{HEALTHS}/{node}", body)  # a merge makes no object that is not there

    async def event(self, kind: str, name: str, reason: str, message: str, namespace: str = "") -> None:
        about = About(kind, name, namespace, self._known_uid(kind, name))
        await self._recorder.record(about, reason, message, reason in WARNINGS)

    def _known_uid(self, kind: str, name: str) -> str:
        """ "" where the caches do not tell, and the API server must be asked."""
        match kind:
            case "Node":
                node = self._caches.nodes.find(name)
                return node.uid if node else ""
            case "Remediation":
                incident = self._caches.remediations.find(name)
                return incident.uid if incident else ""
            case _:
                return ""

    async def _change(self, node: str, decide: Callable[[NodeBody], Change | None]) -> None:
        """Read, decide, write under the version that was read; None: nothing is left to do. Raises Conflict."""
        path = f"{NODES}/{node}"
        for attempt in range(WRITE_ATTEMPTS):
            body = await self._verbs.get(path, NodeBody)
            change = decide(body)
            if change is None:
                return
            change["metadata"]["resourceVersion"] = body.metadata.resource_version
            try:
                await self._verbs.merge(path, change)
            except Conflict:
                if attempt == WRITE_ATTEMPTS - 1:
                    raise
            else:
                return
