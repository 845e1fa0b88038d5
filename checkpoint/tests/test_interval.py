"""When to save: the formula, its bounds, what it is fed with, and what the record says of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from checkpoint_ranks import records
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep_checkpoint.interval as interval_module
from everstep_checkpoint import Every, Run
from everstep_checkpoint.interval import LONGEST, MTBF, SHORTEST, Interval, failure_rate, optimum

HOUR = 3600.0


@pytest.mark.parametrize(
    ("stall", "mtbf", "expected"), [(0.05, HOUR, 19), (0.2, 3 * HOUR, 66), (2, 6 * HOUR, 294), (30, 24 * HOUR, 1800)]
)
def test_the_published_form(stall: float, mtbf: float, expected: float) -> None:
    assert optimum(stall, 0.0, mtbf, restart=0.0) == pytest.approx(expected, rel=0.02)


positive = st.floats(0.0, 1e5, allow_nan=False)


@settings(deadline=None)
@given(positive, positive, st.floats(1.0, 1e8), st.floats(1.001, 10.0))
def test_bounds_and_direction(stall: float, write: float, mtbf: float, more: float) -> None:
    found = optimum(stall, write, mtbf)
    assert max(SHORTEST, write) <= found <= max(LONGEST, write)
    assert optimum(stall * more, write, mtbf) >= found, "a dearer save is made no more often"
    assert optimum(stall, write, mtbf / more) <= found, "and one against more failures no less often"


def test_one_slow_save_does_not_flip_it() -> None:
    interval = Interval(6 * HOUR)
    assert interval.measured(0.1, 1.0)
    settled = interval.seconds
    for _ in range(14):
        assert not interval.measured(0.1, 1.0)
    assert not interval.measured(5.0, 9.0)
    assert interval.seconds == settled
    assert any([interval.measured(5.0, 9.0) for _ in range(3)]), "slow ones that stay do"
    assert interval.seconds > 2 * settled


@pytest.mark.parametrize(
    ("every", "env", "expected"),
    [
        (Every(mtbf=60), {"EVERSTEP_MTBF": "5"}, (60, "argument")),
        (Every(), {"EVERSTEP_MTBF": "7200"}, (7200, "environment")),
        (Every(), {}, (MTBF, "default")),
    ],
)
def test_where_the_failure_rate_is_from(every: Every, env: dict[str, str], expected: tuple[float, str]) -> None:
    assert failure_rate(every, env) == expected


@pytest.mark.parametrize("text", ["often", "0", "-3", "nan"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="EVERSTEP_MTBF"):
        failure_rate(Every(), {"EVERSTEP_MTBF": text})


@pytest.mark.parametrize("fixed", [False, True])
def test_the_record_says_what_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool) -> None:
    monkeypatch.setattr(interval_module, "FIRST", 0.2)
    monkeypatch.setattr(interval_module, "SHORTEST", 0.3)
    state = {"slow": (lambda: time.sleep(0.002), lambda nothing: None)}
    with Run(tmp_path, state=state, every=Every(seconds=0.2) if fixed else Every(mtbf=10.0)) as run:
        for _ in run.steps(200):
            time.sleep(0.01)
    found = [event for event in records(tmp_path)[0] if event["event"] == "interval"]
    assert bool(found) is not fixed
    for event in found:
        assert event["stall_s"] >= 0.002
        assert (event["mtbf_s"], event["mtbf_from"]) == (10.0, "argument")
        best = optimum(event["stall_s"], event["write_s"], 10.0)
        assert event["seconds"] == pytest.approx(best, abs=0.06)
