"""Reading what jobs wrote: truthful where the file is honest, unharmed where it is not."""

from __future__ import annotations

import json
import os
import pwd
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.slurm import records as records_module
from everstep.adapters.slurm.records import RecordFolder
from everstep.core.attempt_records import join_attempts, read_attempt
from everstep.core.errors import Unreachable
from everstep.core.scheduler_state import AttemptProgress

EVENTS: list[dict[str, object]] = [
    {"event": "start", "attempt": 0, "resumed_from": None, "time": 100.0},
    {"event": "progress", "step": 1, "loss": 0.9, "time": 101.0},
    {"event": "save", "phase": "begin", "step": 5, "time": 102.0},
    {"event": "save", "phase": "committed", "step": 5, "bytes": 1000, "seconds": 0.5, "time": 102.5},
    {"event": "progress", "step": 9, "loss": 0.5, "time": 104.0},
    {"event": "stop", "signal": "SIGTERM", "asked_at": 104.2, "agreed_step": 10, "time": 104.3},
    {"event": "save", "phase": "committed", "step": 10, "bytes": 2000, "seconds": 0.7, "time": 105.0},
    {"event": "end", "outcome": "stopped", "saved_step": 10, "time": 105.1},
]


def lines(*events: dict[str, object]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


def test_an_honest_record() -> None:
    assert read_attempt(0, lines(*EVENTS)).progress == AttemptProgress(
        attempt=0,
        started_at=100.0,
        resumed_from=None,
        highest_step=10,
        first_step_at=101.0,
        saved_step=10,
        saved_bytes=2000,
        save_seconds=0.7,
        saved_at=105.0,
        stop_asked_at=104.2,
        outcome="stopped",
    )


def test_the_end_knows_the_exact_step() -> None:
    record = read_attempt(0, lines(*EVENTS[:5], {"event": "end", "outcome": "failed", "step": 12, "time": 106.0}))
    assert (record.progress.highest_step, record.progress.saved_step) == (12, 5)


def test_the_next_attempt_knows_the_exact_highest_step() -> None:
    first = read_attempt(0, lines(*EVENTS[:2]))
    second = read_attempt(1, lines({"event": "start", "resumed_from": 5, "time": 200, "previous_highest_step": 7}))
    assert [a.highest_step for a in join_attempts([first, second])] == [7, None]


@pytest.mark.parametrize("step", [-1, 1.5, True, "7", None, 2**60, float("nan"), [], {}])
def test_numbers_out_of_range_are_skipped(step: object) -> None:
    record = read_attempt(0, lines({"event": "progress", "step": step, "time": 1.0}))
    assert record.progress == AttemptProgress(attempt=0)


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                lambda inner: st.dictionaries(
                    st.sampled_from(
                        ["event", "step", "time", "phase", "seconds", "bytes", "outcome", "asked_at", "resumed_from"]
                    ),
                    inner | st.sampled_from(["start", "progress", "save", "stop", "end", "committed"]),
                    max_size=6,
                ),
                max_leaves=8,
            ).map(lambda value: json.dumps(value).encode()),
        ),
        max_size=8,
    )
)
def test_nothing_in_a_record_raises(garbage: list[bytes]) -> None:
    progress = read_attempt(3, garbage).progress
    assert progress.attempt == 3
    assert progress.highest_step is None or 0 <= progress.highest_step <= 2**53
    assert progress.outcome in {None, "stopped", "finished", "failed"}


@pytest.mark.parametrize("outcome", [[], {}, ["stopped"], 1, None, True])
def test_an_outcome_that_is_no_word_is_skipped(outcome: object) -> None:
    assert read_attempt(0, lines({"event": "end", "outcome": outcome, "step": 5})).progress == AttemptProgress(0)


