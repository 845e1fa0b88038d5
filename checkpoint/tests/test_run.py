"""Run as one process sees it: states, records, signals, failures of the disk."""

from __future__ import annotations

import errno
import importlib.metadata
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_ranks import lines, records, until

import everstep_checkpoint.vault as vault_module
from everstep_checkpoint import CheckpointError, Every, Run, StateMismatchError, World, arrays


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)


def counter() -> tuple[dict[str, int], dict]:
    held = {"n": 0}
    return held, {"n": (lambda: held["n"], lambda saved: held.update(n=saved))}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step_*"))


def test_a_run_from_start_to_end_and_its_record(tmp_path: Path) -> None:
    held, state = counter()
    began = time.time()
    with Run(tmp_path, state=state, every=Every(steps=4)) as run:
        for step in run.steps(10):
            held["n"] += 1
            run.report(loss=1.0 / (step + 1))
    assert (run.outcome, run.saved_step, run.resumed_from) == ("finished", 10, None)
    assert names(tmp_path) == ["step_00000004", "step_00000008", "step_00000010"]
    (record,) = records(tmp_path)
    start, end = record[0], record[-1]
    assert (start["event"], start["attempt"], start["resumed_from"], start["checkpoint"]) == ("start", 0, 0, None)
    assert (start["previous_highest_step"], start["run"], start["world_size"]) == (None, str(tmp_path), 1)
    saves = [(event["phase"], event["step"]) for event in record if event["event"] == "save"]
    assert saves == [(phase, step) for step in (4, 8, 10) for phase in ("begin", "committed")]
    committed = [event for event in record if event.get("phase") == "committed"]
    assert all(event["bytes"] > 0 and event["seconds"] >= 0 for event in committed)
    progress = [event for event in record if event["event"] == "progress"]
    assert progress[-1]["step"] == 10
    assert progress[-1]["loss"] == 0.1
    assert (end["event"], end["outcome"], end["saved_step"]) == ("end", "finished", 10)
    assert all(began <= event["time"] <= time.time() for event in record)


def test_progress_is_at_most_once_a_second_and_never_behind_at_the_end(tmp_path: Path) -> None:
    _, state = counter()
    with Run(tmp_path, state=state) as run:
        for step in run.steps(400):
            time.sleep(0.005)
            run.report(loss=float("nan") if step % 2 else 1.0)
    progress = [event for event in records(tmp_path)[0] if event["event"] == "progress"]
    gaps = [b["time"] - a["time"] for a, b in itertools.pairwise(progress[:-1])]
    assert all(gap > 0.7 for gap in gaps), gaps
    assert 2 <= len(progress) <= 3 + progress[-1]["time"] - progress[0]["time"]
    assert (progress[-1]["step"], progress[-1]["loss"]) == (400, None)


def test_a_second_run_in_the_directory_has_nothing_left_to_do(tmp_path: Path) -> None:
    for attempt in range(2):
        held, state = counter()
        with Run(tmp_path, state=state) as run:
            did = [step for step in run.steps(3) if held.update(n=step + 1) is None]
        assert did == ([0, 1, 2] if attempt == 0 else [])
    assert held["n"] == 3
    start, end = records(tmp_path)[1][0], records(tmp_path)[1][-1]
    assert (start["attempt"], start["resumed_from"], start["checkpoint"]) == (1, 3, "step_00000003")
    assert (end["outcome"], end["saved_step"]) == ("finished", 3)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"SLURM_JOB_ID": "7", "HOME": "{}"}, ".everstep/jobs/7/attempt-0000.jsonl"),
        ({"SLURM_JOB_ID": "7", "HOME": "{}", "SLURM_RESTART_COUNT": "3"}, ".everstep/jobs/7/attempt-0003.jsonl"),
        ({"EVERSTEP_RECORD_DIR": "{}/here"}, "here/attempt-0000.jsonl"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "EVERSTEP_RECORD_DIR": "{}/here"},
            "here/attempt-0002.jsonl",
        ),
    ],
)
def test_where_the_record_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], place: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    _, state = counter()
    with Run(tmp_path / "run", state=state) as run:
        list(run.steps(1))
    written = lines(tmp_path / place)
    assert [event["event"] for event in written] == ["start", "progress", "save", "save", "end"]
    assert written[0]["attempt"] == run.attempt == int(place[-10:-6])


