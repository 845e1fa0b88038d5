"""The kernel log by way of systemd's journal, for hosts that give no access to ``/dev/kmsg``.

``journalctl`` reads it, as a child. Bindings for Python need C headers to build, and the files' format is systemd's own
business. First one child reads what is there to its end; then another follows from the last entry's cursor on, so that
rotated files neither repeat nor hide a record.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from everstep.adapters.node.child import Child, start
from everstep.core.errors import Unreachable
from everstep.core.journal_record import JournalEntry, Numbering, as_record
from everstep.ports import Batch, KernelLog

BATCH = 2000  # records taken before other tasks get their turn
_FIELDS = (
    "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER", "SYSLOG_PID", "MESSAGE", "_SOURCE_MONOTONIC_TIMESTAMP",
    "_TRANSPORT",
)  # fmt: skip
_HELD = 16 << 20  # bytes of records; what the first reading has beyond that is lost, as in the kernel's own ring
_CATCH_UP = 120.0  # seconds; the kernel's entries are found by an index, so gigabytes of others do not matter
_LATEST = 1 << 53  # microseconds, 285 years after boot: a number made of it stays within 64 bits
_NAME = "journal"
# SD_MESSAGE_JOURNAL_MISSED of sd-messages.h: journald was too slow for the kernel's ring.
_MISSED_ID = "e9bf28e6e834481bb6f48f548ad13606"
_KERNEL = (("_TRANSPORT=kernel",), ("_TRANSPORT=driver", f"MESSAGE_ID={_MISSED_ID}"))
_ROOT = (("_UID=0",),)
_MISSED = re.compile(rb"Missed (\d{1,12}) kernel messages")


class _Line(msgspec.Struct):
    """An entry as ``--output=json`` prints it. A text that is no UTF-8 is a list of bytes, one too long is null."""

    cursor: str = msgspec.field(name="__CURSOR", default="")
    time: Any = msgspec.field(name="__MONOTONIC_TIMESTAMP", default=None)
    source_time: Any = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default=None)
    level: Any = msgspec.field(name="PRIORITY", default=None)
    facility: Any = msgspec.field(name="SYSLOG_FACILITY", default=None)
    identifier: Any = msgspec.field(name="SYSLOG_IDENTIFIER", default=None)
    pid: Any = msgspec.field(name="SYSLOG_PID", default=None)
    message: Any = msgspec.field(name="MESSAGE", default=None)
    transport: Any = msgspec.field(name="_TRANSPORT", default=None)


_decoder = msgspec.json.Decoder(_Line)


def read_entry(line: bytes) -> tuple[str, JournalEntry | int] | None:
    """Cursor of one line of ``journalctl --output=json``, and its entry or how many records journald says it missed.

    None for what is no entry. Never raises.
    """
    try:
        raw = _decoder.decode(line)
        microseconds = int(raw.source_time if raw.source_time is not None else raw.time)
        level, facility = int(raw.level or 6), int(raw.facility or 0)
        message = _bytes(raw.message)
    except (ValueError, TypeError, OverflowError):  # msgspec's errors are ValueErrors
        return None
    if raw.transport == "driver":  # journald itself
        missed = _MISSED.search(message)
        return raw.cursor, int(missed[1]) if missed else 0
    if not 0 <= microseconds < _LATEST or not 0 <= level < 8 or not 0 <= facility < 1024:
        return None
    words = [word if isinstance(word, str) else "" for word in (raw.identifier, raw.pid)]
    return raw.cursor, JournalEntry(microseconds, level, facility, message, *words)


def _bytes(text: object) -> bytes:
    if isinstance(text, str):
        return text.encode(errors="replace")
    return bytes(text) if isinstance(text, list) else b""


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of this boot, as a :class:`everstep.ports.LineSource`.

    Attributes:
        boot_id: as ``/proc/sys/kernel/random/boot_id`` gives it.
        folder: where the journal's files are; None for where journalctl looks by itself.
        command: journalctl.
    """

    boot_id: str
    folder: Path | None = None
    command: str = "journalctl"
    name: str = "kernel log"
    numbering: str = _NAME

    async def open(self) -> KernelLog:
        """Reads what is there. Unreachable when journalctl fails or may not see the system's own entries."""
        log = JournalLog(self)
        try:
            await log.catch_up()
        except BaseException:
            log.close()
            raise
        return log

    def arguments(self, *more: str, match: Sequence[Sequence[str]] = _KERNEL) -> Sequence[str]:
        """The command that prints entries of this boot for which one of the conjunctions in ``match`` holds."""
        where = [f"--directory={self.folder}"] if self.folder else []
        boot = f"_BOOT_ID={self.boot_id.replace('-', '')}"
        matches = [word for number, part in enumerate(match) for word in (*(["+"] if number else []), boot, *part)]
        fields = f"--output-fields={','.join(_FIELDS)}"  # since systemd 236
        return [self.command, *where, "--output=json", "--all", "--no-pager", "--quiet", fields, *more, *matches]


