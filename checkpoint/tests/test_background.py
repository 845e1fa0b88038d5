"""Saves while the training goes on, saves by name, sections, loops inside a step, and loops of one's own."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_ranks import PROGRAMS, records, until

import everstep_checkpoint.vault as vault_module
from everstep_checkpoint import CheckpointError, Every, Run, arrays, attach, verify
from everstep_checkpoint.shard import hash_file, read_shard, write_shard
from everstep_checkpoint.snapshot import HostMemory, borrow


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)


class Disk:
    """A disk that writes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.asked = threading.Event(), threading.Event()
        self.real = vault_module.write_shard
        monkeypatch.setattr(vault_module, "write_shard", self)

    def __call__(self, path: Path, snapshot: Any, unwanted: Any) -> tuple[int, str]:
        self.asked.set()
        while not self.may_write.wait(0.01):
            if unwanted():
                break
        return self.real(path, snapshot, unwanted)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    slow = Disk(monkeypatch)
    yield slow
    slow.may_write.set()


def weights() -> tuple[dict[str, np.ndarray], dict]:
    held = {"w": np.zeros(50_000)}
    return held, {"w": arrays(held)}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step_*"))


def saves(directory: Path) -> list[tuple[str, int]]:
    return [(event["phase"], event["step"]) for event in records(directory)[-1] if event["event"] == "save"]


def test_training_goes_on_while_the_disk_writes_the_state_of_then(tmp_path: Path, disk: Disk) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, every=Every(steps=4)) as run:
        for step in run.steps(7):
            held["w"] += 1
            if step == 5:
                assert disk.asked.wait(10), "the save of step 4 has begun"
                assert names(tmp_path) == [], "and two steps later it still is under way"
                disk.may_write.set()
    assert names(tmp_path) == ["step_00000004", "step_00000007"]
    old, state = weights()
    (tmp_path / "step_00000007").rename(tmp_path / "away")
    with Run(tmp_path, state=state) as run:
        assert (run.resumed_from, set(old["w"])) == (4, {4.0}), "the state of step 4, not of when it was written"
        list(run.steps(4))
    committed = [event for event in records(tmp_path)[0] if event.get("phase") == "committed"]
    assert committed[0]["stall_s"] < committed[0]["seconds"]
    assert {"stall_s", "write_s", "seconds", "bytes"} <= committed[0].keys()


def test_one_save_at_a_time_and_the_same_memory(tmp_path: Path, disk: Disk) -> None:
    held, state = weights()
    released: list[int] = []
    with Run(tmp_path, state=state, every=Every(steps=2)) as run:
        for step in run.steps(5):
            held["w"] += 1
            if step == 3:
                timer = threading.Timer(0.3, lambda: (released.append(1), disk.may_write.set()))
                timer.start()
            if step == 4:
                assert released, "the boundary of step 4 waited for the save of step 2"
    assert saves(tmp_path) == [(phase, step) for step in (2, 4, 5) for phase in ("begin", "committed")]
    memory = HostMemory()
    first = memory.take(held)
    again = memory.take(held)
    assert len(first.views) == 1
    assert np.shares_memory(np.frombuffer(first.views[0]), np.frombuffer(again.views[0])), "one arena"
    assert not np.shares_memory(np.frombuffer(first.views[0]), held["w"])


def test_memory_is_ready_before_the_first_copy_of_a_resumed_run() -> None:
    held = {"w": np.ones(3_000_000)}
    memory = HostMemory()
    memory.prepare(held["w"].nbytes + (1 << 20)).join(20)
    arena = memory._arena
    assert len(arena) > held["w"].nbytes
    snapshot = memory.take(held)
    assert memory._arena is arena
    assert np.array_equal(np.frombuffer(snapshot.views[0]), held["w"])
    memory.prepare(8 << 20).join(20)
    assert memory._arena is arena, "one arena, and the one in use"
    memory.take({"w": np.ones(4_000_000)})
    assert len(memory._arena) >= 32_000_000, "too small a one is replaced"


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_run_that_has_ended_keeps_no_copy_of_the_state(tmp_path: Path) -> None:
    held = {"w": np.ones(16_000_000)}  # 128 MB
    before = resident()
    with Run(tmp_path, state={"w": arrays(held)}, every=Every(steps=1)) as run:
        list(run.steps(2))
        assert resident() - before > 100e6
    assert resident() - before < 50e6, "not when the garbage collector comes by"
    assert run.outcome == "finished"


def test_a_save_in_the_foreground_when_asked_for(tmp_path: Path) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, every=Every(steps=1, background=False)) as run:
        for step in run.steps(3):
            held["w"] += 1
            assert step == 0 or names(tmp_path)[-1] == f"step_{step:08d}"