def test_every_kind_of_state_and_the_generators_come_back(tmp_path: Path) -> None:
    def build() -> dict:
        own = {"generator": np.random.default_rng(5), "python": random.Random(5)}
        weights = {"w": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.ones((3, 2))), "view": np.ones(9)[::2]}
        return {"weights": weights, **own}

    def draw(things: dict) -> list:
        things["weights"]["w"] += 1
        things["weights"]["view"][0] += things["generator"].random()
        totals = [float(array.sum()) for array in things["weights"].values()]
        return [*totals, things["python"].random(), random.random(), float(np.random.random())]

    def attempt(seed: int, total: int, stop: bool) -> list:
        random.seed(seed)
        np.random.seed(seed)
        things, drawn = build(), []
        state = {**things, "weights": arrays(things["weights"])}
        with Run(tmp_path, state=state) as run:
            random.random()  # what a program draws between restore and loop must not matter after a resume
            for step in run.steps(total):
                drawn.append(draw(things))
                if stop and step == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                    until(lambda: run._team.member.stop, "the stop is agreed on")
        return drawn

    before = attempt(1, 20, stop=True)
    after = attempt(99, 20, stop=False)
    assert len(before) + len(after) == 20
    for path in tmp_path.glob("step_*"):
        (tmp_path / f"x{path.name}").mkdir()
        path.rename(tmp_path / f"x{path.name}" / path.name)
    assert before + after == attempt(1, 20, stop=False)


def test_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights = {"w": np.ones(3)}
    with Run(tmp_path, state={"w": arrays(weights)}) as run:
        list(run.steps(1))
    for state, message in [
        ({"v": arrays(weights)}, "only in one of checkpoint and program"),
        ({"w": arrays({"w": np.ones(4)})}, r"float64\[3\] in the checkpoint but float64\[4\] in the program"),
        ({"w": arrays({"w": np.ones(3, np.float32)})}, "float32"),
        ({"w": arrays({"w": np.ones(3), "b": np.ones(1)})}, "'b'"),
    ]:
        with pytest.raises(StateMismatchError, match=message), Run(tmp_path, state=state):
            pytest.fail("it must not begin")
    with pytest.raises(TypeError, match="state 'x' is a int"):
        Run(tmp_path, state={"x": 3})


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    _, state = counter()
    with Run(tmp_path, state=state) as run:
        list(run.steps(1))
    world = World(0, 2, token="other", attempt=1)
    with (
        pytest.raises(StateMismatchError, match="was saved by 1 ranks and this run has 2"),
        Run(tmp_path, state=state, world=world),
    ):
        pytest.fail("it must not begin")
    assert records(tmp_path)[-1][-1]["outcome"] == "failed"


@pytest.mark.parametrize(("kept", "message"), [({"keep": 1}, "at least 2"), ({"grace": 0}, "grace"),
                                               ({"every": 0}, "every")])  # fmt: skip
