"""The first claim: an interrupted run and an uninterrupted one are the same run, to the last bit of every loss."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_ranks import PROGRAMS, Launch, records, trajectory, until

STEPS = 90
ARGS = ("--steps", str(STEPS), "--step-time", "0.008", "--busy", "0")
PERIODIC = ("--save-every-steps", "10")


def highest(record: list[dict]) -> int:
    return max((event["step"] for event in record if event["event"] == "progress"), default=0)


def saves_begun(directory: Path) -> int:
    return sum(event.get("phase") == "begin" for record in records(directory) for event in record)


def steps_lost(directory: Path) -> list[int]:
    """What the platform computes from the records alone, for every pair of attempts."""
    found = records(directory)
    starts = [record[0] for record in found]
    pairs = zip(found, starts[1:], strict=False)
    return [max(highest(record), start["previous_highest_step"]) - start["resumed_from"] for record, start in pairs]


def result(directory: Path) -> dict:
    return json.loads((directory / "result.json").read_text())


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One uninterrupted run."""
    directory = tmp_path_factory.mktemp("reference")
    argv = [str(PROGRAMS.parents[2] / "examples" / "train.py"), "--dir", str(directory), *ARGS]
    ranks = Launch(directory, argv, 2)
    assert ranks.wait() == [0, 0]
    return directory


def same(directory: Path, reference: Path) -> bool:
    assert sorted(trajectory(directory)) == list(range(1, STEPS + 1))
    return trajectory(directory) == trajectory(reference) and result(directory) == result(reference)


@pytest.mark.parametrize(
    ("name", "ranks", "again"),
    [
        (signal.SIGTERM, [0], False),
        (signal.SIGTERM, [1], False),
        (signal.SIGTERM, [], True),
        (signal.SIGUSR1, [1], False),
    ],
    ids=["TERM to rank 0", "TERM to rank 1", "TERM to all, twice", "USR1 to rank 1"],
)
def test_told_to_stop_loses_nothing(
    tmp_path: Path, launch: Callable[..., Launch], reference: Path, name: signal.Signals, ranks: list[int], again: bool
) -> None:
    first = launch(tmp_path, *ARGS, "--save-seconds", "0.2").at_step(37)
    first.signal(name, *ranks)
    if again:
        until(lambda: saves_begun(tmp_path), "the save is under way")
        first.signal(name, *ranks)
    assert first.wait() == [0, 0]
    (record,) = records(tmp_path)
    (stop,) = [event for event in record if event["event"] == "stop"]
    end = record[-1]
    assert (end["event"], end["outcome"], end["saved_step"]) == ("end", "stopped", stop["agreed_step"])
    assert 37 <= stop["agreed_step"] < STEPS
    assert stop["signal"] == name.name
    assert launch(tmp_path, *ARGS).wait() == [0, 0]
    assert same(tmp_path, reference)
    assert steps_lost(tmp_path) == [0]


@pytest.mark.parametrize("victims", [[0], [1], [0, 1]], ids=["rank 0", "rank 1", "both"])
def test_killed_resumes_from_the_last_periodic_checkpoint(
    tmp_path: Path, launch: Callable[..., Launch], reference: Path, victims: list[int]
) -> None:
    first = launch(tmp_path, *ARGS, *PERIODIC).at_step(37)
    until(lambda: committed(tmp_path), "a save is on record")
    first.signal(signal.SIGKILL, *victims)
    codes = first.wait()
    assert all(codes), "a rank without its peer must not end with 0"
    assert launch(tmp_path, *ARGS, *PERIODIC).wait() == [0, 0]
    assert same(tmp_path, reference)
    start = records(tmp_path)[1][0]
    # The losses file and the step counter are written within microseconds of each other, in this order.
    done = max(row for row in trajectory_of(tmp_path, 0))
    assert start["resumed_from"] % 10 == 0
    assert done - 1 <= start["previous_highest_step"] <= done
    # Training goes on while a save is written: how far that is behind is a matter of disk and processor. But what is on
    # record as saved is not lost; at most one checkpoint is there that the rank did not live to put on record.
    saved = max(committed(tmp_path))
    assert start["resumed_from"] in (saved, saved + 10)
    assert steps_lost(tmp_path) == [start["previous_highest_step"] - start["resumed_from"]]


def committed(directory: Path) -> list[int]:
    """Steps that the first attempt put on record as saved."""
    return [e["step"] for e in records(directory)[0] if e["event"] == "save" and e["phase"] == "committed"]


def trajectory_of(directory: Path, attempt: int) -> list[int]:
    path = directory / "losses" / f"attempt-{attempt:04d}.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines() if line.endswith("}")]


def test_killed_in_the_middle_of_a_save(tmp_path: Path, launch: Callable[..., Launch], reference: Path) -> None:
    first = launch(tmp_path, *ARGS, *PERIODIC, "--save-seconds", "0.3")
    until((tmp_path / "step_00000010").is_dir, "the first checkpoint is there")
    until(lambda: saves_begun(tmp_path) > 1, "the second save is under way")
    first.signal(signal.SIGKILL)
    first.wait()
    assert launch(tmp_path, *ARGS).wait() == [0, 0]
    assert records(tmp_path)[1][0]["resumed_from"] == 10
    assert not list(tmp_path.glob(".tmp-*"))
    assert same(tmp_path, reference)


@pytest.mark.parametrize(
    ("flag", "codes"), [("--ignore-sigterm", [-9, -9]), ("--quit-on-sigterm", [0, 0])], ids=["ignores", "quits with 0"]
)
def test_programs_that_do_not_save_when_told(
    tmp_path: Path, launch: Callable[..., Launch], reference: Path, flag: str, codes: list[int]
) -> None:
    first = launch(tmp_path, *ARGS, *PERIODIC, flag).at_step(25)
    first.signal(signal.SIGTERM)
    if flag == "--ignore-sigterm":
        first.at_step(35)
        first.signal(signal.SIGKILL)
    assert first.wait() == codes
    assert launch(tmp_path, *ARGS).wait() == [0, 0]
    assert records(tmp_path)[1][0]["resumed_from"] in (20, 30, 40)
    assert steps_lost(tmp_path)[0] >= 0
    assert same(tmp_path, reference)


@pytest.mark.parametrize("forgotten", ["nothing", "random", "data", "momentum"])
def test_a_restore_that_forgets_is_noticed(
    tmp_path: Path, launch: Callable[..., Launch], reference: Path, forgotten: str
) -> None:
    first = launch(tmp_path, *ARGS).at_step(20)
    first.signal(signal.SIGTERM, 1)
    assert first.wait() == [0, 0]
    cut = records(tmp_path)[0][-1]["saved_step"]
    assert launch(tmp_path, *ARGS, program=PROGRAMS / "forgetful.py", FORGET=forgotten).wait() == [0, 0]
    ours, theirs = trajectory(tmp_path), trajectory(reference)
    wrong = [step for step in theirs if ours[step] != theirs[step]]
    expected = {"nothing": None, "random": cut + 1, "data": cut + 1, "momentum": cut + 2}[forgotten]
    assert min(wrong, default=None) == expected
