"""What the operator watches: SlurmClusters, and the workloads and pods that it made for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec

from everstep.adapters.kube.store import Key, Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.meta import API_VERSION
from everstep.api.slurm_cluster import SlurmClusterSpec, SlurmClusterStatus
from everstep.apps.slurm_operator.desired import CLUSTER_LABEL, ROLE_LABEL, Cluster
from everstep.core.errors import Unreadable

CLUSTERS = f"/apis/{API_VERSION}/slurmclusters"
WORKLOADS = {
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Deployment": "/apis/apps/v1/deployments",
}


class ClusterView(msgspec.Struct, frozen=True):
    """Spec and status are decoded on their own, so that one that cannot be understood still has a name."""

    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _WorkloadStatus(msgspec.Struct, frozen=True, rename="camel"):
    ready_replicas: int = 0
    updated_replicas: int = 0
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0


class _WorkloadView(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    status: _WorkloadStatus = _WorkloadStatus()


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _PodCondition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    message: str = ""


class _ContainerState(msgspec.Struct, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    ready: bool = False
    state: _ContainerState = _ContainerState()
    last_state: _ContainerState = _ContainerState()


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    conditions: list[_PodCondition] = []
    container_statuses: list[_ContainerStatus] = []
    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")


class _PodView(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """One SlurmCluster and the status that it has now."""

    cluster: Cluster
    status: SlurmClusterStatus


@dataclass(frozen=True, slots=True)
class Workload:
    """One StatefulSet, DaemonSet or Deployment.

    ``current`` is false until its controller has seen the last change; ``outdated`` counts the pods of a DaemonSet
    that were made before it.
    """

    cluster: Key
    kind: str
    name: str
    desired: int
    ready: int
    outdated: int
    current: bool


@dataclass(frozen=True, slots=True)
class SlurmPod:
    """One pod of a Slurm cluster.

    Attributes:
        leaving: it is being deleted.
        no_room: why the scheduler finds no node for it, in its words; "" when it has one.
        last_words: what a container that failed and does not run again yet said last; "" for none.
    """

    cluster: Key
    name: str
    role: str
    node: str
    address: str
    host: str
    ready: bool
    leaving: bool
    no_room: str = ""
    last_words: str = ""


def _cluster(view: ClusterView) -> SeenCluster:
    meta = view.metadata
    try:
        spec = msgspec.json.decode(view.spec, type=SlurmClusterSpec)
        status = msgspec.json.decode(view.status, type=SlurmClusterStatus)
    except msgspec.ValidationError as why:
        raise Unreadable(f"SlurmCluster {meta.namespace}/{meta.name}: {why}") from why
    return SeenCluster(Cluster(meta.namespace, meta.name, meta.uid, meta.generation, spec), status)


def _workload(kind: str) -> Callable[[_WorkloadView], Workload]:
    def project(view: _WorkloadView) -> Workload:
        meta, status = view.metadata, view.status
        per_node = kind == "DaemonSet"
        return Workload(
            cluster=(meta.namespace, meta.labels.get(CLUSTER_LABEL, "")),
            kind=kind,
            name=meta.name,
            desired=status.desired_number_scheduled if per_node else 1,
            ready=status.number_ready if per_node else min(status.ready_replicas, status.updated_replicas),
            outdated=max(0, status.desired_number_scheduled - status.updated_number_scheduled) if per_node else 0,
            current=status.observed_generation >= meta.generation,
        )

    return project


def _pod(view: _PodView) -> SlurmPod:
    meta = view.metadata
    return SlurmPod(
        cluster=(meta.namespace, meta.labels.get(CLUSTER_LABEL, "")),
        name=meta.name,
        role=meta.labels.get(ROLE_LABEL, ""),
        node=view.spec.node_name,
        address=view.status.pod_ip,
        host=view.status.host_ip,
        ready=any(c.type == "Ready" and c.status == "True" for c in view.status.conditions),
        leaving=meta.deletion_timestamp is not None or view.status.phase in {"Succeeded", "Failed"},
        no_room=next(
            (c.message for c in view.status.conditions if c.type == "PodScheduled" and c.status != "True"), ""
        ),
        last_words=next(filter(None, map(_last_words, view.status.container_statuses)), ""),
    )


def _last_words(container: _ContainerStatus) -> str:
    ended = container.state.terminated or container.last_state.terminated
    return ended.message if ended is not None and ended.exit_code and not container.ready else ""


class Watched:
    """One store a kind. ``changed(namespace, name)`` hears of every change that concerns a cluster."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self.clusters: Store[ClusterView, SeenCluster] = Store("slurmclusters", _cluster)
        self.clusters.on_change(lambda key, before, after: changed(key))
        self.pods: Store[_PodView, SlurmPod] = Store("pods", _pod, index=lambda pod: pod.cluster)
        self.workloads: dict[str, Store[_WorkloadView, Workload]] = {
            kind: Store(kind.lower() + "s", _workload(kind), index=lambda work: work.cluster) for kind in WORKLOADS
        }

        def of_cluster(key: Key, before: Workload | SlurmPod | None, after: Workload | SlurmPod | None) -> None:
            for thing in (before, after):
                if thing is not None:
                    changed(thing.cluster)

        self.pods.on_change(of_cluster)
        for store in self.workloads.values():
            store.on_change(of_cluster)

    def follows(self, http: httpx2.AsyncClient) -> list[Coroutine[Any, Any, None]]:
        """The watches, to be run as tasks."""
        ours = {"labelSelector": CLUSTER_LABEL}
        return [
            follow(http, CLUSTERS, ClusterView, self.clusters),
            follow(http, "/api/v1/pods", _PodView, self.pods, ours),
            *(follow(http, WORKLOADS[kind], _WorkloadView, store, ours) for kind, store in self.workloads.items()),
        ]

    def check(self) -> None:
        """Raises Unreachable while anything that is watched is not to be believed."""
        for store in self._stores():
            store.check()

    async def synced(self) -> None:
        """Waits until everything has been listed once."""
        for store in self._stores():
            await store.wait_synced()

    def _stores(self) -> list[Store[Any, Any]]:
        return [self.clusters, self.pods, *self.workloads.values()]

    def workload(self, cluster: Cluster, kind: str, part: str) -> Workload | None:
        """One of the cluster's workloads; None when the API server has none."""
        return self.workloads[kind].get(cluster.part(part), cluster.namespace)
