"""The kernel log by way of systemd's journal, for hosts that give no access to ``/dev/kmsg``.

``journalctl`` reads it, as a child. Bindings for Python need C headers to build, and the files' format is systemd's own
business. First one child reads what is there to its end; then another follows from the last entry's cursor on, so that
rotated files neither repeat nor hide a record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from everstep.core.errors import Unreachable
from everstep.core.journal_record import JournalEntry, Numbering, as_record
from everstep.ports import Batch, KernelLog

BATCH = 2000  # records taken before other tasks get their turn
_FIELDS = (
    "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER", "SYSLOG_PID", "MESSAGE", "_SOURCE_MONOTONIC_TIMESTAMP",
)  # fmt: skip
_HELD = 16 << 20  # bytes of records; what the first reading has beyond that is lost, as in the kernel's own ring
_CHUNK = 1 << 16
_LINE_LIMIT = 1 << 20  # a kernel record is 8 KiB at most, and JSON makes six bytes of one
_NAME = "journal"


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


_decoder = msgspec.json.Decoder(_Line)


def read_entry(line: bytes) -> tuple[str, JournalEntry] | None:
    """Cursor and entry of one line of ``journalctl --output=json``; None for what is no entry. Never raises."""
    try:
        raw = _decoder.decode(line)
        microseconds = int(raw.source_time if raw.source_time is not None else raw.time)
        level, facility = int(raw.level or 6), int(raw.facility or 0)
        message = raw.message.encode(errors="replace") if isinstance(raw.message, str) else bytes(raw.message or ())
    except (ValueError, TypeError):  # msgspec's errors are ValueErrors
        return None
    if microseconds < 0 or not 0 <= level < 8 or not 0 <= facility < 1024:
        return None
    words = [word if isinstance(word, str) else "" for word in (raw.identifier, raw.pid)]
    return raw.cursor, JournalEntry(microseconds, level, facility, message, *words)


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

    def arguments(self, *more: str) -> Sequence[str]:
        """The command that prints entries of this boot."""
        where = [f"--directory={self.folder}"] if self.folder else []
        boot = f"_BOOT_ID={self.boot_id.replace('-', '')}"
        fields = f"--output-fields={','.join(_FIELDS)}"  # since systemd 236
        return [self.command, *where, "--output=json", "--all", "--no-pager", "--quiet", fields, *more, boot]


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
        self._room = asyncio.Event()
        self._broken: str | None = None
        self._following: asyncio.Task[None] | None = None

    async def catch_up(self) -> None:
        """Reads to the end of what is there, then begins to follow."""
        empty = True
        async with contextlib.aclosing(_lines(self._journal.arguments("_TRANSPORT=kernel"))) as lines:
            async for line in lines:
                empty = not self._take(line) and empty
        if empty and not await self._sees_the_system():
            raise Unreachable(f"{self._journal.command} shows no entry of the system: it may not read the journal")
        self._following = asyncio.create_task(self._follow())

    def available(self) -> Batch:
        batch = [self._records.popleft() for _ in range(min(BATCH, len(self._records)))]
        self._held -= sum(map(len, batch))
        lost, self._lost = self._lost, 0
        if not batch and self._broken is not None:
            raise Unreachable(self._broken)
        self._room.set()
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
            self._following.cancel()  # which ends the child, too

    async def _follow(self) -> None:
        after = [f"--after-cursor={self._cursor}"] if self._cursor else []
        command = self._journal.arguments("--follow", "--no-tail", *after, "_TRANSPORT=kernel")
        try:
            async with contextlib.aclosing(_lines(command)) as lines:
                async for line in lines:
                    self._take(line)
                    self._changed.set()
                    while self._held > _HELD // 2:  # journalctl waits for us; the journal keeps what comes meanwhile
                        self._room.clear()
                        await self._room.wait()
            self._broken = f"{self._journal.command} ended"
        except Unreachable as why:
            self._broken = str(why)
        finally:
            self._changed.set()

    def _take(self, line: bytes) -> bool:
        found = read_entry(line)
        if found is None:
            return False
        self._cursor, entry = found
        self._numbering = self._numbering.after(entry.microseconds)
        record = as_record(entry, self._numbering.sequence)
        self._records.append(record)
        self._held += len(record)
        while self._held > _HELD:
            self._held -= len(self._records.popleft())
            self._lost += 1
        return True

    async def _sees_the_system(self) -> bool:
        """Whether root's entries are shown. Who may not read the system's journal gets an empty answer, no error."""
        async with contextlib.aclosing(_lines(self._journal.arguments("--lines=1", "_UID=0"))) as lines:
            return any([read_entry(line) is not None async for line in lines])


async def _lines(command: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """What a child prints, line by line, to its end. Unreachable when it cannot be started or fails; ends it, too."""
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as why:
        raise Unreachable(f"cannot run {command[0]}: {why.strerror}") from why
    assert child.stdout is not None
    assert child.stderr is not None
    complaints = asyncio.create_task(_last_words(child.stderr))
    try:
        partial = b""
        while chunk := await child.stdout.read(_CHUNK):
            *lines, partial = (partial + chunk).split(b"\n")
            if len(partial) > _LINE_LIMIT:
                partial = b""
            for line in lines:
                yield line
        if await child.wait() != 0:
            raise Unreachable(f"{command[0]} failed with {child.returncode}: {await complaints}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        complaints.cancel()


async def _last_words(stream: asyncio.StreamReader) -> str:
    """The end of what a child complains about; reading it keeps a child that complains a lot from standing still."""
    words = b""
    while chunk := await stream.read(_CHUNK):
        words = (words + chunk)[-400:]
    return words.decode(errors="replace").strip() or "it said nothing"
