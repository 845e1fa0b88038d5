"""One pass over one SlurmCluster: render, apply what changed, look, say what is seen. Level-triggered."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import structlog

from everstep.adapters.kube.store import Key
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import AnyObject
from everstep.api.slurm_cluster import SlurmClusterStatus
from everstep.apps.slurm_operator import manifests
from everstep.apps.slurm_operator.desired import CLUSTER_LABEL, Cluster, Settings
from everstep.apps.slurm_operator.kubelets import Kubelets
from everstep.apps.slurm_operator.secrets import ensure_secrets
from everstep.apps.slurm_operator.status import Part, Seen, complaint, status
from everstep.apps.slurm_operator.watched import CLUSTERS, WORKLOADS, Watched
from everstep.core.errors import FixTheRequest, InvalidInput, NotFound

log = structlog.get_logger("everstep.slurm_operator")
Object = dict[str, Any]
MANAGER = "everstep-slurm-operator"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = {"slurmctld": "controller", "login": "login", "gateway": "gateway"}
_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "ClusterRoleBinding": BINDINGS,
}


class _Bindings(msgspec.Struct):
    items: list[AnyObject]


class Reconciler:
    """Keeps clusters as their objects say. One pass per cluster at a time.

    Args:
        now: the wall clock, for the status' times.
    """

    def __init__(self, verbs: Verbs, watched: Watched, settings: Settings, now: Callable[[], datetime]) -> None:
        self._verbs, self._watched, self._settings, self._now = verbs, watched, settings, now
        self._applied: dict[str, bytes] = {}  # path -> digest of what was applied last by this process
        self._node_ports: dict[Key, int] = {}
        self._users: dict[Key, str] = {}
        self._kubelets = Kubelets()

    def forget(self) -> None:
        """Applies everything again at the next pass, whatever somebody did to it in between."""
        self._applied.clear()

    async def reconcile(self, key: Key) -> float | None:
        """In how many seconds a pass is due even if nothing changes; None for never.

        Raises RetryLater (ask again) or CallAHuman (the object cannot be read).
        """
        self._watched.check()
        seen = self._watched.clusters.get(key[1], key[0])
        if seen is None:
            await self._gone(key)
            return None
        problem = ""
        try:
            await self._apply_all(seen.cluster)
        except FixTheRequest as why:
            problem = str(why)
            log.warning("cannot be done as asked", cluster="/".join(key), why=problem)
        new = status(self._look(seen.cluster, problem), seen.status, self._now())
        if msgspec.to_builtins(new) != msgspec.to_builtins(seen.status):
            await self._say(seen.cluster, new)
        return await self._tell_kubelets(seen.cluster)

    async def abandoned(self) -> list[Key]:
        """Clusters that were deleted while no operator ran, and whose gateway still has its right."""
        found = await self._verbs.get(BINDINGS, _Bindings, {"labelSelector": CLUSTER_LABEL})
        names = [binding.metadata.name.split(":") for binding in found.items]
        keys = [(parts[1], parts[2]) for parts in names if len(parts) == 3]
        return [key for key in keys if self._watched.clusters.get(key[1], key[0]) is None]

    # --- make ---------------------------------------------------------------------------------------------------

    async def _apply_all(self, cluster: Cluster) -> None:
        objects = manifests.objects(cluster, self._settings)
        first = [each for each in objects if each["kind"] not in WORKLOADS]
        # A pod whose ConfigMap or Secret is missing would wait for the kubelet's next try.
        await asyncio.gather(ensure_secrets(self._verbs, cluster), *map(self._apply, first))
        names = manifests.host_names(cluster, self._addresses(cluster))
        later = [each for each in objects if each["kind"] in WORKLOADS]
        await asyncio.gather(self._apply(names), *map(self._apply, later))
        await self._remove_old_pools(cluster, {each["metadata"]["name"] for each in later})
        await self._show_users(cluster)

    async def _apply(self, body: Object) -> None:
        meta = body["metadata"]
        path = f"{_PATHS[body['kind']].format(meta.get('namespace'))}/{meta['name']}"
        digest = hashlib.sha256(msgspec.json.encode(body)).digest()
        if self._applied.get(path) == digest:
            return
        answer = msgspec.json.decode(await self._verbs.apply(path, body, MANAGER))
        if body["kind"] == "Service" and body["spec"].get("type") == "NodePort":
            self._node_ports[meta["namespace"], meta["labels"][CLUSTER_LABEL]] = answer["spec"]["ports"][0]["nodePort"]
        self._applied[path] = digest

    def _addresses(self, cluster: Cluster) -> dict[str, str]:
        pods = self._watched.pods.indexed((cluster.namespace, cluster.name))
        return {
            manifests.LOGIN_HOST if pod.role == "login" else pod.node: pod.address
            for pod in pods
            if (pod.role == "login" or pod.role.startswith("worker-")) and pod.address and not pod.leaving
        }

    async def _remove_old_pools(self, cluster: Cluster, wanted: set[str]) -> None:
        for work in self._watched.workloads["DaemonSet"].indexed((cluster.namespace, cluster.name)):
            if work.name not in wanted:
                await self._delete(f"{_PATHS['DaemonSet'].format(cluster.namespace)}/{work.name}")

    async def _show_users(self, cluster: Cluster) -> None:
        """A change of a pod makes its kubelet look at its ConfigMaps now instead of within a minute or two."""
        key = (cluster.namespace, cluster.name)
        digest = manifests.digest(manifests.users(cluster))
        if self._users.get(key, digest) != digest:
            for pod in self._watched.pods.indexed(key):
                await self._annotate(cluster, pod.name, "everstep.io/users", digest)
        self._users[key] = digest

    async def _tell_kubelets(self, cluster: Cluster) -> float | None:
        key = (cluster.namespace, cluster.name)
        now = self._now()
        due, again = self._kubelets.to_tell(key, self._watched.pods.indexed(key), now.timestamp())
        for name in due:
            log.info("a kubelet has not begun with its pod and is told once more", pod=f"{cluster.namespace}/{name}")
            await self._annotate(cluster, name, "everstep.io/kubelet-told-at", now.isoformat())
        return again

    async def _annotate(self, cluster: Cluster, pod: str, name: str, value: str) -> None:
        body = {"metadata": {"annotations": {name: value}}}
        with contextlib.suppress(NotFound):
            await self._verbs.merge(f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}", body)

    async def _gone(self, key: Key) -> None:
        """Kubernetes deletes what belongs to the object; the one cluster-wide part is ours to delete."""
        self._node_ports.pop(key, None)
        self._users.pop(key, None)
        self._kubelets.forget(key)
        for path in [p for p in self._applied if f"/namespaces/{key[0]}/" in p and f"/{key[1]}-" in p]:
            del self._applied[path]
        binding = f"{BINDINGS}/{manifests.binding_name(*key)}"
        self._applied.pop(binding, None)
        await self._delete(binding)

    async def _delete(self, path: str) -> None:
        try:
            await self._verbs.delete(path)
        except NotFound:
            return
        log.info("deleted", path=path)

    # --- look ---------------------------------------------------------------------------------------------------

    def _look(self, cluster: Cluster, problem: str) -> Seen:
        key = (cluster.namespace, cluster.name)
        pools = self._watched.workloads["DaemonSet"].indexed(key)
        workers = [pod for pod in self._watched.pods.indexed(key) if pod.role.startswith("worker-")]
        return Seen(
            generation=cluster.generation,
            problem=problem,
            controller=self._part(cluster, "StatefulSet", "slurmctld", "slurmctld"),
            login=self._part(cluster, "Deployment", "login", "the login node"),
            gateway=self._part(cluster, "Deployment", "gateway", "the gateway"),
            desired_nodes=sum(pool.desired for pool in pools),
            ready_nodes=sum(pool.ready for pool in pools),
            outdated_nodes=sum(pool.outdated for pool in pools if pool.current),
            not_ready=tuple(sorted({pod.node for pod in workers if pod.node and not pod.ready and not pod.leaving})),
            no_room=next((pod.no_room for pod in workers if pod.no_room and not pod.leaving), ""),
            endpoint=self._endpoint(cluster),
        )

    def _part(self, cluster: Cluster, kind: str, part: str, name: str) -> Part:
        work = self._watched.workload(cluster, kind, part)
        if work is None:
            return Part(False, f"{name} has not been created yet")
        if not work.current:
            return Part(False, f"{name} is being changed")
        pods = self._watched.pods.indexed((cluster.namespace, cluster.name))
        wrong = next((why for pod in pods if pod.role == ROLES[part] and (why := complaint(pod.last_words))), "")
        if wrong:
            return Part(work.ready >= 1, f"{name} does not start: {wrong}")
        return Part(
            work.ready >= 1, f"{name} is starting; `kubectl -n {cluster.namespace} get pods` says how far it is"
        )

    def _endpoint(self, cluster: Cluster) -> str:
        port = self._node_ports.get((cluster.namespace, cluster.name))
        pods = self._watched.pods.indexed((cluster.namespace, cluster.name))
        host = next((pod.host for pod in pods if pod.role == "login" and pod.host and not pod.leaving), "")
        return f"{host}:{port}" if host and port else ""

    async def _say(self, cluster: Cluster, new: SlurmClusterStatus) -> None:
        path = f"{CLUSTERS.replace('/slurmclusters', '')}/namespaces/{cluster.namespace}/slurmclusters/{cluster.name}"
        body = {
            "apiVersion": "everstep.io/v1alpha1",
            "kind": "SlurmCluster",
            "metadata": {"name": cluster.name, "namespace": cluster.namespace},
            "status": msgspec.to_builtins(new),
        }
        try:
            await self._verbs.apply(f"{path}/status", body, MANAGER)
        except (NotFound, InvalidInput) as why:
            log.warning("the status could not be written", cluster=f"{cluster.namespace}/{cluster.name}", why=str(why))
