"""What Kubernetes says, and what the core reads: unknown stays unknown."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from everstep.adapters.kube.views import Heartbeats, Lease, Node, NodeHealth, Pod, node_report, node_view, pod_view
from everstep.core.errors import Unreadable
from everstep.core.health import Verdict


def node(**status: Any) -> Node:
    body = {
        "metadata": {"name": "gpu-1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"unschedulable": True, "taints": [{"key": "everstep.io/spare", "effect": "NoSchedule"}]},
        "status": status,
    }
    return msgspec.json.decode(json.dumps(body), type=Node)


@pytest.mark.parametrize(("said", "ready"), [("True", True), ("False", False), ("Unknown", None)])
def test_readiness(said: str, ready: bool | None) -> None:
    assert node_view(node(conditions=[{"type": "Ready", "status": said}])).ready is ready


def test_node_without_conditions_is_not_known_to_be_ready() -> None:
    view = node_view(node())
    assert view.ready is None
    assert view.gpus_allocatable == 0
    assert view.unschedulable
    assert view.taints == ("everstep.io/spare",)
    assert view.created == 1767225600.0


def test_gpus_are_counted_and_what_is_no_count_offers_none() -> None:
    view = node_view(node(allocatable={"nvidia.com/gpu": "1"}, capacity={"nvidia.com/gpu": "2"}))
    assert (view.gpus_allocatable, view.gpus_capacity) == (1, 2)
    assert node_view(node(allocatable={"nvidia.com/gpu": "many"})).gpus_allocatable == 0


def test_pod() -> None:
    body = {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"a": "b", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [{"kind": "Other"}, {"kind": "DaemonSet", "controller": True}],
        },
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": "Succeeded"},
    }
    view = pod_view(msgspec.json.decode(json.dumps(body), type=Pod))
    assert (view.owner_kind, view.finished, view.terminating, view.node) == ("DaemonSet", True, True, "gpu-1")
    assert view.annotations == {"a": "b"}


def test_report_and_report_that_cannot_be_understood() -> None:
    def health(status: object) -> NodeHealth:
        return msgspec.json.decode(json.dumps({"metadata": {"name": "gpu-1"}, "status": status}), type=NodeHealth)

    assert node_report(health({"verdict": "Faulty", "bootID": "b"})).verdict is Verdict.FAULTY
    for bad in (None, {}, {"verdict": "Splendid"}):
        with pytest.raises(Unreadable):
            node_report(health(bad))


def lease(renewed: str | None) -> Lease:
    body = {"metadata": {"name": "gpu-1"}, "spec": {"renewTime": renewed}}
    return msgspec.json.decode(json.dumps(body), type=Lease)


def test_heartbeat_counts_from_the_moment_it_was_seen_whatever_the_agents_clock_says() -> None:
    now = 1767225600.0  # 2026-01-01T00:00:00Z
    heartbeats = Heartbeats(now=lambda: now)
    assert heartbeats.seen(lease(None)) is None
    assert heartbeats.seen(lease("2025-12-31T23:59:50.000000Z")) == now - 10  # the first: as the Lease says
    now += 5
    assert heartbeats.seen(lease("2025-12-31T23:00:00.000000Z")) == now  # renewed, by a clock that is an hour late
    now += 5
    assert heartbeats.seen(lease("2025-12-31T23:00:00.000000Z")) == now - 5  # the same renewal


def test_heartbeat_is_never_in_the_future() -> None:
    now = 1767225600.0
    assert Heartbeats(now=lambda: now).seen(lease("2027-01-01T00:00:00.000000Z")) == now