@pytest.mark.parametrize("time", [2.0**53, 253_402_300_800, 1e12, -1, float("nan"), float("inf")])
def test_a_time_that_no_calendar_knows_is_skipped(time: float) -> None:
    """It could not be written into the Remediation: one user's record would stop every heal that reads it."""
    events = [{"event": event, "step": 5, "phase": "committed", "asked_at": time, "time": time} for event in _NAMES]
    progress = read_attempt(0, lines(*events)).progress
    assert (progress.started_at, progress.first_step_at, progress.saved_at, progress.stop_asked_at) == (None,) * 4
    assert progress.saved_step == 5


_NAMES = ("start", "progress", "save", "stop")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of a user whom this machine does not know: its owner is then the user."""
    folder = tmp_path / "alice" / ".everstep" / "jobs" / "7"
    folder.mkdir(parents=True)
    return folder


def progress(tmp_path: Path) -> tuple[AttemptProgress, ...]:
    return RecordFolder(tmp_path).progress("7", "alice").attempts


def test_reads_every_attempt_in_order(tmp_path: Path, home: Path) -> None:
    for attempt in (1, 0):
        (home / f"attempt-{attempt:04d}.jsonl").write_bytes(b"\n".join(lines(*EVENTS)))
    (home / "notes.txt").write_text("x")
    assert [a.attempt for a in progress(tmp_path)] == [0, 1]


def test_no_record_is_no_error(tmp_path: Path, home: Path) -> None:
    assert progress(tmp_path) == ()
    assert RecordFolder(tmp_path).progress("8", "alice").attempts == ()
    assert RecordFolder(tmp_path).progress("8", "nobody-such").attempts == ()


def test_a_home_root_that_is_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        RecordFolder(tmp_path / "not-mounted").progress("7", "alice")


@pytest.mark.parametrize("part", ["alice", ".everstep", "jobs", "7", "attempt-0000.jsonl"])
def test_no_link_is_followed(tmp_path: Path, home: Path, part: str) -> None:
    (home / "attempt-0000.jsonl").write_bytes(b"\n".join(lines(*EVENTS)))
    assert len(progress(tmp_path)) == 1
    parts = ["alice", ".everstep", "jobs", "7", "attempt-0000.jsonl"]
    path = tmp_path.joinpath(*parts[: parts.index(part) + 1])
    moved = tmp_path / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)
    assert progress(tmp_path) == ()


def test_a_pipe_does_not_hold_the_reader_up(tmp_path: Path, home: Path) -> None:
    os.mkfifo(home / "attempt-0000.jsonl")
    result: list[object] = []
    reader = threading.Thread(target=lambda: result.append(progress(tmp_path)), daemon=True)
    reader.start()
    reader.join(5)
    assert result == [()]


def test_a_hard_link_to_somebody_elses_file_is_not_read(tmp_path: Path, home: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"\n".join(lines(*EVENTS)))
    (home / "attempt-0000.jsonl").hardlink_to(other)
    assert progress(tmp_path) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_only_the_users_own_files_count(tmp_path: Path, home: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    record = home / "attempt-0000.jsonl"
    record.write_bytes(b"\n".join(lines(*EVENTS)))
    os.chown(record, nobody, -1)
    assert progress(tmp_path) == ()
    for path in (record, home, home.parent, home.parent.parent, tmp_path / "alice"):
        os.chown(path, nobody, -1)
    assert len(progress(tmp_path)) == 1
    assert RecordFolder(tmp_path).progress("7", "root").attempts == (), "root's home is not alice's"


def test_a_huge_record_is_read_at_both_ends(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    pread = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        data = pread(file, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    middle = b"\n".join(lines(*[{"event": "progress", "step": n, "time": 101.0 + n} for n in range(1, 60_000)]))
    (home / "attempt-0000.jsonl").write_bytes(b"\n".join([lines(EVENTS[0])[0], middle, lines(EVENTS[-1])[0]]))
    (seen,) = progress(tmp_path)
    assert (seen.started_at, seen.first_step_at, seen.highest_step, seen.outcome) == (100.0, 102.0, 59_999, "stopped")
    assert sum(read) <= records_module.HEAD_BYTES + records_module.TAIL_BYTES < len(middle)
