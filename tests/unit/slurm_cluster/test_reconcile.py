"""Passes of the operator against a small API server in memory: what it asks for, and what it leaves alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest

from everstep.adapters.kube.reflect import Delete, Init, InitApply, InitDone
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.slurm_cluster import SlurmClusterSpec
from everstep.apps.slurm_operator.reconcile import BINDINGS, Reconciler
from everstep.apps.slurm_operator.watched import ClusterView, Watched, _PodView, _WorkloadView
from everstep.core.errors import Unreachable
from tests.unit.slurm_cluster.examples import SETTINGS, SPEC

KEY = ("slurm", "demo")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Api:
    """Answers every request as an API server would; keeps what was written."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.requests.append((request.method, path))
        match request.method:
            case "GET" | "DELETE" if path not in self.objects:
                return httpx2.Response(404, json={"reason": "NotFound", "message": "not found"})
            case "GET":
                return httpx2.Response(200, json=self.objects[path])
            case "DELETE":
                return httpx2.Response(200, json=self.objects.pop(path))
        body = msgspec.json.decode(request.content)
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
        if body.get("kind") == "Service" and body["spec"].get("type") == "NodePort":
            body["spec"]["ports"][0].setdefault("nodePort", 30123)
        self.objects[path] = body
        return httpx2.Response(200, json=body)

    def names(self, kind: str) -> set[str]:
        return {path.rsplit("/", 1)[1] for path, body in self.objects.items() if body.get("kind") == kind}