class JournalLog:
    """An open journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._records: deque[bytes] = deque()
        self._held = 0  # bytes in the records
        self._lost = 0
        self._numbering = Numbering()
        self._cursor = ""
        self._changed = asyncio.Event()
        self._following: Child | None = None
        self._paused = False
        self._broken = False

    async def catch_up(self) -> None:
        """Reads to the end of what is there, then begins to follow."""
        try:
            async with asyncio.timeout(_CATCH_UP):
                await self._finished(self._take, self._journal.arguments())
                seen = bool(self._cursor) or await self._sees_the_system()
        except TimeoutError:
            raise Unreachable(f"{self._journal.command} did not come to its end within {_CATCH_UP:.0f} s") from None
        if not seen:
            raise Unreachable(f"{self._journal.command} shows no entry of the system: it may not read the journal")
        after = [f"--after-cursor={self._cursor}"] if self._cursor else []
        command = self._journal.arguments("--follow", "--no-tail", *after)
        self._following = await start(command, self._take_more, self._end)

    def available(self) -> Batch:
        batch = [self._records.popleft() for _ in range(min(BATCH, len(self._records)))]
        self._held -= sum(map(len, batch))
        lost = self._lost if batch else 0  # an empty batch is looked at by nobody
        self._lost -= lost
        if self._paused and self._held < _HELD // 2 and self._following is not None:
            self._paused = False
            self._following.resume()
        if not batch and self._broken and self._following is not None:
            raise Unreachable(self._following.reason)
        return Batch(batch, lost)

    async def read(self) -> Batch:
        while True:
            self._changed.clear()
            batch = self.available()
            if batch.records:
                return batch
            await self._changed.wait()

    def close(self) -> None:
        if self._following is not None:
            self._following.close()

    def _take_more(self, lines: Sequence[bytes]) -> None:
        """Lines that follow. When too many wait, journalctl does: the journal keeps what comes meanwhile."""
        self._take(lines)
        self._changed.set()
        if self._held > _HELD // 2 and not self._paused and self._following is not None:
            self._paused = True
            self._following.pause()

    def _end(self) -> None:
        self._broken = True
        self._changed.set()

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            found = read_entry(line)
            if found is None:
                continue
            self._cursor, entry = found
            if isinstance(entry, int):
                self._lost += entry
                continue
            self._numbering = self._numbering.after(entry.microseconds)
            record = as_record(entry, self._numbering.sequence)
            self._records.append(record)
            self._held += len(record)
            while self._held > _HELD:
                self._held -= len(self._records.popleft())
                self._lost += 1

    async def _sees_the_system(self) -> bool:
        """Whether root's entries are shown. Who may not read the system's journal gets an empty answer, no error."""
        seen: list[bytes] = []
        await self._finished(seen.extend, self._journal.arguments("--lines=1", match=_ROOT))
        return any(read_entry(line) for line in seen)

    async def _finished(self, take: Callable[[Sequence[bytes]], None], command: Sequence[str]) -> None:
        """Runs journalctl to its end."""
        child = await start(command, take)
        try:
            await child.finished()
        finally:
            child.close()
