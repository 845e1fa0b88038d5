"""Stop signals in programs that have signals, threads and children of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_ranks import until

from everstep_checkpoint import CheckpointError, Run


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def blocked(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigBlk:")[1].split()[0], 16)


def test_asyncio_may_take_the_wake_up_descriptor(tmp_path: Path) -> None:
    async def train() -> Run:
        with Run(tmp_path, state={}) as run:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
            for step in run.steps(1000):
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.005)
        return run

    run = asyncio.run(train())
    assert run.outcome == "stopped"
    assert run.saved_step is not None


def test_asyncios_own_signals_still_reach_it(tmp_path: Path) -> None:
    """Those that are none of ours at once, a stop signal once the checkpoint is there."""

    async def train() -> Run:
        loop, hup, term = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, hup.set)
        loop.add_signal_handler(signal.SIGTERM, term.set)
        with Run(tmp_path, state={}) as run:
            for _ in run.steps(1000):
                os.kill(os.getpid(), signal.SIGHUP)
                await hup.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run._team.member.stop, "the stop is agreed on")
                await asyncio.sleep(0.02)
                assert not term.is_set()
        await term.wait()
        return run

    run = asyncio.run(asyncio.wait_for(train(), 20))
    assert (run.outcome, run.saved_step) == ("stopped", 1)


def test_a_signal_that_another_thread_gets(tmp_path: Path) -> None:
    asleep, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (asleep.set(), done.wait()), daemon=True)
    with Run(tmp_path, state={}) as run:
        thread.start()
        assert asleep.wait(10)
        for _ in run.steps(1000):
            signal.pthread_kill(thread.ident or 0, signal.SIGTERM)
            until(lambda: run._team.member.stop, "the stop is agreed on")
    done.set()
    assert (run.outcome, run.saved_step) == ("stopped", 1)


def test_children_that_several_threads_fork_can_be_ended(tmp_path: Path) -> None:
    children: list[int] = []

    def fork() -> None:
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            children.append(pid)

    with Run(tmp_path, state={}) as run:
        for _ in run.steps(1):
            threads = [threading.Thread(target=fork) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    stop = 1 << (signal.SIGTERM - 1)
    try:
        until(lambda: not any(blocked(pid) & stop for pid in children), "no child has SIGTERM blocked", 10)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_forked_child_that_falls_through_its_step_is_stopped(tmp_path: Path) -> None:
    child = -1
    with Run(tmp_path, state={}) as run:
        try:
            for step in run.steps(4):
                if step == 1:
                    child = os.fork()
        except CheckpointError:
            os._exit(7 if child == 0 else 8)
        if child == 0:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert run.outcome == "finished"


def test_a_signal_at_the_very_end_is_the_programs_own_and_the_record_is_whole(tmp_path: Path) -> None:
    program = f"""
import os, signal
from everstep_checkpoint import Run, attempt
real = attempt.leave_outcome
def stop(*how):
    os.kill(os.getpid(), signal.SIGTERM)
    real(*how)
attempt.leave_outcome = stop
with Run({str(tmp_path)!r}, state={{}}) as run:
    list(run.steps(3))
print("still here")
"""
    env = os.environ | {"EVERSTEP_OUTCOME_FILE": str(tmp_path / "outcome")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    events = [json.loads(line) for line in (tmp_path / "records/attempt-0000.jsonl").read_text().splitlines()]
    assert (events[-1]["event"], events[-1]["outcome"]) == ("end", "finished")
    assert json.loads((tmp_path / "outcome").read_text())["outcome"] == "finished", "the wrapper would say stopped"
