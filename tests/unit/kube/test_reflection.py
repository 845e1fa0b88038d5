"""The reflection as a pure machine: any order of faults ends in the server's state, and never in a hot loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.adapters.kube.reflect import (
    LONGEST_DELAY,
    Apply,
    Delete,
    FetchPage,
    Init,
    InitApply,
    InitDone,
    OpenWatch,
    Pause,
    Reflection,
    Skip,
)
from everstep.adapters.kube.store import Store
from everstep.adapters.kube.views import Node


def obj(name: str, version: int) -> dict[str, object]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def page(version: int, *items: dict[str, object], token: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(version), "continue": token}, "items": items}).encode()


def line(kind: str, thing: dict[str, object]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode()


def gone() -> bytes:
    return line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})


def listed(version: int = 100) -> Reflection[Node]:
    """One that has listed node ``a`` and wants to watch."""
    reflection = Reflection(Node, jitter=lambda: 1.0)
    assert reflection.next() == FetchPage("")
    reflection.page(page(version, obj("a", 90)))
    assert reflection.next() == OpenWatch(str(version))
    return reflection


def test_listing_says_init_items_done() -> None:
    reflection = Reflection(Node, jitter=lambda: 1.0)
    reflection.next()
    first = reflection.page(page(7, obj("a", 1), token="t"))
    assert [type(change) for change in first] == [Init, InitApply]
    assert reflection.next() == FetchPage("t")
    assert [type(change) for change in reflection.page(page(7, obj("b", 2)))] == [InitApply, InitDone]


def test_watch_says_apply_and_delete_and_keeps_quiet_about_bookmarks() -> None:
    reflection = listed()
    (added,) = reflection.line(line("ADDED", obj("b", 101)))
    assert isinstance(added, Apply)
    assert reflection.line(line("DELETED", obj("b", 102))) == [Delete("", "b")]
    assert reflection.line(line("BOOKMARK", obj("", 150))) == []
    reflection.ended(60)
    assert reflection.next() == OpenWatch("150")


def test_delays_double_up_to_the_longest_and_start_anew_after_progress() -> None:
    reflection = listed()
    pauses = []
    for _ in range(10):
        reflection.broken()
        pauses.append(reflection.next())
        assert reflection.next() == OpenWatch("100")
    assert pauses[:3] == [Pause(0.1), Pause(0.2), Pause(0.4)]
    assert pauses[-1] == Pause(LONGEST_DELAY)
    reflection.line(line("ADDED", obj("b", 101)))
    reflection.broken()
    assert reflection.next() == Pause(0.1)


def test_retry_after_is_obeyed_from_header_and_from_the_stream() -> None:
    reflection = listed()
    reflection.refused(429, retry_after=7)
    assert reflection.next() == Pause(7)
    reflection.next()
    reflection.line(line("ERROR", {"code": 429, "details": {"retryAfterSeconds": 3}}))
    assert reflection.over
    assert reflection.next() == Pause(3)


def test_third_hollow_watch_in_a_row_lists_again() -> None:
    reflection = listed()
    for _ in range(3):
        reflection.ended(0.01)
        assert isinstance(reflection.next(), Pause)
        instruction = reflection.next()
    assert instruction == FetchPage("")


def test_quiet_watch_that_lasted_is_not_hollow() -> None:
    reflection = listed()
    for _ in range(5):
        reflection.ended(290)
        assert reflection.next() == OpenWatch("100")


def test_object_that_cannot_be_decoded_is_named_and_its_version_counts() -> None:
    reflection = listed()
    bad = {**obj("bad", 120), "spec": {"unschedulable": "perhaps"}}
    (skip,) = reflection.line(line("MODIFIED", bad))
    assert isinstance(skip, Skip)
    assert skip.name == "bad"
    reflection.ended(10)
    assert reflection.next() == OpenWatch("120")
    assert reflection.line(line("DELETED", bad)) == [Delete("", "bad")]


def test_page_that_is_no_list_is_asked_for_again_after_a_pause() -> None:
    reflection = Reflection(Node, jitter=lambda: 1.0)
    reflection.next()
    assert reflection.page(b"<html>") == []
    assert reflection.next() == Pause(0.1)
    assert reflection.next() == FetchPage("")


# --- any script of faults -----------------------------------------------------------------------------------------

NAMES = ("a", "b", "c", "d")
FAULTS = ("refuse410", "event410", "event500", "refuse503", "cut", "close", "hollow", "garbage", "bookmark")


@dataclass
class Server:
    """A model of the API server: a history of writes, and a version before which it remembers nothing."""

    history: list[tuple[int, str, dict[str, object]]] = field(default_factory=list)
    objects: dict[str, dict[str, object]] = field(default_factory=dict)
    version: int = 10
    compacted: int = 0

    def write(self, name: str, present: bool) -> None:
        if not present and name not in self.objects:
            return
        self.version += 1
        thing = obj(name, self.version)
        kind = ("MODIFIED" if name in self.objects else "ADDED") if present else "DELETED"
        self.history.append((self.version, kind, thing))
        if present:
            self.objects[name] = thing
        else:
            del self.objects[name]


def serve_watch(server: Server, reflection: Reflection[Node], store: Store[Node, str], since: int, fault: str) -> None:
    if fault == "hollow":
        reflection.ended(0.0)
        return
    if fault in ("refuse410", "refuse503") or since < server.compacted:
        reflection.refused(503 if fault == "refuse503" else 410)
        return
    for version, kind, thing in server.history:
        if version > since:
            for change in reflection.line(line(kind, thing)):
                store.take(change)
    LAST_WORDS[fault](server, reflection)


def say_bookmark_and_end(server: Server, reflection: Reflection[Node]) -> None:
    reflection.line(line("BOOKMARK", obj("", server.version)))
    reflection.ended(0.01)


LAST_WORDS: dict[str, Callable[[Server, Reflection[Node]], object]] = {
    "event410": lambda server, reflection: reflection.line(gone()),
    "event500": lambda server, reflection: reflection.line(line("ERROR", {"code": 500})),
    "garbage": lambda server, reflection: reflection.line(b'{"type":"MODI'),
    "cut": lambda server, reflection: reflection.broken(),
    "bookmark": say_bookmark_and_end,
    "close": lambda server, reflection: reflection.ended(290),
}


step = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("fault"), st.sampled_from(FAULTS), st.just(False)),
    st.tuples(st.just("compact"), st.just(""), st.just(False)),
)


def serve(server: Server, reflection: Reflection[Node], store: Store[Node, str], fault: str) -> None:
    """Lets the reflection do what it wants, once, pauses aside."""
    instruction = reflection.next()
    if isinstance(instruction, Pause):
        instruction = reflection.next()
    match instruction:
        case FetchPage(token):
            names = sorted(server.objects)
            half = len(names) // 2
            body = (
                page(server.version, *(server.objects[n] for n in names[half:]))
                if token
                else page(server.version, *(server.objects[n] for n in names[:half]), token="rest")
            )
            for change in reflection.page(body):
                store.take(change)
        case OpenWatch(version):
            serve_watch(server, reflection, store, int(version), fault)
        case other:
            raise AssertionError(f"two pauses in a row: {other}")


@settings(max_examples=300, deadline=None)
@given(st.lists(step, max_size=40))
def test_any_script_of_faults_ends_in_the_servers_state(script: list[tuple[str, str, bool]]) -> None:
    server = Server()
    reflection: Reflection[Node] = Reflection(Node, jitter=lambda: 1.0)
    store: Store[Node, str] = Store("nodes", lambda view: view.metadata.resource_version)
    listing = False
    for what, detail, present in script:
        match what:
            case "write":
                if not listing:  # a listing is one snapshot; the model does not keep an old one for its second page
                    server.write(detail, present)
            case "compact":
                server.compacted = server.version
            case _:
                serve(server, reflection, store, detail)
        listing = reflection.listing
    for _ in range(6):
        serve(server, reflection, store, "close")
    store.connected()
    assert dict(store.items()) == {
        ("", name): thing["metadata"]["resourceVersion"] for name, thing in server.objects.items()
    }


def test_view_decodes_only_what_it_names() -> None:
    raw = json.dumps({**obj("a", 1), "status": {"images": [{"names": ["x"] * 50}]}}).encode()
    assert msgspec.json.decode(raw, type=Node).metadata.name == "a"
