"""Workers of a DataLoader when the whole process group is signalled; and the program's own handlers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import types
from pathlib import Path

import pytest
from checkpoint_ranks import until
from shielded_worker import init, work, work_later

from everstep_checkpoint import Run
from everstep_checkpoint.shield import Shield, shield_data_loaders


def signal_as_a_stranger(pid: int) -> None:
    """All stop signals, from a process that is not the worker's parent."""
    stranger = os.fork()
    if stranger == 0:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            os.kill(pid, number)
            time.sleep(0.02)
        os._exit(0)
    os.waitpid(stranger, 0)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_worker_heeds_its_parent_only(how: str) -> None:
    context = multiprocessing.get_context(how)
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(Shield(init), theirs), daemon=True)
    worker.start()
    try:
        assert ours.poll(30)
        assert ours.recv() == "3", "the program's own init function ran"
        signal_as_a_stranger(worker.pid)
        ours.send("alive")
        assert ours.poll(10)
        assert ours.recv() == "alive"
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == 128 + signal.SIGTERM, "its parent can still end it"
    finally:
        worker.kill()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_worker_is_shielded_from_its_first_moment(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its init function has run, which on a busy machine is a second."""
    context = multiprocessing.get_context(how)
    ours, theirs = context.Pipe()

    class DataLoader:
        worker_init_fn = init
        num_workers = 1

        def _get_iterator(self) -> multiprocessing.process.BaseProcess:
            worker = context.Process(target=work_later, args=(self.worker_init_fn, theirs), daemon=True)
            worker.start()
            return worker

    module = types.ModuleType("torch.utils.data")
    module.DataLoader = DataLoader
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    shield_data_loaders()
    loader = DataLoader()
    loader.worker_init_fn = init
    worker = loader._get_iterator()
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before, "the program itself hears as it did"
        assert ours.poll(30)
        assert ours.recv() == "begun"
        signal_as_a_stranger(worker.pid)
        ours.send("go on")
        assert ours.poll(30)
        assert ours.recv() == "3"
    finally:
        worker.kill()


def test_every_loader_is_shielded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class DataLoader:
        worker_init_fn = None
        num_workers = 0

        def _get_iterator(self) -> object:
            return self.worker_init_fn

    module = types.ModuleType("torch.utils.data")
    module.DataLoader = DataLoader
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)
    shield_data_loaders()
    shield_data_loaders()
    loader = DataLoader()
    assert loader._get_iterator() is None, "no workers, nothing to shield"
    loader.num_workers, loader.worker_init_fn = 2, init
    assert loader._get_iterator().inner is init
    assert loader._get_iterator().inner is init, "also in the second epoch"


def test_the_programs_own_handler_has_its_turn_after_the_save(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def handler(number: int, frame: object) -> None:
        seen.append((number, any(tmp_path.glob("step_*"))))

    old = signal.signal(signal.SIGTERM, handler)
    try:
        with Run(tmp_path, state={}) as run:
            for step in run.steps(1000):
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                    until(lambda: run._team.member.stop, "the stop is agreed on")
                assert not seen
        assert seen == [(signal.SIGTERM, True)]
        with Run(tmp_path, state={}) as run:
            list(run.steps(2000))
        assert len(seen) == 1, "without a signal it has none"
    finally:
        signal.signal(signal.SIGTERM, old)
