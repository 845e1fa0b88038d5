"""The kernel log as batches of records: ``/dev/kmsg`` itself, or a file of such records that stands for it."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path

from everstep.adapters.gpu.file_events import FileEvents
from everstep.core.errors import InvalidInput, Unreachable
from everstep.ports import Batch, KernelLog

BATCH = 2000  # records taken before other tasks get their turn
_RECORD_LIMIT = 16384  # the kernel's own limit is 8 KiB with continuation lines (CONSOLE_EXT_LOG_MAX)
_CHUNK = 1 << 18
_REPLACED_EVERY = 1.0  # seconds between looks whether the file was replaced by a new one


class KernelLogFile:
    """The kernel log at a path, as a :class:`everstep.ports.LineSource`."""

    name = "kernel log"
    numbering = "kmsg"  # the kernel's own

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> KernelLog:
        return open_kernel_log(self._path)


def open_kernel_log(path: Path) -> KernelLog:
    """Opens the device or file at ``path``. Unreachable when it cannot be opened, InvalidInput when it is a folder."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode):
            return DeviceLog(path)
        if stat.S_ISREG(mode):
            return FileLog(path)
    except OSError as why:
        raise Unreachable(f"cannot open the kernel log {path}: {why.strerror}") from why
    raise InvalidInput(f"{path} is neither a device nor a file; give the kernel log, usually /dev/kmsg")


class DeviceLog:
    """``/dev/kmsg``: each read gives one record; EPIPE says that records were overwritten."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._last: int | None = None

    def close(self) -> None:
        os.close(self._fd)

    async def read(self) -> Batch:
        while True:
            batch = self.available()
            if batch.records:
                return batch
            await self._readable()

    def available(self) -> Batch:
        records: list[bytes] = []
        lost = 0
        while len(records) < BATCH:
            try:
                record = os.read(self._fd, _RECORD_LIMIT)
            except BlockingIOError:
                break
            except OSError as why:
                if why.errno == errno.EPIPE:  # the kernel has already moved us to the oldest record that is left
                    continue
                raise Unreachable(f"the kernel log broke off: {why.strerror}") from why
            if not record:
                raise Unreachable("the kernel log ended")
            lost += self._gap(record)
            records.append(record)
        return Batch(records, lost)

    def _gap(self, record: bytes) -> int:
        """Records missing before this one, by the sequence numbers."""
        try:
            sequence = int(record.split(b",", 2)[1])
        except (IndexError, ValueError):
            return 0
        gap = 0 if self._last is None else max(0, sequence - self._last - 1)
        self._last = sequence
        return gap

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._fd, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)


class FileLog:
    """A regular file to which whole records are appended. A new file under the same name is a new log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._partial = b""
        self._endless = False  # inside a line that is longer than any record
        self._events = FileEvents(path)

    def close(self) -> None:
        self._events.close()
        self._file.close()

    async def read(self) -> Batch:
        while True:
            # The order matters: what is written after this read raises an event that the wait below sees.
            batch = self.available()
            if batch.records:
                return batch
            self._check_replaced()
            await self._events.wait(_REPLACED_EVERY)

    def available(self) -> Batch:
        """An empty batch says that all is read: of rubbish without a record, the rest is read too."""
        records: list[bytes] = []
        while not records and (data := self._chunk()):
            *lines, self._partial = (self._partial + data).split(b"\n")
            if self._endless and lines:
                del lines[0]  # the end of a line that was too long: what it says was never said by itself
                self._endless = False
            if len(self._partial) > _RECORD_LIMIT:
                self._partial = b""  # no record is that long; whatever it was, it must not grow without end
                self._endless = True
            records = [line for line in lines if line]
        return Batch(records)

    def _chunk(self) -> bytes:
        try:
            return self._file.read(_CHUNK)
        except OSError as why:
            raise Unreachable(f"cannot read the kernel log {self._path}: {why.strerror}") from why

    def _check_replaced(self) -> None:
        try:
            now = self._path.stat()
        except OSError as why:
            raise Unreachable(f"the kernel log {self._path} is gone: {why.strerror}") from why
        if now.st_ino != self._inode:
            raise Unreachable(f"the kernel log {self._path} was replaced by a new one")
        if now.st_size < self._file.tell():
            raise Unreachable(f"the kernel log {self._path} was cut short")
