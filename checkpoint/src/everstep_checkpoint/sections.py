"""Phases of the training with a limit: told to the record, and told again when one takes longer than it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .agreement import Note


@dataclass(slots=True)
class _Open:
    name: str
    limit: float | None
    began: float
    said: bool = False


class Sections:
    """The sections that are open now. The main thread opens and closes them, a background thread watches the limits."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._open: list[_Open] = []
        self._lock = threading.Lock()

    @contextmanager
    def section(self, name: str, limit: float | None, step: int) -> Iterator[None]:
        """`limit` in seconds. Raises ValueError for a limit that is none."""
        if limit is not None and not limit > 0:
            raise ValueError("section: limit must be more than 0 seconds")
        entry = _Open(name, limit, time.monotonic())
        self._note("section", phase="begin", name=name, limit=limit, step=step)
        with self._lock:
            self._open.append(entry)
        ok = False
        try:
            yield
            ok = True
        finally:
            with self._lock:
                self._open.remove(entry)
            seconds = round(time.monotonic() - entry.began, 3)
            self._note("section", phase="end", name=name, seconds=seconds, step=step, ok=ok)

    def watch(self, now: float) -> None:
        """Say once of each open section that it is over its limit. `now` in monotonic seconds."""
        with self._lock:
            late = [entry for entry in self._open if entry.limit is not None and not entry.said]
        for entry in late:
            if entry.limit is not None and now - entry.began > entry.limit:
                entry.said = True
                self._note("section", phase="overdue", name=entry.name, limit=entry.limit,
                           seconds=round(now - entry.began, 3))  # fmt: skip
