"""The record that a training job writes about itself, one JSONL file an attempt, reduced to what the story needs.

The file belongs to the user: every line may be anything. What does not parse, or carries a number out of range, is
skipped; nothing that Everstep does to a job or a node depends on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from everstep.core.scheduler_state import AttemptProgress

_MAX_STEP = 2**53  # the largest integer that every JSON reader keeps exact
_MAX_TIME = 253_402_300_799  # the end of the year 9999: the last second that RFC 3339 can write
_MAX_LINE = 64 * 1024
_OUTCOMES = frozenset({"stopped", "finished", "failed"})
_Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt, and what it says about the attempt before it.

    Attributes:
        previous_highest_step: the highest step of the attempt before, exact also when that one was killed between
            two progress lines.
    """

    progress: AttemptProgress
    previous_highest_step: int | None = None


def read_attempt(attempt: int, lines: Iterable[bytes]) -> AttemptRecord:
    """Reduces the lines of one file, in their order; unknown events and fields are ignored."""
    record = AttemptRecord(AttemptProgress(attempt=attempt))
    for line in lines:
        event = _parse(line)
        if event is not None and (apply := _EVENTS.get(str(event.get("event")))):
            record = apply(record, event)
    return record


def join_attempts(records: Sequence[AttemptRecord]) -> tuple[AttemptProgress, ...]:
    """The attempts, oldest first, each with the highest step that its successor found for it."""
    attempts = {record.progress.attempt: record.progress for record in records}
    for record in records:
        before = attempts.get(record.progress.attempt - 1)
        if before is not None:
            highest = _highest(before.highest_step, record.previous_highest_step)
            attempts[before.attempt] = replace(before, highest_step=highest)
    return tuple(attempts[number] for number in sorted(attempts))


def _parse(line: bytes) -> _Event | None:
    if len(line) > _MAX_LINE:
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _start(record: AttemptRecord, event: _Event) -> AttemptRecord:
    if record.progress.started_at is not None:
        return record  # the first start counts: a launcher may start the same attempt again
    progress = replace(
        record.progress,
        started_at=_time(event.get("time")),
        resumed_from=_step(event.get("resumed_from")),
        load_seconds=_seconds(event.get("load_seconds")),
    )
    return replace(record, progress=progress, previous_highest_step=_step(event.get("previous_highest_step")))


def _progress(record: AttemptRecord, event: _Event) -> AttemptRecord:
    step = _step(event.get("step"))
    if step is None:
        return record
    first = record.progress.first_step_at
    progress = replace(
        record.progress,
        highest_step=_highest(record.progress.highest_step, step),
        first_step_at=_time(event.get("time")) if first is None else first,
    )
    return replace(record, progress=progress)


def _save(record: AttemptRecord, event: _Event) -> AttemptRecord:
    step = _step(event.get("step"))
    if event.get("phase") != "committed" or step is None:
        return record
    progress = replace(
        record.progress,
        saved_step=step,
        saved_bytes=_step(event.get("bytes")),
        save_seconds=_seconds(event.get("seconds")),
        saved_at=_time(event.get("time")),
        highest_step=_highest(record.progress.highest_step, step),
    )
    return replace(record, progress=progress)


def _stop(record: AttemptRecord, event: _Event) -> AttemptRecord:
    if record.progress.stop_asked_at is not None:
        return record
    asked_at = _time(event.get("asked_at"))
    return replace(record, progress=replace(record.progress, stop_asked_at=asked_at or _time(event.get("time"))))


def _end(record: AttemptRecord, event: _Event) -> AttemptRecord:
    outcome = event.get("outcome")
    if not isinstance(outcome, str) or outcome not in _OUTCOMES:
        return record
    # The end knows the exact step; the last progress line may be a second older.
    highest = _highest(record.progress.highest_step, _step(event.get("step")) or None)
    return replace(record, progress=replace(record.progress, outcome=outcome, highest_step=highest))


_EVENTS: dict[str, Callable[[AttemptRecord, _Event], AttemptRecord]] = {
    "start": _start,
    "progress": _progress,
    "save": _save,
    "stop": _stop,
    "end": _end,
}


def _highest(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def _step(value: object) -> int | None:
    """Also for byte counts: a whole number from 0 up."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_STEP else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MAX_STEP and math.isfinite(value) and value >= 0 else None


def _time(value: object) -> float | None:
    """Unix seconds that a calendar knows; zero is no time."""
    seconds = _seconds(value)
    return seconds if seconds and seconds <= _MAX_TIME else None
