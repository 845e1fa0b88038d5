"""The callback in real Lightning trainings."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_ranks import Launch, records, until

from everstep_checkpoint import verify


def done(directory: Path) -> int:
    path = directory / "steps"
    return int(path.read_text() or 0) if path.exists() else 0


def last_line(ranks: Launch, rank: int = 0) -> str:
    output = ranks.processes[rank].communicate(timeout=180)[0]
    assert ranks.processes[rank].returncode == 0, output
    return output.splitlines()[-1]


@pytest.mark.parametrize("accumulate", ["1", "3"])
def test_stopped_and_resumed_ends_with_the_same_weights(
    tmp_path: Path, launch: Callable[..., Launch], accumulate: str
) -> None:
    args = {"size": 1, "program": "lightning_ranks.py"}
    whole = last_line(launch(tmp_path / "whole", "--accumulate", accumulate, **args))
    assert whole.startswith("step 60 ")
    first = launch(tmp_path / "cut", "--accumulate", accumulate, **args)
    until(lambda: done(tmp_path / "cut") >= 10, "10 steps are done", timeout=120)
    first.signal(signal.SIGTERM)
    stopped = last_line(first)
    end = records(tmp_path / "cut")[0][-1]
    assert (end["outcome"], f"step {end['saved_step']} ") == ("stopped", stopped[: stopped.index("[")])
    assert not (tmp_path / "cut" / "validated").exists(), "no validation on the way out"
    assert verify(tmp_path / "cut" / f"step_{end['saved_step']:08d}").foreign
    assert last_line(launch(tmp_path / "cut", "--accumulate", accumulate, **args)) == whole
    assert records(tmp_path / "cut")[1][0]["resumed_from"] == end["saved_step"]


def test_two_ranks_stop_at_one_step(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, "--ranks", "2", "--steps", "5000", program="lightning_ranks.py",
                   TORCHELASTIC_RUN_ID="x", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")  # fmt: skip
    until(lambda: done(tmp_path) >= 5, "5 steps are done", timeout=120)
    ranks.signal(signal.SIGTERM, 1)
    stops = {last_line(ranks, rank) for rank in (0, 1)}
    assert len(stops) == 1, stops
    end = records(tmp_path)[0][-1]
    assert stops.pop().startswith(f"step {end['saved_step']} ")


def test_a_failure_is_recorded(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    ranks = launch(tmp_path, "--fail", size=1, program="lightning_ranks.py")
    assert ranks.wait(120) == [1]
    end = records(tmp_path)[0][-1]
    assert end["outcome"] == "failed"
    assert "RuntimeError: out of memory" in end["why"]
