"""Lean wire views of the kinds that the platform watches, and what each becomes for the core."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from time import time

import msgspec

from everstep.adapters.kube.mirror import to_core
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.node_health import NodeHealthStatus
from everstep.core.cluster_state import GPU_RESOURCE, NodeView, PodView
from everstep.core.cluster_state import NodeCondition as CoreCondition
from everstep.core.errors import Unreadable
from everstep.core.health import NodeReport

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # as large as the object, and says nothing new


class Taint(msgspec.Struct, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] = []


class NodeCondition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class NodeInfo(msgspec.Struct, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    conditions: list[NodeCondition] = []
    node_info: NodeInfo = NodeInfo()
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}


class Node(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Owner(msgspec.Struct, frozen=True):
    kind: str
    controller: bool = False


class PodMeta(ObjectMeta, frozen=True, rename="camel", omit_defaults=True):
    owner_references: list[Owner] = msgspec.field(default_factory=list)


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class NodeHealth(msgspec.Struct, frozen=True):
    """The status is decoded on its own, so that one that cannot be understood still has a name."""

    metadata: ObjectMeta
    status: msgspec.Raw = msgspec.Raw(b"null")


def seconds(moment: datetime | None) -> float:
    """Unix seconds; 0.0 for no time."""
    return 0.0 if moment is None else moment.timestamp()


def node_view(node: Node) -> NodeView:
    """``ready`` is None when the condition is missing or Unknown."""
    said = {condition.type: condition.status for condition in node.status.conditions}
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        resource_version=node.metadata.resource_version,
        ready={"True": True, "False": False}.get(said.get("Ready", "Unknown")),
        unschedulable=node.spec.unschedulable,
        boot_id=node.status.node_info.boot_id,
        labels=node.metadata.labels,
        annotations=node.metadata.annotations,
        taints=tuple(taint.key for taint in node.spec.taints),
        gpus_allocatable=_count(node.status.allocatable),
        gpus_capacity=_count(node.status.capacity),
        created=seconds(node.metadata.creation_timestamp),
        conditions=tuple(
            CoreCondition(each.type, each.status, each.reason, each.message, seconds(each.last_transition_time))
            for each in node.status.conditions
        ),
    )


def _count(resources: dict[str, str]) -> int:
    """0 for a quantity that is no whole number: a node whose GPUs cannot be counted offers none."""
    quantity = resources.get(GPU_RESOURCE, "0")
    return int(quantity) if quantity.isdecimal() else 0


def pod_view(pod: Pod) -> PodView:
    meta = pod.metadata
    owner = next((owner.kind for owner in meta.owner_references if owner.controller), "")
    return PodView(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        node=pod.spec.node_name,
        labels=meta.labels,
        annotations={key: value for key, value in meta.annotations.items() if key != LAST_APPLIED},
        owner_kind=owner,
        finished=pod.status.phase in ("Succeeded", "Failed"),
        terminating=meta.deletion_timestamp is not None,
    )


_status = msgspec.json.Decoder(NodeHealthStatus)


def node_report(health: NodeHealth) -> NodeReport:
    """Without the heartbeat, which lives in a Lease. Raises Unreadable."""
    try:
        return to_core(_status.decode(health.status), NodeReport, node=health.metadata.name)
    except msgspec.DecodeError as why:
        raise Unreadable(f"its status cannot be understood: {why}") from why


class Heartbeats:
    """When each node's agent was last known to be alive, by this process's clock.

    A Lease carries the time of another machine's clock. Once a renewal has been seen to happen, the moment of seeing
    counts; before that the Lease's own time, and never the future.
    """

    def __init__(self, now: Callable[[], float] = time) -> None:
        self._now = now
        self._last: dict[str, tuple[datetime | None, float]] = {}

    def seen(self, lease: Lease) -> float | None:
        """Unix seconds; None for a Lease that was never renewed."""
        renewed, now = lease.spec.renew_time, self._now()
        before = self._last.get(lease.metadata.name)
        if renewed is None:
            return None
        at = now
        if before is None:
            at = min(renewed.timestamp(), now)
        elif before[0] == renewed:
            at = before[1]
        self._last[lease.metadata.name] = (renewed, at)
        return at
