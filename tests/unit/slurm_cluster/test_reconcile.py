"""Passes of the operator against a small API server in memory: what it asks for, and what it leaves alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest

from everstep.adapters.kube.reflect import Delete, Init, InitApply, InitDone
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.slurm_cluster import SlurmClusterSpec
from everstep.apps.slurm_operator.reconcile import BINDINGS, Reconciler
from everstep.apps.slurm_operator.watched import ClusterView, Watched
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

    def reconcile(self, times: int = 1) -> list[tuple[str, str]]:
        """Runs passes in one process; returns the requests of the last."""

        async def run() -> None:
            transport = httpx2.MockTransport(self.api.answer)
            async with httpx2.AsyncClient(transport=transport, base_url="http://api") as http:
                reconciler = Reconciler(Verbs(http), self.watched, SETTINGS, lambda: NOW)
                for _ in range(times):
                    self.api.requests.clear()
                    await reconciler.reconcile(KEY)

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