class Bench:
    """One reconciler with its watches fed by hand."""

    def __init__(self) -> None:
        self.api = Api()
        self.changed: list[tuple[str, str]] = []
        self.watched = Watched(self.changed.append)
        for store in self.watched._stores():
            store.take(Init())
            store.take(InitDone("1"))
            store.connected()

    def ask(self, **change: Any) -> None:
        """The user writes the SlurmCluster."""
        meta = ObjectMeta(name="demo", namespace="slurm", uid="u", generation=1)
        view = ClusterView(meta, msgspec.Raw(msgspec.json.encode({**SPEC, **change})))
        self.watched.clusters.take(InitApply(view))

    def shows(self, kind: str, name: str, role: str, **body: Any) -> None:
        """Kubernetes shows a pod, or a workload of ``kind``."""
        labels = {"everstep.io/slurm-cluster": "demo", "everstep.io/slurm-role": role}
        seen = {"metadata": {"name": name, "namespace": "slurm", "labels": labels} | body.pop("metadata", {}), **body}
        if kind == "Pod":
            self.watched.pods.take(InitApply(msgspec.convert(seen, _PodView)))
        else:
            self.watched.workloads[kind].take(InitApply(msgspec.convert(seen, _WorkloadView)))

    def status(self) -> dict[str, Any]:
        """What the SlurmCluster says of itself after a pass."""
        self.reconcile()
        (status,) = [body["status"] for path, body in self.api.objects.items() if path.endswith("/status")]
        return dict(status)

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and message of one condition after a pass."""
        found = next(c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["message"]

    def reconcile(self, times: int = 1, seconds: float = 0) -> list[tuple[str, str]]:
        """Runs passes in one process, so many seconds apart; returns the requests of the last."""
        now = NOW

        async def run() -> None:
            nonlocal now
            transport = httpx2.MockTransport(self.api.answer)
            async with httpx2.AsyncClient(transport=transport, base_url="http://api") as http:
                reconciler = Reconciler(Verbs(http), self.watched, SETTINGS, lambda: now)
                for _ in range(times):
                    self.api.requests.clear()
                    await reconciler.reconcile(KEY)
                    now += timedelta(seconds=seconds)

        asyncio.run(run())
        return list(self.api.requests)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_everything_is_made(bench: Bench) -> None:
    bench.ask()
    bench.reconcile()
    assert bench.api.names("Secret") == {"demo-keys", "demo-host-keys"}
    assert bench.api.names("StatefulSet") == {"demo-slurmctld"}
    assert bench.api.names("DaemonSet") == {"demo-slurmd-main"}
    assert bench.api.names("Deployment") == {"demo-login", "demo-gateway"}


def test_a_second_pass_writes_only_the_status(bench: Bench) -> None:
    bench.ask()
    writes = [(method, path) for method, path in bench.reconcile(times=2) if method != "GET"]
    assert [path.rsplit("/", 1)[1] for _, path in writes] == ["status"]


def test_keys_are_never_made_twice(bench: Bench) -> None:
    bench.ask()
    bench.reconcile()
    path = "/api/v1/namespaces/slurm/secrets/demo-keys"
    before = bench.api.objects[path]
    assert set(before["data"]) == {"slurm.key", "jwt.key"}
    bench.reconcile()  # another process, that remembers nothing
    assert bench.api.objects[path] is before


def test_munge_is_keyed_on_the_old_release(bench: Bench) -> None:
    bench.ask(slurmVersion="22.05")
    bench.reconcile()
    assert set(bench.api.objects["/api/v1/namespaces/slurm/secrets/demo-keys"]["data"]) == {"munge.key", "jwt.key"}


def test_another_kind_of_key_is_refused_and_not_replaced(bench: Bench) -> None:
    bench.ask(slurmVersion="22.05")
    bench.reconcile()
    bench.ask(slurmVersion="24.11")
    bench.reconcile()
    assert set(bench.api.objects["/api/v1/namespaces/slurm/secrets/demo-keys"]["data"]) == {"munge.key", "jwt.key"}
    (status,) = [body["status"] for path, body in bench.api.objects.items() if path.endswith("/status")]
    assert "make a new SlurmCluster" in status["message"]


def test_a_refused_spec_changes_nothing_and_is_said(bench: Bench) -> None:
    bench.ask(config={"slurm": {"KillWait": "5"}})
    bench.reconcile()
    (status,) = [body["status"] for path, body in bench.api.objects.items() if path.endswith("/status")]
    assert bench.api.names("StatefulSet") == set()
    refused = next(c for c in status["conditions"] if c["type"] == "ConfigApplied")
    assert (refused["status"], "KillWait" in refused["message"]) == ("False", True)


def test_a_cluster_that_is_gone_leaves_no_right_behind(bench: Bench) -> None:
    bench.ask()
    bench.reconcile()
    assert bench.api.names("ClusterRoleBinding") == {"everstep-slurm-gateway:slurm:demo"}
    bench.watched.clusters.take(Delete("slurm", "demo"))
    bench.reconcile()
    assert bench.api.names("ClusterRoleBinding") == set()


def test_what_was_deleted_while_no_operator_ran_is_found(bench: Bench) -> None:
    bench.ask()
    bench.api.objects[BINDINGS] = {
        "items": [
            {"metadata": {"name": "everstep-slurm-gateway:slurm:demo"}},
            {"metadata": {"name": "everstep-slurm-gateway:slurm:old"}},
        ]
    }

    async def run() -> list[tuple[str, str]]:
        transport = httpx2.MockTransport(bench.api.answer)
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as http:
            return await Reconciler(Verbs(http), bench.watched, SETTINGS, lambda: NOW).abandoned()

    assert asyncio.run(run()) == [("slurm", "old")]


def test_nothing_is_done_on_a_view_that_is_not_to_be_believed() -> None:
    bench = Bench()
    bench.watched = Watched(bench.changed.append)  # never listed
    with pytest.raises(Unreachable):
        bench.reconcile()
    assert bench.api.requests == []


def test_the_example_is_a_valid_spec() -> None:
    assert msgspec.convert(SPEC, SlurmClusterSpec).slurm_version == "24.11"


def test_a_key_that_slurm_does_not_know_is_refused_and_the_cluster_runs_on(bench: Bench) -> None:
    """slurmctld and every client of it would refuse the whole file: nothing of it may get that far."""
    bench.ask()
    bench.reconcile()
    before = dict(bench.api.objects)
    bench.ask(config={"slurm": {"SchedulerParamters": "bf_interval=5"}})
    assert bench.condition("ConfigApplied") == (
        "False",
        "config.slurm.SchedulerParamters: Slurm 24.11 has no such key and would not start; "
        "did you mean SchedulerParameters?",
    )
    after = {path: body for path, body in bench.api.objects.items() if not path.endswith("/status")}
    assert after == {path: body for path, body in before.items() if not path.endswith("/status")}


def test_what_keeps_slurmctld_from_starting_is_said_in_its_own_words(bench: Bench) -> None:
    bench.ask(config={"slurm": {"SchedulerType": "sched/none"}})
    bench.shows("StatefulSet", "demo-slurmctld", "controller")
    assert "is starting" in bench.condition("ControllerReady")[1]
    log = "slurmctld: error: Couldn't find sched/none\nslurmctld: fatal: failed to initialize sched plugin\n"
    ended = {"terminated": {"exitCode": 1, "message": log}}
    bench.shows("Pod", "demo-slurmctld-0", "controller", status={"containerStatuses": [{"lastState": ended}]})
    assert bench.condition("ControllerReady") == (
        "False",
        "slurmctld does not start: error: Couldn't find sched/none; fatal: failed to initialize sched plugin",
    )
    runs = {"containerStatuses": [{"lastState": ended, "ready": True}]}
    bench.shows("Pod", "demo-slurmctld-0", "controller", status=runs)
    assert "does not start" not in bench.condition("ControllerReady")[1]


def test_nobody_waits_for_a_node_that_was_retired(bench: Bench) -> None:
    """Its pod stays for a while, because nothing is left there to end it."""
    bench.ask()
    bench.shows("DaemonSet", "demo-slurmd-main", "", status={"desiredNumberScheduled": 2, "numberReady": 1})
    bench.shows("Pod", "demo-slurmd-main-a", "worker-main", spec={"nodeName": "gpu-3"})
    leaving = {"name": "demo-slurmd-main-b", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    labels = {"everstep.io/slurm-cluster": "demo", "everstep.io/slurm-role": "worker-main"}
    gone = {"namespace": "slurm", "labels": labels, **leaving}
    bench.shows("Pod", "", "worker-main", metadata=gone, spec={"nodeName": "gpu-1"})
    assert bench.condition("NodesReady") == ("False", "1 of 2 nodes are in Slurm; waiting for gpu-3")


def test_a_slurmd_without_room_is_said_in_the_schedulers_words(bench: Bench) -> None:
    bench.ask()
    bench.shows("DaemonSet", "demo-slurmd-main", "", status={"desiredNumberScheduled": 2, "numberReady": 0})
    words = (
        "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't match Pod's node affinity/selector."
    )
    waits = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": words}]}
    bench.shows("Pod", "demo-slurmd-main-a", "worker-main", status=waits)
    said = f"0 of 2 nodes are in Slurm; a slurmd finds no room: {words.rstrip('.')}"
    assert bench.condition("NodesReady") == ("False", said)
    found = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    bench.shows("Pod", "demo-slurmd-main-a", "worker-main", spec={"nodeName": "gpu-1"}, status=found)
    assert bench.condition("NodesReady") == ("False", "0 of 2 nodes are in Slurm; waiting for gpu-1")


def test_a_kubelet_that_does_not_begin_with_its_pod_is_told_of_it_again(bench: Bench) -> None:
    bench.ask()
    bench.shows("Pod", "demo-slurmd-main-a", "worker-main", spec={"nodeName": "gpu-3"})
    pod = ("PATCH", "/api/v1/namespaces/slurm/pods/demo-slurmd-main-a")
    assert pod not in bench.reconcile(2), "it has had no time yet"
    assert pod in bench.reconcile(2, seconds=1.5)
    bench.shows("Pod", "demo-slurmd-main-a", "worker-main", spec={"nodeName": "gpu-3"}, status={"podIP": "10.0.0.7"})
    assert pod not in bench.reconcile(2, seconds=1.5)