def test_settings_that_cannot_be_meant(tmp_path: Path, kept: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(tmp_path, state={}, **kept)


def test_leaving_the_loop_early_saves_what_was_reported(tmp_path: Path) -> None:
    held, state = counter()
    with Run(tmp_path, state=state) as run:
        for step in run.steps(100):
            held["n"] = step + 1
            run.report()
            if step == 6:
                break
    assert (run.outcome, run.saved_step, names(tmp_path)) == ("finished", 7, ["step_00000007"])


def test_an_exception_saves_nothing_and_is_recorded(tmp_path: Path) -> None:
    _, state = counter()

    def train() -> None:
        with Run(tmp_path, state=state) as run:
            for step in run.steps(9):
                run.report(loss=1 / (3 - step))

    with pytest.raises(ZeroDivisionError):
        train()
    assert names(tmp_path) == []
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"], end["step"]) == ("failed", None, 3)
    assert end["why"].startswith("ZeroDivisionError")


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_stop_signals_are_alike_and_handlers_come_back(tmp_path: Path, name: signal.Signals) -> None:
    old = signal.signal(name, lambda *_: None)
    mine = signal.getsignal(name)
    try:
        _, state = counter()
        with Run(tmp_path, state=state) as run:
            for step in run.steps(10_000):
                if step == 3:
                    os.kill(os.getpid(), name)
                time.sleep(0.001)
        assert run.outcome == "stopped"
        assert run.saved_step is not None
        assert 4 <= run.saved_step < 10_000
        assert signal.getsignal(name) is mine
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(name, old)


def test_seconds_between_saves(tmp_path: Path) -> None:
    _, state = counter()
    with Run(tmp_path, state=state, every=0.4) as run:
        for _ in run.steps(150):
            time.sleep(0.01)
    saves = [event["time"] for event in records(tmp_path)[0] if event.get("phase") == "begin"]
    gaps = [b - a for a, b in itertools.pairwise(saves[:-1])]
    assert len(saves) >= 3
    assert all(gap >= 0.35 for gap in gaps), gaps


def test_forked_children_are_deaf(tmp_path: Path) -> None:
    _, state = counter()
    with Run(tmp_path, state=state) as run:
        for step in run.steps(50):
            if step == 1:
                child = os.fork()
                if child == 0:
                    try:
                        run.report()
                    except CheckpointError:
                        time.sleep(30)  # until the signal
                    os._exit(3)
                os.kill(child, 0)
                until(lambda child=child: "S" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3], "it sleeps")
                os.kill(child, signal.SIGTERM)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            time.sleep(0.002)
            assert not run.stop_requested
    assert run.outcome == "finished"


def test_a_full_disk_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, state = counter()
    real = vault_module.write_shard

    def full(path: Path, *how: Any) -> tuple[int, str]:
        if "00000004" in str(path) or "00000006" in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *how)

    monkeypatch.setattr(vault_module, "write_shard", full)
    with Run(tmp_path, state=state, every=Every(steps=2)) as run:
        for step in run.steps(9):
            held["n"] = step + 1
            run.report()
    assert names(tmp_path) == ["step_00000002", "step_00000008", "step_00000009"]
    failed = [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]
    assert [event["step"] for event in failed] == [4, 6]
    assert "No space left" in failed[0]["why"]
    assert not list(tmp_path.glob(".t*")), "the half-written files are gone: they fill the disk"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root; the failing writer above covers the same path")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_really_full_disk(small_disk: Path) -> None:
    held, state = counter()
    state["bulk"] = (lambda: bytes(1_500_000), lambda saved: None)
    with Run(small_disk, state=state, keep=2, every=Every(steps=1)) as run:
        for step in run.steps(3):
            held["n"] = step + 1
    # Two fit; a third needs the place of the first, which may only go once the third is there.
    assert (run.outcome, run.saved_step, names(small_disk)) == ("finished", 2, ["step_00000001", "step_00000002"])
    failed = [event for event in records(small_disk)[0] if event.get("phase") == "failed"]
    assert [(event["step"], "No space left" in event["why"]) for event in failed] == [(3, True)]


def test_a_step_costs_microseconds(tmp_path: Path) -> None:
    _, state = counter()
    with Run(tmp_path, state=state) as run:
        times = []
        for _ in run.steps(20_000):
            times.append(time.perf_counter())
            run.report(loss=1.0)
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    assert gaps[len(gaps) // 2] < 50e-6, f"median {gaps[len(gaps) // 2] * 1e6:.1f} us a step"


def test_outside_the_main_thread_it_still_saves(tmp_path: Path) -> None:
    _, state = counter()
    outcome = []

    def work() -> None:
        with Run(tmp_path, state=state) as run:
            list(run.steps(3))
        outcome.append(run.outcome)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert outcome == ["finished"]


def test_the_package_needs_nothing_else() -> None:
    required = importlib.metadata.requires("everstep-checkpoint") or []
    assert [need for need in required if "extra ==" not in need] == []
    code = (
        "import sys, json; old = set(sys.modules); import everstep_checkpoint;"
        "print(json.dumps(sorted({n.split('.')[0] for n in set(sys.modules) - old}"
        " - set(sys.stdlib_module_names) - {'everstep_checkpoint'})))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(loaded) == []