def test_a_stop_waits_for_the_save_in_flight_and_then_saves(tmp_path: Path, disk: Disk) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, every=Every(steps=3)) as run:
        for step in run.steps(1000):
            held["w"] += 1
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run._team.member.stop, "the stop is agreed on")
                threading.Timer(0.2, disk.may_write.set).start()
    assert (run.outcome, run.saved_step) == ("stopped", 5)
    assert names(tmp_path) == ["step_00000003", "step_00000005"]


def test_a_stop_that_needs_the_time_gives_the_save_in_flight_up(tmp_path: Path, disk: Disk) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, every=Every(steps=3), grace=6.0) as run:
        run._saver.rate = held["w"].nbytes / 3.0  # 3 s a save: one fits before the kill, with margin, two do not
        for step in run.steps(1000):
            held["w"] += 1
            if step == 4:
                assert disk.asked.wait(10)
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run._team.member.stop, "the stop is agreed on")
                threading.Timer(1.0, disk.may_write.set).start()
    assert (run.outcome, run.saved_step, names(tmp_path)) == ("stopped", 5, ["step_00000005"])
    failed = [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]
    assert [event["step"] for event in failed] == [3]
    assert "given up" in failed[0]["why"]


def test_a_stop_that_cannot_be_written_in_time_is_not_begun(tmp_path: Path) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, every=Every(steps=3), grace=10.0) as run:
        for step in run.steps(1000):
            held["w"] += 1
            if step == 4:
                run._saver.wait()
                run._saver.rate = held["w"].nbytes / 8.0  # 8 s x 1.5 > 10 s
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run._team.member.stop, "the stop is agreed on")
    assert (run.outcome, run.saved_step, names(tmp_path)) == ("stopped", 3, ["step_00000003"])
    (skipped,) = [event for event in records(tmp_path)[0] if event.get("phase") == "skipped"]
    assert (skipped["step"], skipped["bytes"] > held["w"].nbytes) == (5, True)
    assert "left before the kill" in skipped["why"]


def test_a_named_save_is_pinned_and_stays(tmp_path: Path) -> None:
    held, state = weights()
    with Run(tmp_path, state=state, keep=2, every=Every(steps=2)) as run:
        for step in run.steps(12):
            held["w"] += 1
            if step == 2:
                run.save("before the learning rate drops", pin=True)
            if step == 4:
                run.save()
        run.save("after all", pin=True)
    assert names(tmp_path) == [f"step_{step:08d}" for step in (3, 10, 12)], "3 is pinned and not counted"
    manifest = json.loads((tmp_path / "step_00000003" / "MANIFEST.json").read_text())
    assert manifest["name"] == "before the learning rate drops"
    assert (5, "committed") in {(step, phase) for phase, step in saves(tmp_path)}
    with pytest.raises(ValueError, match="printable"), Run(tmp_path, state=state) as run:
        run.save("")


def test_sections_and_their_limits_are_in_the_record(tmp_path: Path) -> None:
    _, state = weights()
    with Run(tmp_path, state=state) as run:
        for step in run.steps(2):
            with run.section("evaluation", limit=0.1):
                until(lambda step=step: len(overdue(tmp_path)) == step + 1, "somebody notices")
    found = events(tmp_path)
    assert [event["phase"] for event in found] == ["begin", "overdue", "end", "begin", "overdue", "end"]
    assert [event["step"] for event in found if event["phase"] == "begin"] == [0, 1]
    assert found[1]["seconds"] > found[1]["limit"] == 0.1
    assert found[2]["ok"]
    with pytest.raises(ValueError, match="limit"), Run(tmp_path, state=state) as run, run.section("x", limit=0):
        pass


def overdue(directory: Path) -> list[dict]:
    return [event for event in events(directory) if event["phase"] == "overdue"]


def events(directory: Path) -> list[dict]:
    return [event for record in records(directory) for event in record if event["event"] == "section"]


def test_four_ranks_leave_a_loop_inside_a_step_at_one_item(tmp_path: Path, launch: Any) -> None:
    ranks = launch(tmp_path, size=4, program=PROGRAMS / "evaluates.py")
    until(lambda: len(list(tmp_path.glob("evaluating-*"))) == 4, "all ranks evaluate")
    ranks.signal(signal.SIGTERM, 2)
    assert ranks.wait() == [0, 0, 0, 0]
    left = {path.read_text() for path in tmp_path.glob("left-*")}
    assert len(left) == 1, left
    step, items = map(int, left.pop().split())
    assert 0 < items < 100_000
    assert records(tmp_path)[0][-1]["saved_step"] == step + 1


