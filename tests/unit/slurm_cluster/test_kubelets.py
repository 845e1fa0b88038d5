"""A kubelet that put a worker off for ten seconds is told of it again: soon, seldom, and nobody else is."""

from __future__ import annotations

from dataclasses import replace

from everstep.apps.slurm_operator.kubelets import Kubelets
from everstep.apps.slurm_operator.watched import SlurmPod

KEY = ("slurm", "demo")
WAITING = SlurmPod(KEY, "w", role="worker-main", node="gpu-3", address="", host="", ready=False, leaving=False)


def told(pods: list[SlurmPod], seconds: float) -> list[float]:
    """When, if somebody asks whenever the last answer said so."""
    kubelets, now, when = Kubelets(), 0.0, []
    while now < seconds:
        due, again = kubelets.to_tell(KEY, pods, now)
        when += [now] * len(due)
        if again is None:
            break
        now += again
    return when


def test_after_a_second_then_less_often_and_then_no_more() -> None:
    assert told([WAITING], 1000) == [1.0, 2.0, 4.0]


def test_each_worker_for_itself() -> None:
    assert told([WAITING, replace(WAITING, name="v")], 3) == [1.0, 1.0, 2.0, 2.0]


def test_not_for_a_pod_that_has_begun_or_has_no_node_or_leaves_or_is_no_worker() -> None:
    others = [
        replace(WAITING, address="10.0.0.7"),
        replace(WAITING, node=""),
        replace(WAITING, leaving=True),
        replace(WAITING, role="login"),
    ]
    assert told(others, 1000) == []


def test_one_that_began_is_forgotten() -> None:
    kubelets = Kubelets()
    assert kubelets.to_tell(KEY, [WAITING], 0.0) == ([], 1.0)
    assert kubelets.to_tell(KEY, [replace(WAITING, address="10.0.0.7")], 0.5) == ([], None)
    assert kubelets.to_tell(KEY, [WAITING], 9.0) == ([], 1.0)
    kubelets.forget(KEY)
    assert kubelets.to_tell(KEY, [WAITING], 20.0) == ([], 1.0)
