"""Checkpoints where nothing can be renamed: on fsspec's memory and local file systems."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from checkpoint_ranks import PROGRAMS, records, until
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from everstep_checkpoint import Every, InvalidCheckpointError, Run, SupersededError, arrays
from everstep_checkpoint.errors import UnreadableCheckpointError
from everstep_checkpoint.snapshot import HostMemory
from everstep_checkpoint.store import StoreVault

KILLS = int(os.environ.get("EVERSTEP_FUZZ_KILLS", "36")) // 6


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EVERSTEP_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/store/run"
    yield place
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def shared_url(tmp_path: Path) -> str:
    """A store that other processes see, too."""
    return f"file://{tmp_path}/store"


def steps(url: str) -> list[int]:
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return sorted(int(path.rpartition("_")[2]) for path in fs.ls(root, detail=False) if "/step_" in path)


def train(directory: Path, url: str, total: int, stop_at: int | None = None) -> tuple[Run, np.ndarray]:
    held = {"w": np.zeros(3000)}
    generator = np.random.default_rng(1)
    state = {"w": arrays(held), "generator": generator}
    with Run(directory, state=state, keep=2, every=Every(steps=2), store=url) as run:
        for step in run.steps(total):
            held["w"] += generator.random(3000)
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: run._team.member.stop, "the stop is agreed on")
    return run, held["w"]


def test_stopped_and_resumed_is_the_same_run(tmp_path: Path, url: str) -> None:
    run, _ = train(tmp_path / "own", url, 30, stop_at=10)
    assert (run.outcome, run.saved_step) == ("stopped", 11)
    assert steps(url)[-2:] == [10, 11], "the newest two"
    run, cut = train(tmp_path / "own", url, 30)
    assert run.resumed_from == 11
    assert not list((tmp_path / "own").glob("step_*")), "nothing large beside the small files"
    _, whole = train(tmp_path / "other", f"{url}-whole", 30)
    assert np.array_equal(cut, whole)
    assert steps(f"{url}-whole") == [28, 30], "two are kept"
    assert records(tmp_path / "own")[1][0]["checkpoint"] == "step_00000011"


def opened(directory: Path, url: str, token: str = "a") -> StoreVault:
    vault = StoreVault(directory, token, url)
    vault.open()
    return vault


def save(vault: StoreVault, step: int) -> None:
    reports = {}
    for rank in range(2):
        snapshot = HostMemory().take({"step": step, "rank": rank, "bulk": bytes(2000)})
        reports[rank] = vault.write_rank(step, rank, snapshot, lambda: False)["manifest"]
    vault.publish(step, reports, {})


def edit(url: str, tail: str, change: Callable[[bytes], bytes | None]) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    (path,) = [path for path in fs.find(root) if path.endswith(tail)]
    data = change(fs.cat_file(path))
    if data is None:
        fs.rm_file(path)
    else:
        fs.pipe_file(path, data)


DAMAGE: list[tuple[str, Callable[[bytes], bytes | None]]] = [
    ("step_00000020/a/rank-0001.shard", lambda data: data[:-1]),
    ("step_00000020/a/rank-0000.shard", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ("step_00000020/a/rank-0000.shard", lambda data: b""),
    ("step_00000020/a/rank-0000.shard", lambda data: None),
    ("step_00000020/a/rank-0001.json", lambda data: None),
    ("step_00000020/MANIFEST.json", lambda data: data[: len(data) // 2]),
    ("step_00000020/MANIFEST.json", lambda data: None),
    ("step_00000020/MANIFEST.json", lambda data: json.dumps(json.loads(data) | {"step": 10}).encode()),
]


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_a_damaged_one_is_never_resumed(tmp_path: Path, url: str, number: int) -> None:
    vault = opened(tmp_path, url)
    save(vault, 10)
    save(vault, 20)
    edit(url, *DAMAGE[number])
    reader = opened(tmp_path, url, "b")
    found = reader.newest_valid()
    assert found is not None
    assert found.step == 10
    assert reader.read_rank(found, 1)[0]["rank"] == 1
    reader.sweep()
    assert steps(url) == [10], "what is no checkpoint any more is removed"


def test_an_older_attempt_publishes_nothing_any_more_and_nothing_is_overwritten(tmp_path: Path, url: str) -> None:
    old = opened(tmp_path, url, "old")
    save(old, 10)
    new = opened(tmp_path, url, "new")
    with pytest.raises(SupersededError):
        save(old, 20)
    save(new, 10)
    assert new._launch_of("step_00000010") == "old"
    old.discard(20)
    new.discard(10)
    assert new.verified("step_00000010").step == 10
    assert [name for _, name in new.published()] == ["step_00000010"]


class StumblingStore(MemoryFileSystem):  # type: ignore[misc]
    """A store whose client raises, once `failure` is set, what no file system raises."""

    protocol = "stumbling"
    failure: Exception | None = None
    exists = AbstractFileSystem.exists  # for which every failure is "not there"

    def _stumble(self) -> None:
        if StumblingStore.failure is not None:
            raise StumblingStore.failure

    def info(self, path: str, **kwargs: Any) -> Any:
        self._stumble()
        return super().info(path, **kwargs)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._stumble()
        return super()._open(path, *args, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._stumble()
        return super().cat_file(path, *args, **kwargs)


@pytest.fixture
def stumbling(tmp_path: Path) -> Iterator[str]:
    fsspec.register_implementation("stumbling", StumblingStore, clobber=True)
    yield f"stumbling://{tmp_path.name}/run"
    StumblingStore.failure = None
    StumblingStore.store.clear()


FAILURES = [RuntimeError("could not connect to the endpoint"), OSError(errno.EINVAL, "bad request"), TimeoutError()]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_store_that_does_not_answer_is_not_an_empty_one(tmp_path: Path, stumbling: str, failure: Exception) -> None:
    vault = opened(tmp_path, stumbling)
    save(vault, 10)
    save(vault, 20)
    StumblingStore.failure = failure
    for ask in (vault.published, vault.newest_valid, vault.sweep):
        with pytest.raises(OSError):  # noqa: PT011 - of whatever number: what counts is that it is no answer
            ask()
    with pytest.raises(UnreadableCheckpointError):
        vault.verified("step_00000020")
    vault.discard(20)
    StumblingStore.failure = None
    vault.sweep()
    assert [vault.verified(name).step for _, name in vault.published()] == [10, 20], "nothing was taken for damaged"


def test_a_store_that_fails_does_not_end_the_training(tmp_path: Path, stumbling: str) -> None:
    held = {"w": np.zeros(10)}
    with Run(tmp_path, state={"w": arrays(held)}, every=Every(steps=1), store=stumbling) as run:
        for step in run.steps(12):
            held["w"] += 1
            if step == 3:
                until(lambda: steps(stumbling), "a first save has begun")
                until(run._saver.wait, "it is over")
                StumblingStore.failure = FAILURES[0]
    StumblingStore.failure = None
    assert run.outcome == "finished"
    phases = [event["phase"] for event in records(tmp_path)[0] if event["event"] == "save"]
    assert "committed" in phases
    assert phases[-1] == "failed"


def test_a_shard_is_checked_again_where_it_is_loaded(tmp_path: Path, url: str) -> None:
    vault = opened(tmp_path, url)
    save(vault, 20)
    found = vault.verified("step_00000020")
    edit(url, *DAMAGE[1])
    with pytest.raises(InvalidCheckpointError):
        vault.read_rank(found, 0)


@pytest.mark.timeout(300 + 24 * KILLS)
def test_kills_never_cost_a_published_checkpoint(tmp_path: Path, shared_url: str) -> None:
    dice, newest, url, cut = random.Random(7), 0, shared_url, 0
    for kill in range(6 * KILLS):
        if kill >= KILLS and cut:
            break
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "fuzzed.py"), str(tmp_path / "own"), url],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.strip().isdigit(), first + process.stdout.read()
        assert int(first) == newest, "the next attempt must begin at the newest checkpoint"
        reader = StoreVault(tmp_path / "own", "reader", url)
        until(
            lambda store=reader, old=newest: store.published()[-1:] > [(old, "~")], "one more checkpoint is published"
        )
        try:
            process.wait(timeout=dice.uniform(0, 0.3))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        found = [reader.verified(name).step for _, name in reader.published()]
        assert found[-1] > newest
        newest = found[-1]
        cut += len(steps(url)) > len(found)
        assert len(found) >= min(2, newest), "retention took one too many"
    assert cut, "no kill hit a save or a deletion: this tests nothing"
