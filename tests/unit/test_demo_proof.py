"""The demo's judge must say no to every single way in which a heal can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.lab.demo.evidence import Evidence
from everstep.lab.demo.proof import durations, prove, steps_lost
from everstep.lab.demo.report import as_json, write_report
from tests.unit.demo_evidence_examples import healed


def failed_claims(evidence: Evidence) -> set[str]:
    return {claim.name for claim in prove(evidence) if not claim.proven}


def test_a_heal_is_proven() -> None:
    assert failed_claims(healed()) == set()


def _job(**change: object) -> Callable[[Evidence], Evidence]:
    return lambda e: replace(e, job=replace(e.job, **change))


def _record(**change: object) -> Callable[[Evidence], Evidence]:
    return lambda e: replace(e, record=replace(e.record, **change))


def _node(name: str, **change: object) -> Callable[[Evidence], Evidence]:
    return lambda e: replace(e, nodes={**e.nodes, name: replace(e.nodes[name], **change)})


def _second_attempt(**change: object) -> Callable[[Evidence], Evidence]:
    def bend(e: Evidence) -> Evidence:
        first, second = e.job.attempts
        return replace(e, job=replace(e.job, attempts=(first, replace(second, **change))))

    return bend


def _without_step_60(e: Evidence) -> Evidence:
    return _second_attempt(losses={s: v for s, v in e.job.attempts[1].losses.items() if s != 60})(e)


def _without_drained(e: Evidence) -> Evidence:
    return _record(steps=tuple(s for s in e.record.steps if s.name != "drained"))(e)


BENT: list[tuple[str, Callable[[Evidence], Evidence], str]] = [
    ("another id", _job(id="2"), "same job"),
    ("failed", _job(state="FAILED"), "same job"),
    ("never restarted", _job(restarts=0), "restarted once"),
    ("restarted twice", _job(restarts=2), "restarted once"),
    ("back on the faulty node", _job(nodes_after=("gpu-1", "gpu-2")), "healthy nodes"),
    ("never ran there", _job(nodes_before=("gpu-2", "gpu-3")), "healthy nodes"),
    ("from the top", _second_attempt(resumed_from=None), "resumed"),
    ("one step lost", _second_attempt(resumed_from=39), "steps lost"),
    ("one bit", lambda e: _second_attempt(losses={**e.job.attempts[1].losses, 60: "0x1p+0"})(e), "same trajectory"),
    ("a hole", _without_step_60, "same trajectory"),
    ("no reference", _job(reference={}), "same trajectory"),
    ("still in the pool", _node("gpu-1", pool="gpu"), "faulty node out"),
    ("spare cordoned", _node("gpu-3", schedulable=False), "spare in service"),
    ("spare unknown", _node("gpu-3", verdict="Unknown"), "spare in service"),
    ("spare drained", _node("gpu-3", slurm_states=frozenset({"IDLE", "DRAIN"})), "spare in service"),
    ("spare not in Slurm", _node("gpu-3", slurm_states=frozenset()), "spare in service"),
    ("no spare", _record(replacement=None), "spare in service"),
    ("nobody told", lambda e: replace(e, notices=()), "owner notified"),
    ("escalated", _record(outcome="Escalated"), "record complete"),
    ("a step missing", _without_drained, "record complete"),
    ("out of order", lambda e: replace(e, order_violations=("drained before requeued",)), "record in order"),
]  # fmt: skip


@pytest.mark.parametrize(("bend", "claim"), [(b, c) for _, b, c in BENT], ids=[name for name, _, _ in BENT])
def test_one_wrong_thing_is_enough(bend: Callable[[Evidence], Evidence], claim: str) -> None:
    assert claim in failed_claims(bend(healed()))


def test_a_power_loss_may_lose_steps_and_says_how_many() -> None:
    evidence = _second_attempt(resumed_from=30)(healed())
    evidence = replace(evidence, fault=replace(evidence.fault, kind="power"))
    assert "steps lost" not in failed_claims(evidence)
    assert steps_lost(evidence) == 10


def test_overhead_leaves_out_save_load_and_slurms_wait() -> None:
    found = durations(healed())
    assert found.resumed_s == pytest.approx(8.6)
    # 8.6 s less 2.0 s of saving, 0.1 s of loading and 1.5 s from "the spare is usable" to Slurm's start.
    assert found.overhead_s == pytest.approx(5.0)
    assert found.healthy_node_s == pytest.approx(6.0)


def test_report_files(tmp_path: Path) -> None:
    evidence = healed()
    claims = prove(evidence)
    write_report(evidence, claims, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == as_json(evidence, claims)
    assert report["proven"] is True
    assert report["job"] == {
        "id": "1", "restarts": 1, "resumed_from": 40, "steps_lost": 0, "final_step": 99, "trajectory_identical": True,
    }  # fmt: skip
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "finished as if nothing had happened" in (tmp_path / "report.html").read_text()