def test_a_loop_of_ones_own_with_two_ranks(tmp_path: Path, launch: Any) -> None:
    program = PROGRAMS / "own_loop.py"
    first = launch(tmp_path, program=program)
    until((tmp_path / "step_00000010").is_dir, "the first checkpoint is there")
    first.signal(signal.SIGTERM, 1)
    assert first.wait() == [0, 0]
    end = records(tmp_path)[0][-1]
    assert (end["outcome"], end["saved_step"]) == ("stopped", end["step"])
    found = verify(tmp_path / f"step_{end['step']:08d}")
    assert found.foreign
    assert set(found.files) == {"sub/rank-0.txt", "sub/rank-1.txt"}
    (found.path / "sub" / "rank-1.txt").write_text("garbage")
    second = launch(tmp_path, program=program)
    until(lambda: len(records(tmp_path)) > 1 and records(tmp_path)[1], "the second attempt has begun")
    second.signal(signal.SIGTERM, 0)
    assert second.wait() == [0, 0]
    start = records(tmp_path)[1][0]
    assert start["resumed_from"] < end["step"], "the damaged one is not loaded"


def test_what_a_loop_of_ones_own_may_not_do(tmp_path: Path) -> None:
    with attach(tmp_path, every=Every(steps=2)) as run:
        assert (run.latest, run.latest_step(7)) == (None, 7)
        assert [step for step in range(1, 6) if run.should_save(step)] == [2, 4]
        with pytest.raises(CheckpointError, match=r"without begin"):
            run.commit(4)
        run.begin(4)
        assert not run.commit(4), "nothing was written"
        (run.begin(5) / "link").symlink_to("/etc/passwd")
        assert not run.commit(5)
    assert run.outcome == "finished"
    assert names(tmp_path) == []
    assert [event["phase"] for event in records(tmp_path)[0] if event["event"] == "save"] == ["begin", "failed"] * 2


def test_too_little_memory_for_the_copy_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, state = weights()
    real = HostMemory.take

    def take(self: HostMemory, captured: Any) -> Any:
        if held["w"][0] == 4:
            raise MemoryError
        return real(self, captured)

    monkeypatch.setattr(HostMemory, "take", take)
    with Run(tmp_path, state=state, every=Every(steps=2)) as run:
        for _ in run.steps(7):
            held["w"] += 1
    assert (run.outcome, names(tmp_path)) == ("finished", [f"step_{step:08d}" for step in (2, 6, 7)])
    (failed,) = [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]
    assert "MemoryError" in failed["why"]


def test_a_getter_with_a_bug_ends_the_training_and_is_told(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Run(tmp_path, state={"x": (lambda: 1 / 0, print)}) as run:
        list(run.steps(2))
    assert records(tmp_path)[0][-1]["outcome"] == "failed"
    (failed,) = [event for event in records(tmp_path)[0] if event.get("phase") == "failed"]
    assert "ZeroDivisionError" in failed["why"]


def test_the_time_of_a_slow_getter_is_part_of_the_save(tmp_path: Path) -> None:
    state = {"slow": (lambda: time.sleep(0.2), lambda nothing: None)}
    with Run(tmp_path, state=state) as run:
        list(run.steps(1))
    (committed,) = [event for event in records(tmp_path)[0] if event.get("phase") == "committed"]
    assert committed["seconds"] >= committed["stall_s"] >= 0.2


def test_a_stop_needs_no_second_copy_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first save of a fresh run is that of its stop: fresh memory for a copy would cost a part of the grace."""
    held = {"w": np.arange(3_000_000, dtype=np.float64)}
    monkeypatch.setattr(HostMemory, "take", lambda *_: pytest.fail("the state was copied"))
    with Run(tmp_path, state={"w": arrays(held)}) as run:
        for step in run.steps(100):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run.stop_requested, "the signal was heard")
    assert run.outcome == "stopped"
    monkeypatch.undo()
    restored = {"w": np.zeros(3_000_000)}
    with Run(tmp_path, state={"w": arrays(restored)}) as run:
        assert run.resumed_from is not None
    assert (restored["w"] == held["w"]).all()


def test_memory_that_changes_while_it_is_written_is_still_what_its_hash_says(tmp_path: Path) -> None:
    """A program whose own threads go on may save a mixture of before and after, but never a file that will not load."""
    held = np.zeros(6_000_000)
    done = threading.Event()

    def go_on() -> None:
        while not done.is_set():
            held[:] += 1

    other = threading.Thread(target=go_on)
    other.start()
    try:
        for name in ("a", "b", "c"):
            size, sha256 = write_shard(tmp_path / name, borrow({"w": held}))
            assert hash_file(tmp_path / name) == (size, sha256)
            assert read_shard(tmp_path / name, size, sha256)["w"].shape == held.shape
    finally:
        done.set()
        other.join()
