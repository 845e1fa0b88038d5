"""The third claim, against kill -9: whatever moment it hits, the next attempt resumes from something whole, no older.

This does not test the loss of power: the page cache survives the death of a process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS, until

from everstep_checkpoint import InvalidCheckpointError, verify

KILLS = int(os.environ.get("EVERSTEP_FUZZ_KILLS", "15"))


def sound_steps(directory: Path) -> list[int]:
    found = []
    for path in sorted(directory.glob("step_*")):
        try:
            found.append(verify(path).step)
        except InvalidCheckpointError as error:
            raise AssertionError(f"a checkpoint's name on something that is none: {error}") from error
    return found


@pytest.mark.timeout(300 + 4 * KILLS)
def test_random_kills_never_cost_a_published_checkpoint(tmp_path: Path) -> None:
    dice, newest, saves = random.Random(os.environ.get("EVERSTEP_FUZZ_SEED")), 0, 0
    left_over = 0
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fuzzed.py"), str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.strip().isdigit(), first + process.stdout.read()
        assert int(first) == newest, "the next attempt must begin at the newest checkpoint"
        until(lambda newest=newest: max(names(tmp_path), default=0) > newest, "one more checkpoint is published")
        try:
            process.wait(timeout=dice.uniform(0, 0.08))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0]
        assert process.returncode == -signal.SIGKILL, rest
        steps = sound_steps(tmp_path)
        assert steps, "nothing left to resume from"
        assert steps[-1] > newest, "the newest checkpoint went back"
        saves += steps[-1] - newest
        newest = steps[-1]
        assert len(steps) >= min(2, newest), "fewer than two left"
        left_over += any(tmp_path.glob(".tmp-*")) or any(tmp_path.glob(".trash-*"))
    assert left_over > KILLS / 10, f"only {left_over} of {KILLS} kills hit a save or a deletion: this tests nothing"
    assert len(list(tmp_path.glob(".tmp-*"))) <= 1, "attempts do not clean up after dead ones"


def test_death_at_every_single_call_that_changes_the_disk(tmp_path: Path) -> None:
    """What is left of each life is what the next one sees: none may find less than the last has published."""
    command = [sys.executable, str(PROGRAMS / "dies_at.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    published, lives = 0, 0
    for said in map(json.loads, done.stdout.splitlines()):
        if "resumed" in said:
            lives += 1
            # The name may be there although the process died before it could say so.
            assert published <= said["resumed"] <= published + 1, said
        published = max(published, said.get("resumed", 0), said.get("published", 0))
    assert lives > 80, "each life ends at a later call than the one before"
    assert "damaged" not in done.stderr
    assert sound_steps(tmp_path)[-1] == published
    assert not [*tmp_path.glob(".tmp-*"), *tmp_path.glob(".trash-*"), *tmp_path.glob(".invalid-*")]


def names(directory: Path) -> list[int]:
    return [int(path.name[5:]) for path in directory.glob("step_*")]
