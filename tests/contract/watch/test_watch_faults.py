"""The ten ways in which a watch breaks, against the real driver and cache over real sockets.

Pass means: what changed is seen, what vanished is deleted, the watch goes on, and the server is not flooded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx2
import pytest

from everstep.adapters.kube.store import Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.views import Node
from everstep.testing.scripted_api import (
    GONE,
    Connection,
    Reply,
    ScriptedApi,
    bookmark,
    event,
    failure,
    listing,
    node,
    refuse,
    stream,
)

MOST_REQUESTS = 15  # in a scenario of a few seconds; the clients that spin sent thousands


def version(view: Node) -> str:
    return view.metadata.resource_version


async def follow_until(
    api: ScriptedApi, done: Callable[[dict[str, str]], bool], linger: float = 0.0
) -> tuple[dict[str, str], Store[Node, str]]:
    """Follows until ``done(versions by name)``, at most 8 s; then ``linger`` s more, for what must not happen."""
    store: Store[Node, str] = Store("nodes", version)
    changed = asyncio.Event()
    store.on_change(lambda key, before, after: changed.set())

    def held() -> dict[str, str]:
        return {name: found for (_, name), found in store.items()} if store.synced else {}

    async with api.running(), httpx2.AsyncClient(base_url=api.url, trust_env=False) as http:
        task = asyncio.create_task(follow(http, "/api/v1/nodes", Node, store))
        try:
            async with asyncio.timeout(8):
                while not done(held()):
                    changed.clear()
                    await changed.wait()
            await asyncio.sleep(linger)
        except TimeoutError:
            pytest.fail(f"still {held()} after 8 s; the server was asked {api.asked}")
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    assert len(api.asked) <= MOST_REQUESTS, f"{len(api.asked)} requests: a hot loop"
    return held(), store


def stale_then(first: Reply, *, lasting: Reply) -> Reply:
    """Answers version 100 with ``first`` for ever, as a server that has compacted it; any other with ``lasting``."""

    async def reply(connection: Connection) -> None:
        await (first if connection.query.get("resourceVersion") == "100" else lasting)(connection)

    return reply


ALIVE = stream(event("MODIFIED", node("a", 201)))
ONE_LEFT = [listing(100, node("a", 90), node("b", 91)), listing(200, node("a", 90))]
ALONE = [listing(100, node("a", 90))]


def run(api: ScriptedApi, expected: dict[str, str], linger: float = 0.0) -> None:
    held, _ = asyncio.run(follow_until(api, lambda seen: seen == expected, linger))
    assert held == expected


def test_01_status_410_lists_again_and_deletes_what_vanished() -> None:
    api = ScriptedApi(ONE_LEFT, [stale_then(refuse(410, GONE), lasting=ALIVE)])
    run(api, {"a": "201"})
    assert len(api.requests("list")) == 2


def test_02_error_event_410_lists_again_and_deletes_what_vanished() -> None:
    api = ScriptedApi(ONE_LEFT, [stale_then(stream(event("ERROR", GONE), then="close"), lasting=ALIVE)])
    run(api, {"a": "201"})
    assert len(api.requests("list")) == 2


def test_03_clean_close_resumes_from_the_last_version_without_listing() -> None:
    api = ScriptedApi(
        ALONE, [stream(event("MODIFIED", node("a", 101)), then="close"), stream(event("MODIFIED", node("a", 102)))]
    )
    run(api, {"a": "102"})
    assert len(api.requests("list")) == 1
    assert [asked.query["resourceVersion"] for asked in api.requests("watch")] == ["100", "101"]


def test_04_bookmark_then_close_resumes_from_the_bookmark() -> None:
    api = ScriptedApi(
        ALONE,
        [
            stream(event("MODIFIED", node("a", 101)), bookmark(150), then="close"),
            stream(event("MODIFIED", node("a", 151))),
        ],
    )
    run(api, {"a": "151"})
    assert api.requests("watch")[1].query["resourceVersion"] == "150"
    assert all(asked.query["allowWatchBookmarks"] == "true" for asked in api.requests("watch"))


def test_05_status_429_as_plain_text_is_retried_after_what_the_server_asked() -> None:
    api = ScriptedApi(
        ALONE,
        [refuse(429, "Too many requests, please try again later.\n", {"Retry-After": "1"}), ALIVE],
    )
    started = asyncio.run(_timed(api, {"a": "201"}))
    assert started >= 1.0


async def _timed(api: ScriptedApi, expected: dict[str, str]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await follow_until(api, lambda seen: seen == expected)
    return loop.time() - began


def test_06_cut_connection_resumes() -> None:
    api = ScriptedApi(
        ALONE, [stream(event("MODIFIED", node("a", 101)), then="cut"), stream(event("MODIFIED", node("a", 102)))]
    )
    run(api, {"a": "102"})


def test_07_server_restart_resumes() -> None:
    api = ScriptedApi(
        ALONE,
        [stream(event("MODIFIED", node("a", 101)), then="restart"), stream(event("MODIFIED", node("a", 102)))],
        downtime=0.8,
    )
    run(api, {"a": "102"})


def test_08_error_event_500_is_retried_from_the_same_version() -> None:
    broken = event("ERROR", failure(500, "InternalError", "etcdserver: leader changed"))
    api = ScriptedApi(ALONE, [stream(broken, then="close"), ALIVE])
    run(api, {"a": "201"})
    assert len(api.requests("list")) == 1


def test_09_status_503_is_retried() -> None:
    api = ScriptedApi(ALONE, [refuse(503, failure(503, "ServiceUnavailable", "apiserver not ready")), ALIVE])
    run(api, {"a": "201"})


def test_10_stale_version_answered_by_nothing_backs_off_and_lists_again() -> None:
    api = ScriptedApi(
        [listing(100, node("a", 90)), listing(200, node("a", 90))], [stale_then(stream(then="close"), lasting=ALIVE)]
    )
    run(api, {"a": "201"})
    assert len(api.requests("list")) == 2


def test_server_that_only_ever_answers_nothing_is_not_flooded() -> None:
    api = ScriptedApi(ALONE, [stream(then="close")])
    run(api, {"a": "90"}, linger=3.0)


def test_server_that_always_says_gone_is_not_flooded() -> None:
    api = ScriptedApi(ALONE, [stream(event("ERROR", GONE), then="close")])
    run(api, {"a": "90"}, linger=3.0)


def test_pages_are_joined_and_a_token_that_expired_starts_the_listing_again() -> None:
    api = ScriptedApi(
        [
            listing(100, node("old", 80), token="next"),
            failure(410, "Expired", "The provided continue parameter is too old"),
            listing(120, node("a", 90), token="next"),
            listing(120, node("b", 91)),
        ],
        [stream()],
    )
    run(api, {"a": "90", "b": "91"})
    assert [asked.query.get("continue") for asked in api.requests("list")] == [None, "next", None, "next"]


def test_object_that_cannot_be_decoded_is_skipped_and_told_and_spoils_nothing_else() -> None:
    bad = {**node("bad", 92), "spec": {"unschedulable": "perhaps"}}
    api = ScriptedApi([listing(100, node("a", 90), bad, node("b", 91))], [stream(event("MODIFIED", node("a", 101)))])
    _, store = asyncio.run(follow_until(api, lambda seen: seen == {"a": "101", "b": "91"}))
    assert list(store.unreadable) == [("", "bad")]
    assert "unschedulable" in store.unreadable["", "bad"]


def test_line_that_is_cut_off_is_dropped_and_read_whole_after_the_reconnect() -> None:
    async def cut_in_the_middle(connection: Connection) -> None:
        await connection.start()
        await connection.send(b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"1')
        connection.cut()

    api = ScriptedApi(ALONE, [cut_in_the_middle, ALIVE])
    run(api, {"a": "201"})
    assert api.requests("watch")[1].query["resourceVersion"] == "100"
