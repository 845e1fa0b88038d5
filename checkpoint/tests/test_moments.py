"""A stop at every moment of a run's life, disks that fail in every way, and two attempts alive at once."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_ranks import PROGRAMS, Launch, records, until

import everstep_checkpoint.vault as vault_module
from everstep_checkpoint import Every, Run, verify


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def saved(directory: Path) -> list[int]:
    return [verify(path).step for path in sorted(directory.glob("step_*"))]


def agreed(run: Run) -> None:
    until(lambda: run._team.member.stop, "the stop is agreed on")


def test_in_the_first_step(tmp_path: Path) -> None:
    with Run(tmp_path, state={}) as run:
        for _ in run.steps(100):
            stop()
            agreed(run)
    assert (run.outcome, saved(tmp_path)) == ("stopped", [1])


def test_between_enter_and_the_first_step(tmp_path: Path) -> None:
    with Run(tmp_path, state={}) as run:
        stop()
        agreed(run)
        assert list(run.steps(100)) == [], "nothing was done, so nothing is to be saved but the beginning"
    assert (run.outcome, saved(tmp_path)) == ("stopped", [0])


def test_while_the_state_is_loaded(tmp_path: Path) -> None:
    with Run(tmp_path, state={"x": (lambda: 1, lambda saved: None)}) as run:
        list(run.steps(3))
    with Run(tmp_path, state={"x": (lambda: 1, lambda saved: stop())}) as run:
        agreed(run)
        assert list(run.steps(100)) == []
    assert (run.outcome, run.saved_step, saved(tmp_path)) == ("stopped", 3, [3])
    assert records(tmp_path)[1][-1]["outcome"] == "stopped"


def test_while_it_waits_for_data(tmp_path: Path) -> None:
    def data() -> Any:
        for item in range(100):
            if item == 4:
                stop()
                time.sleep(0.3)
            yield item

    source = data()
    with Run(tmp_path, state={}) as run:
        for _ in run.steps(100):
            next(source)
    assert (run.outcome, saved(tmp_path)) == ("stopped", [5])


def test_while_a_save_is_being_copied_and_again_while_it_is_written(tmp_path: Path) -> None:
    told: list[int] = []

    def get() -> int:
        if not told:
            told.append(1)
            stop()
        return 1

    with Run(tmp_path, state={"x": (get, lambda saved: None)}, every=Every(steps=3)) as run:
        for _ in run.steps(100):
            time.sleep(0.01)
    assert (run.outcome, saved(tmp_path)[0]) == ("stopped", 3)
    assert run.saved_step == saved(tmp_path)[-1] <= 60


def test_a_copy_may_take_most_of_the_grace(tmp_path: Path) -> None:
    """Three quarters of it bound the way to the agreed step; once all ranks are there, all of it is for the save."""
    with Run(tmp_path, state={"x": (lambda: time.sleep(3.4), lambda saved: None)}, grace=4.0) as run:
        for _ in run.steps(100):
            stop()
            agreed(run)
    assert (run.outcome, saved(tmp_path)) == ("stopped", [1])


def test_in_the_last_save_of_a_finished_run(tmp_path: Path) -> None:
    with Run(tmp_path, state={"x": (stop, lambda saved: None)}) as run:
        list(run.steps(3))
    assert (run.outcome, saved(tmp_path)) == ("finished", [3])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("where", ["write_shard", "write_file", "fsync_directory"])
def test_a_disk_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    real, failing = getattr(vault_module, where), [True]

    def fail(path: Path, *how: Any) -> Any:
        if failing and "step_00000004" in str(path):
            raise OSError(number, os.strerror(number))
        return real(path, *how)

    monkeypatch.setattr(vault_module, where, fail)
    with Run(tmp_path, state={}, every=Every(steps=2)) as run:
        list(run.steps(7))
    assert (run.outcome, saved(tmp_path)) == ("finished", [2, 6, 7])
    (failed,) = [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]
    assert failed["step"] == 4
    assert os.strerror(number) in failed["why"]


def test_two_attempts_alive_at_once(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    """The older one trains on, but publishes nothing any more; what both leave is sound."""
    old = launch(tmp_path, size=1, program=PROGRAMS / "stubborn.py")
    until((tmp_path / "step_00000005").is_dir, "the older one saves")
    new = launch(tmp_path, size=1, program=PROGRAMS / "stubborn.py")
    until(lambda: len(records(tmp_path)) > 1 and records(tmp_path)[1], "the newer one has begun")
    # A save that was under way may also fail for its files being swept away.
    until(lambda: "has taken over" in str(records(tmp_path)[0]), "the older one is refused")
    resumed = records(tmp_path)[1][0]["resumed_from"]
    until(lambda: max(saved(tmp_path)) > resumed, "the newer one saves")
    old.signal(signal.SIGTERM)
    new.signal(signal.SIGTERM)
    assert (old.wait(), new.wait()) == ([0], [0])
    assert records(tmp_path)[1][-1]["saved_step"] == max(saved(tmp_path))
