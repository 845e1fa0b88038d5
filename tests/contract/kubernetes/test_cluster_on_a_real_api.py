"""The Kubernetes adapters, held to the contract of their ports by a real API server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
import pytest

from everstep.adapters.kube.caches import HEALTHS, LEASES, NODES, REMEDIATIONS, Caches
from everstep.adapters.kube.cluster import KubeCluster
from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.events import Recorder
from everstep.adapters.kube.fleet_incidents import FLEET_INCIDENTS, KubeFleetIncidents
from everstep.adapters.kube.lease import KubeLeaderLease
from everstep.adapters.kube.mirror import to_api
from everstep.adapters.kube.remediations import KubeRemediations
from everstep.adapters.kube.verbs import Verbs
from everstep.api.meta import API_VERSION
from everstep.api.node_health import NodeHealthStatus
from everstep.core.correlation.fleet import Blame, FleetRecord
from everstep.core.errors import RetryLater, Unreadable
from everstep.core.health import NodeReport
from everstep.core.policy import Mode
from everstep.testing.cluster_contract import KubernetesContract, in_service, opened
from everstep.testing.kubernetes_world import KubernetesWorld, eventually

from .api_server import ApiServer

pytestmark = pytest.mark.lab

_worlds = itertools.count()


@dataclass
class RealWorld:
    """Satisfies :class:`everstep.testing.kubernetes_world.KubernetesWorld`."""

    verbs: Verbs
    caches: Caches
    cluster: KubeCluster
    remediations: KubeRemediations
    prefix: str

    def lease(self, name: str) -> KubeLeaderLease:
        return KubeLeaderLease(self.verbs, "everstep-system", name)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def add_node(self, name: str, labels: Mapping[str, str], taints: tuple[str, ...] = ()) -> None:
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
        await self.verbs.create(
            NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        )

    async def add_pod(self, node: str, name: str, labels: Mapping[str, str] | None = None) -> None:
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        }
        meta = {"name": name, "labels": labels or {}}
        await self.verbs.create(
            "/api/v1/namespaces/everstep-system/pods",
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec},
        )

    async def report(self, report: NodeReport) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "NodeHealth",
            "metadata": {"name": report.node},
            "status": to_api(report, NodeHealthStatus),
        }
        await self.verbs.create(HEALTHS, body)
        spec = {"holderIdentity": report.node, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        meta = {"name": report.node}
        await self.verbs.create(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        )


@asynccontextmanager
async def real_world(api: ApiServer) -> AsyncIterator[RealWorld]:
    async with connect(api.kubeconfig) as http:
        verbs, caches = Verbs(http), Caches()
        async with caches.running(http):
            prefix = f"world-{next(_worlds)}-"
            cluster = KubeCluster(verbs, caches, Recorder(verbs))
            yield RealWorld(verbs, caches, cluster, KubeRemediations(verbs, caches), prefix)


class TestKubernetes(KubernetesContract):
    @pytest.fixture(autouse=True)
    def _server(self, api: ApiServer) -> None:
        self.api = api

    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[KubernetesWorld]:
        async with real_world(self.api) as world:
            yield world


def run(api: ApiServer, test) -> None:  # type: ignore[no-untyped-def]
    async def whole() -> None:
        async with real_world(api) as world:
            await test(world)

    asyncio.run(whole())


def test_eviction_that_a_budget_refuses_is_for_later(api: ApiServer) -> None:
    async def test(world: RealWorld) -> None:
        name = await in_service(world)
        labels = {"app": world.prefix + "guarded"}
        await world.add_pod(name, world.prefix + "pod", labels)
        await world.verbs.create(
            "/apis/policy/v1/namespaces/everstep-system/poddisruptionbudgets",
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": world.prefix + "guard"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
            },
        )
        # Eviction of a pod that does not run yet is always allowed, so it has to say that it does.
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await world.verbs.merge(f"/api/v1/namespaces/everstep-system/pods/{world.prefix}pod/status", {"status": status})

        async def there() -> bool:
            return bool(await world.cluster.pods_on(name))

        await eventually(world, there, "the pod is on the node")
        (pod,) = await world.cluster.pods_on(name)
        with pytest.raises(RetryLater, match="disruption budget"):
            await world.cluster.evict(pod)

    run(api, test)


def test_one_event_for_the_same_sentence_and_describe_finds_it(api: ApiServer) -> None:
    async def test(world: RealWorld) -> None:
        me = await opened(world)
        for _ in range(3):
            await world.cluster.event("Remediation", me.name, "Detected", "GPU 0 fell off the bus")
        shown = await asyncio.to_thread(api.kubectl, "describe", "remediation", me.name)
        assert shown.count("Warning  Detected") == 1

    run(api, test)


def test_what_many_nodes_share_is_kept_for_people_to_read(api: ApiServer) -> None:
    record = FleetRecord(
        "storage-10-0-0-9-12345678", Blame.STORAGE, "10.0.0.9", "host:file_server_lost", ("gpu-1", "gpu-2", "gpu-3"),
        1_796_000_000.25, "3 nodes lost 10.0.0.9: one storage incident",
    )  # fmt: skip

    async def test(world: RealWorld) -> None:
        store = KubeFleetIncidents(world.verbs)
        await store.write(record)
        assert await store.list() == [record]
        over = replace(record, nodes=("gpu-1", "gpu-2", "gpu-3", "gpu-4"), told=True, ended_at=1_796_000_900.5)
        await store.write(over)
        assert await store.list() == [over]
        await store.write(record)
        assert await store.list() == [record], "what is taken back is taken off"
        shown = await asyncio.to_thread(api.kubectl, "get", "fleetincidents")
        assert "3 nodes lost 10.0.0.9" in shown
        assert "Active" in shown
        await world.cluster.event("FleetIncident", record.name, "Notice", "3 nodes share one cause")
        assert "3 nodes share" in await asyncio.to_thread(api.kubectl, "describe", "fleetincident", record.name)
        by_hand = {"apiVersion": API_VERSION, "kind": "FleetIncident", "metadata": {"name": "by-hand"}}
        await world.verbs.create(FLEET_INCIDENTS, by_hand)
        assert await store.list() == [record], "what a person made by hand hides no other"
        await store.delete("by-hand")
        await store.delete(record.name)
        await store.delete(record.name)
        assert await store.list() == []

    run(api, test)


def test_unreadable_status_stops_and_stays_as_it_is(api: ApiServer) -> None:
    """A stage from a later version, as it is after a rollback: the schema of the CRD did not refuse it then."""

    async def test(world: RealWorld) -> None:
        me = await opened(world)
        crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/remediations.everstep.io"
        original = await world.verbs.get(crd, dict)
        path = "/spec/versions/0/schema/openAPIV3Schema/properties/status"
        loose = [
            {"op": "replace", "path": path, "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        ]
        await world.verbs.send("PATCH", crd, loose, content_type="application/json-patch+json")
        try:
            later = {"status": {"stage": "FromTheFuture"}}

            async def written() -> bool:
                try:
                    await world.verbs.merge(f"{REMEDIATIONS}/{me.name}/status", later)
                except Exception:
                    return False
                return True

            await eventually(world, written, "the loose schema is in force")

            async def noticed() -> bool:
                return bool(world.caches.remediations.unreadable)

            await eventually(world, noticed, "the unreadable incident")
            with pytest.raises(Unreadable, match=f"remediation {me.name} cannot be read"):
                await world.remediations.list()
            kept = await world.verbs.get(f"{REMEDIATIONS}/{me.name}", dict)
            assert kept["status"] == later["status"]
        finally:
            await world.verbs.merge(f"{REMEDIATIONS}/{me.name}", {"metadata": {"finalizers": None}})
            await world.verbs.delete(f"{REMEDIATIONS}/{me.name}")
            strict = [{"op": "replace", "path": path, "value": _at(original, path)}]
            await world.verbs.send("PATCH", crd, strict, content_type="application/json-patch+json")

    run(api, test)


def _at(thing: object, pointer: str) -> object:
    for part in pointer.strip("/").split("/"):
        thing = thing[int(part) if part.isdigit() else part]  # type: ignore[index]
    return thing


def test_incident_that_was_deleted_waits_for_us_and_is_forgotten_after(api: ApiServer) -> None:
    async def test(world: RealWorld) -> None:
        me = await opened(world)
        await world.verbs.delete(f"{REMEDIATIONS}/{me.name}")

        async def deleting() -> bool:
            return any(each.name == me.name and each.deleting for each in await world.remediations.list())

        await eventually(world, deleting, "deletion waits for the finalizer")
        await world.remediations.let_go(me)
        await world.remediations.let_go(me)

        async def gone() -> bool:
            return all(each.name != me.name for each in await world.remediations.list())

        await eventually(world, gone, "forgotten")

    run(api, test)


def test_spec_of_an_incident_cannot_be_changed(api: ApiServer) -> None:
    async def test(world: RealWorld) -> None:
        me = await opened(world)
        with pytest.raises(Exception, match="spec is written once"):
            await world.verbs.merge(f"{REMEDIATIONS}/{me.name}", {"spec": {"nodeName": "other"}})

    run(api, test)


def test_policy_has_one_name_and_its_defaults(api: ApiServer) -> None:
    api.kubectl("delete", "remediationpolicies", "--all")  # other tests install the chart, which brings one

    async def test(world: RealWorld) -> None:
        path = f"/apis/{API_VERSION}/remediationpolicies"
        assert (await world.remediations.policy()).mode is Mode.DRY_RUN  # what nobody ordered is not done
        body = {"apiVersion": API_VERSION, "kind": "RemediationPolicy", "spec": {"mode": "Enforce"}}
        with pytest.raises(Exception, match="the one named default"):
            await world.verbs.create(path, {**body, "metadata": {"name": "other"}})
        stored = msgspec.json.decode(await world.verbs.create(path, {**body, "metadata": {"name": "default"}}))
        try:
            assert stored["spec"]["graceSeconds"] == 120
            assert stored["spec"]["budget"] == {"maxConcurrent": 1}

            async def in_force() -> bool:
                return (await world.remediations.policy()).mode is Mode.ENFORCE

            await eventually(world, in_force, "the policy is in force")
        finally:
            await world.verbs.delete(f"{path}/default")

    run(api, test)


def test_explain_and_get_read_well(api: ApiServer) -> None:
    explained = api.kubectl("explain", "remediation.status.steps")
    assert "Which step of the promise." in explained
    assert "enum: detected, notified" in explained
