"""The record of one attempt: what the platform reads to know what was saved, resumed and lost, whatever the exit code.

One JSON object a line, appended only. `step` counts completed steps everywhere, so that
`steps lost = highest step of attempt k - resumed_from of attempt k+1` holds as it stands.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import re
import secrets
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .reading import read_plain

log = logging.getLogger("everstep_checkpoint")

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: no pipe is waited for
PROGRESS_PERIOD = 1.0  # seconds between two progress lines; a line costs an fsync, so never one a step
_NAME = re.compile(r"attempt-([0-9]{4,9})\.jsonl")


def record_file(env: Mapping[str, str], directory: Path, attempt: int | None) -> Path:
    """Where this attempt's record goes: $EVERSTEP_RECORD_DIR, else under the Slurm job's folder, else beside the data.

    Without a number from the launcher the attempt is one more than the newest that is there.
    """
    if env.get("EVERSTEP_RECORD_DIR"):
        folder = Path(env["EVERSTEP_RECORD_DIR"])
    elif env.get("SLURM_JOB_ID"):
        folder = Path(env.get("HOME") or Path.home()) / ".everstep" / "jobs" / env["SLURM_JOB_ID"]
    else:
        folder = directory / "records"
    return folder / _name(attempt) if attempt is not None else _claimed(folder)


def _name(attempt: int) -> str:
    return f"attempt-{attempt:04d}.jsonl"


def _claimed(folder: Path) -> Path:
    """The next number, taken by making the file: of two attempts that begin at one moment each has its own."""
    attempt = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = [_NAME.fullmatch(name) for name in os.listdir(folder)]
        attempt = max((int(match[1]) for match in found if match), default=-1) + 1
        while True:
            try:
                os.close(os.open(folder / _name(attempt), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            except FileExistsError:
                attempt += 1
                continue
            return folder / _name(attempt)
    except OSError:
        return folder / _name(attempt)  # whoever writes to it says what is wrong


def finite(value: float | None) -> float | None:
    """A number that JSON can carry: NaN and infinities become None."""
    return value if value is not None and math.isfinite(value) else None


def _line(event: Mapping[str, Any]) -> bytes:
    """One event as a line that every JSON reader takes; what JSON cannot carry becomes text, or nothing."""
    plain = {name: finite(value) if isinstance(value, float) else value for name, value in event.items()}
    return json.dumps(plain, default=str).encode() + b"\n"


class Record:
    """Appends events from a thread of its own: a slow or full home directory never holds the training up.

    A failing write is reported once in the log and does not end training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._latest: dict[str, Any] | None = None
        self._complained = self._torn = False  # torn: the disk took a part of a line, as it does when it is full
        self._next_progress = 0.0  # monotonic seconds
        self._thread = threading.Thread(target=self._write_all, name="everstep-record", daemon=True)
        self._thread.start()

    def event(self, event: str, **fields: Any) -> None:
        """Append one event with the present time; the newest unwritten progress goes before it."""
        with self._lock:
            if self._latest is not None:
                self._queue.put(self._latest)
                self._latest = None
            self._queue.put({"event": event, "time": time.time(), **fields})

    def progress(self, step: int, loss: float | None) -> None:
        """Note that `step` steps are complete; written at most once a PROGRESS_PERIOD, the newest wins."""
        self._latest = {"event": "progress", "time": time.time(), "step": step, "loss": finite(loss)}

    @property
    def wants_progress(self) -> bool:
        """Whether the next progress line is due: a value that is dear to read need not be read before."""
        return time.monotonic() >= self._next_progress

    def close(self, patience: float = 10.0) -> None:
        """Write what is left and end the thread; gives up after `patience` seconds."""
        with self._lock:
            if self._latest is not None:
                self._queue.put(self._latest)
                self._latest = None
        self._queue.put(None)
        self._thread.join(patience)

    def _write_all(self) -> None:
        fd = -1
        while True:
            events: list[dict[str, Any] | None] = []
            with contextlib.suppress(queue.Empty):
                events.append(self._queue.get(timeout=0.25))
                while True:
                    events.append(self._queue.get_nowait())
            if not events and time.monotonic() >= self._next_progress:
                with self._lock:
                    latest, self._latest = self._latest, None
                if latest is not None:
                    events.append(latest)
                    self._next_progress = time.monotonic() + PROGRESS_PERIOD
            lines = b"".join(_line(event) for event in events if event is not None)
            if lines:
                fd = self._append(fd, lines)
            if None in events:
                if fd >= 0:
                    os.close(fd)
                return

    def _append(self, fd: int, lines: bytes) -> int:
        try:
            if fd < 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(self.path, _APPEND, 0o644)
            view = memoryview(b"\n" * self._torn + lines)
            while view:
                written = os.write(fd, view)
                self._torn = view[written - 1] != ord("\n")
                view = view[written:]
            os.fsync(fd)
        except OSError as error:
            if not self._complained:
                log.warning("cannot write the record %s (%s): training goes on without it", self.path, error)
                self._complained = True
        return fd


class StepCounter:
    """The highest completed step, kept exact through a kill -9 at 1-2 µs a step.

    The record's progress lines are up to a second old when a process is killed. This file is not: the next attempt
    reads it and puts the exact number into its own start event (`previous_highest_step`). It does not survive the loss
    of power of the node that wrote it.
    """

    _FORMAT = struct.Struct("<8sq")
    _MAGIC = b"evrstp01"

    def __init__(self, path: Path, step: int) -> None:
        self.previous = self._read(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        self._fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.set(step)
        # A new file takes the old one's name: an older attempt that still lives writes to a file nobody reads.
        os.rename(temporary, path)

    def set(self, step: int) -> None:
        """Store `step`; after a failure, which is logged, no more: a counter must not end the training it counts."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, self._FORMAT.pack(self._MAGIC, step), 0)
        except OSError as error:
            log.warning("the exact step counter stops here: %s", error)
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @classmethod
    def _read(cls, path: Path) -> int | None:
        try:
            magic, step = cls._FORMAT.unpack(read_plain(path))
        except (OSError, struct.error):
            return None
        return int(step) if magic == cls._MAGIC else None
