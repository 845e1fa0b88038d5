"""What the scripted server plays, provoked on the real one: a restart of the API server, and a compaction of etcd."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.store import Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.views import Node
from everstep.core.errors import Unreachable

from .api_server import ApiServer

pytestmark = pytest.mark.lab

NODES = "/api/v1/nodes"
WITHIN = 30.0


async def add(http: httpx2.AsyncClient, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"reflector": "test"}}}
    (await http.post(NODES, json=body)).raise_for_status()


async def remove(http: httpx2.AsyncClient, name: str) -> None:
    (await http.delete(f"{NODES}/{name}")).raise_for_status()


class Follower:
    """A store that is being followed, and a way to wait for what it should hold."""

    def __init__(self) -> None:
        self.store: Store[Node, str] = Store("nodes", lambda view: view.metadata.resource_version)
        self._changed = asyncio.Event()
        self.store.on_change(lambda key, before, after: self._changed.set())

    def names(self) -> set[str]:
        return {name for (_, name), _ in self.store.items()}

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN):
            while not self.store.synced or not done():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 1.0)


@asynccontextmanager
async def following(http: httpx2.AsyncClient, server_timeout: int = 290) -> AsyncIterator[Follower]:
    follower = Follower()
    selector = {"labelSelector": "reflector=test"}
    task = asyncio.create_task(follow(http, NODES, Node, follower.store, selector, server_timeout=server_timeout))
    try:
        yield follower
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_survives_a_kill_of_the_api_server(api: ApiServer) -> None:
    async def go() -> None:
        async with connect(api.kubeconfig) as http, following(http) as follower:
            for name in ("restart-a", "restart-b"):
                await add(http, name)
            await follower.until(lambda: {"restart-a", "restart-b"} <= follower.names())
            await asyncio.to_thread(api.kill, "kube-apiserver")
            await follower.until(lambda: bool(follower.store.trouble))
            await asyncio.to_thread(api.start_api)
            await remove(http, "restart-a")
            await add(http, "restart-c")
            await follower.until(
                lambda: {"restart-b", "restart-c"} == follower.names() & {f"restart-{x}" for x in "abc"}
            )
            for name in ("restart-b", "restart-c"):
                await remove(http, name)
            await follower.until(lambda: not follower.names())

    asyncio.run(go())


def test_sees_what_vanished_while_etcd_forgot_the_versions_between(api: ApiServer) -> None:
    """A node is deleted, and the deletion compacted away, while there is no watch: only a new list shows it."""

    async def go() -> None:
        async with connect(api.kubeconfig) as http, following(http) as follower:
            for name in ("compact-a", "compact-b"):
                await add(http, name)
            await follower.until(lambda: {"compact-a", "compact-b"} <= follower.names())
            await asyncio.to_thread(api.kill, "kube-apiserver")
            await follower.until(lambda: bool(follower.store.trouble))
            await asyncio.to_thread(_delete_behind_its_back, api, "compact-a")
            await asyncio.to_thread(api.start_api)
            await follower.until(lambda: follower.names() == {"compact-b"})
            await remove(http, "compact-b")
            await follower.until(lambda: not follower.names())

    asyncio.run(go())


def _delete_behind_its_back(api: ApiServer, name: str) -> None:
    """Deletes a node's key in etcd, writes more, and compacts: the version that was followed is gone for good."""

    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    with httpx2.Client(base_url=f"http://127.0.0.1:{api.etcd_port}/v3/kv/", trust_env=False) as http:
        gone = http.post("deleterange", json={"key": encoded(f"/registry/minions/{name}")}).raise_for_status().json()
        assert gone["deleted"] == "1"
        http.post("put", json={"key": encoded("/everstep-test/later"), "value": encoded("x")}).raise_for_status()
    api.compact()


def test_watch_that_the_server_ends_by_its_own_timeout_goes_on(api: ApiServer) -> None:
    async def go() -> None:
        async with connect(api.kubeconfig) as http, following(http, server_timeout=1) as follower:
            await follower.until(lambda: True)
            for turn in range(3):
                await asyncio.sleep(1.2)  # longer than a watch lives: each node comes in another one
                await add(http, f"timeout-{turn}")
                await follower.until(lambda: f"timeout-{turn}" in follower.names())  # noqa: B023
            for turn in range(3):
                await remove(http, f"timeout-{turn}")
            await follower.until(lambda: not follower.names())

    asyncio.run(go())


def test_cache_is_not_believed_while_the_api_server_is_away_for_long(api: ApiServer) -> None:
    async def go() -> None:
        now = [0.0]
        store: Store[Node, str] = Store("nodes", lambda view: view.metadata.name, now=lambda: now[0])
        async with connect(api.kubeconfig) as http:
            task = asyncio.create_task(follow(http, NODES, Node, store))
            await asyncio.wait_for(store.wait_synced(), WITHIN)
            await asyncio.to_thread(api.kill, "kube-apiserver")
            try:
                async with asyncio.timeout(WITHIN):
                    while not store.trouble:
                        await asyncio.sleep(0.05)
                now[0] += 31
                with pytest.raises(Unreachable, match="broken for 31 s"):
                    store.all()
            finally:
                await asyncio.to_thread(api.start_api)
            async with asyncio.timeout(WITHIN):
                while store.trouble:
                    await asyncio.sleep(0.05)
            store.all()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(go())
