"""When a cache may be believed, and what it forgets."""

from __future__ import annotations

import pytest

from everstep.adapters.kube.reflect import Apply, Delete, Init, InitApply, InitDone, Skip
from everstep.adapters.kube.store import BLIND_SECONDS, Key, Store
from everstep.adapters.kube.views import Pod, PodMeta, PodSpec
from everstep.core.errors import Unreachable, Unreadable


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pod(name: str, node: str = "n1", version: str = "1") -> Pod:
    return Pod(PodMeta(name=name, namespace="ns", resource_version=version), PodSpec(node_name=node))


def pods(time: Time | None = None) -> Store[Pod, Pod]:
    return Store("pods", lambda each: each, index=lambda each: each.spec.node_name, now=time or Time())


def synced(*found: Pod, time: Time | None = None) -> Store[Pod, Pod]:
    store = pods(time)
    for change in (Init(), *(InitApply(each) for each in found), InitDone("9")):
        store.take(change)
    store.connected()
    return store


def test_nothing_is_read_before_a_whole_listing_has_arrived() -> None:
    store = pods()
    store.take(Init())
    store.take(InitApply(pod("p")))
    store.connected()
    with pytest.raises(Unreachable, match="has not arrived"):
        store.get("p", "ns")
    store.take(InitDone("9"))
    assert store.get("p", "ns") is not None
    assert store.get("q", "ns") is None


def test_broken_watch_is_believed_for_a_while_and_then_not() -> None:
    time = Time()
    store = synced(pod("p"), time=time)
    store.disconnected("HTTP 503")
    time.now += BLIND_SECONDS
    assert store.all()
    store.disconnected("HTTP 503")  # a further failure does not start the clock anew
    time.now += 1
    with pytest.raises(Unreachable, match=r"broken for 31 s \(HTTP 503\)"):
        store.all()
    store.connected()
    assert store.all()


def test_relisting_serves_the_old_state_until_it_is_done_and_deletes_what_vanished() -> None:
    store = synced(pod("kept"), pod("gone"))
    heard: list[tuple[Key, bool]] = []
    store.on_change(lambda key, before, after: heard.append((key, after is not None)))
    store.take(Init())
    store.take(InitApply(pod("kept")))
    assert {each.metadata.name for each in store.all()} == {"kept", "gone"}
    store.take(InitDone("20"))
    assert {each.metadata.name for each in store.all()} == {"kept"}
    assert heard == [(("ns", "gone"), False)]  # what the listing merely repeats is no news


def test_listing_that_starts_over_forgets_its_first_half() -> None:
    store = pods()
    for change in (Init(), InitApply(pod("half")), Init(), InitApply(pod("whole")), InitDone("9")):
        store.take(change)
    store.connected()
    assert {each.metadata.name for each in store.all()} == {"whole"}


def test_index_follows_changes() -> None:
    store = synced(pod("p", "n1"), pod("q", "n1"))
    store.take(Apply(pod("p", "n2", "2")))
    assert [each.metadata.name for each in store.indexed("n1")] == ["q"]
    assert [each.metadata.name for each in store.indexed("n2")] == ["p"]
    store.take(Delete("ns", "p"))
    assert store.indexed("n2") == []


def test_unreadable_object_is_neither_served_nor_taken_for_absent() -> None:
    store = synced(pod("p"))
    store.take(Skip("ns", "p", "bad phase"))
    with pytest.raises(Unreadable, match="pods p cannot be read: bad phase"):
        store.get("p", "ns")
    assert store.indexed("n1") == []
    store.take(Apply(pod("p", version="3")))
    assert store.get("p", "ns") is not None
    assert store.unreadable == {}


def test_unreadable_object_that_vanished_is_forgotten() -> None:
    store = synced()
    store.take(Skip("ns", "p", "bad"))
    for change in (Init(), InitDone("30")):
        store.take(change)
    assert store.get("p", "ns") is None


def test_projection_that_cannot_understand_makes_the_object_unreadable() -> None:
    def refuse(each: Pod) -> Pod:
        raise Unreadable("from the future")

    store: Store[Pod, Pod] = Store("pods", refuse)
    for change in (Init(), InitApply(pod("p")), InitDone("1")):
        store.take(change)
    store.connected()
    assert store.unreadable == {("ns", "p"): "from the future"}
