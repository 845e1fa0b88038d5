"""The callback in a real training with the Hugging Face Trainer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from checkpoint_ranks import Launch, records, until

from everstep_checkpoint import verify


def last_line(ranks: Launch) -> str:
    output = ranks.processes[0].communicate(timeout=240)[0]
    assert ranks.processes[0].returncode == 0, output
    return output.splitlines()[-1]


def highest(directory: Path) -> int:
    return max((e["step"] for r in records(directory) for e in r if e["event"] == "progress"), default=0)


def test_stopped_and_resumed_ends_with_the_same_weights(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    how = {"size": 1, "program": "huggingface_run.py"}
    whole = last_line(launch(tmp_path / "whole", **how))
    assert whole.startswith("step 60 ")
    first = launch(tmp_path / "cut", **how)
    until(lambda: highest(tmp_path / "cut") >= 10, "10 steps are done", timeout=120)
    first.signal(signal.SIGTERM)
    stopped = last_line(first)
    end = records(tmp_path / "cut")[0][-1]
    assert (end["outcome"], f"step {end['saved_step']} ") == ("stopped", stopped[: stopped.index("[")])
    found = verify(tmp_path / "cut" / f"step_{end['saved_step']:08d}")
    assert {"trainer_state.json", "optimizer.pt", "scheduler.pt"} <= found.files.keys()
    assert last_line(launch(tmp_path / "cut", **how)) == whole
    start = records(tmp_path / "cut")[1][0]
    assert start["resumed_from"] == end["saved_step"]
    losses = [event["loss"] for event in records(tmp_path / "cut")[1] if event["event"] == "progress"]
    assert any(loss is not None for loss in losses)
