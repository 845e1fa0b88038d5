"""One rank's part of a checkpoint as one file: a pickle, and behind it the large buffers as they lie in memory.

Layout: 8 bytes magic, 8 bytes little-endian length of the JSON head, the head `{"pickle": n, "buffers": [n, ...]}`, the
pickle (protocol 5, buffers out of band), then each buffer. A shard is only ever unpickled after its SHA-256 matched the
manifest; like the training program itself, a checkpoint is code to whoever may write the directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import GivenUpError, InvalidCheckpointError, StateMismatchError
from .reading import open_plain
from .snapshot import Snapshot

_MAGIC = b"EVRSHRD1"
_LENGTH = struct.Struct("<Q")
CHUNK = 8 << 20  # bytes written at a time, between two looks at whether the save is still wanted
_WRITEBACK = 32 << 20  # bytes after which the disk is told to begin
_IN_FLIGHT = 4  # pieces copied and not yet hashed
_INLINE = 1 << 20  # bytes below which a thread costs more than the hashing


def _never() -> bool:
    return False


def parts_of(snapshot: Snapshot) -> list[bytes | memoryview]:
    """The pieces of the file, in order."""
    head = json.dumps({"pickle": len(snapshot.body), "buffers": [view.nbytes for view in snapshot.views]}).encode()
    return [_MAGIC, _LENGTH.pack(len(head)), head, snapshot.body, *snapshot.views]


class Hashing:
    """SHA-256 over pieces of memory in a second thread, while the first one writes them: hashlib lets go of the GIL."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts, self._digest = parts, hashlib.sha256()
        self._stop = False
        self._thread: threading.Thread | None = None
        if sum(memoryview(part).nbytes for part in parts) > _INLINE:
            self._thread = threading.Thread(target=self._work, name="everstep-hash", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        for piece in _cut(self._parts):
            if self._stop:
                return
            self._digest.update(piece)

    def pieces(self) -> Iterator[memoryview]:
        """What is to be written."""
        return _cut(self._parts)

    def result(self) -> str:
        if self._thread is None:
            self._work()
        else:
            self._thread.join()
        return self._digest.hexdigest()

    def cancel(self) -> None:
        """Nobody wants the result; returns once the memory is no longer read."""
        self._stop = True
        if self._thread is not None:
            self._thread.join()


class Passing:
    """The same over memory that may still change: each piece is copied once, and that copy is written and hashed."""

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts, self._digest = parts, hashlib.sha256()
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._due: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        self._largest = min(CHUNK, max(memoryview(part).nbytes for part in parts))
        self._thread = threading.Thread(target=self._work, name="everstep-hash", daemon=True)
        self._thread.start()

    def pieces(self) -> Iterator[memoryview]:
        """What is to be written; each is good until the next is asked for."""
        made = 0
        for piece in _cut(self._parts):
            if made < _IN_FLIGHT and self._free.empty():
                made += 1
                buffer = bytearray(self._largest)
            else:
                buffer = self._free.get()
            view = memoryview(buffer)[: piece.nbytes]
            view[:] = piece.cast("B")
            self._due.put((buffer, piece.nbytes))
            yield view

    def _work(self) -> None:
        while (due := self._due.get()) is not None:
            buffer, size = due
            self._digest.update(memoryview(buffer)[:size])
            self._free.put(buffer)

    def result(self) -> str:
        self.cancel()
        return self._digest.hexdigest()

    def cancel(self) -> None:
        """Returns once the memory is no longer read."""
        self._due.put(None)
        self._thread.join()


def hashing_of(snapshot: Snapshot) -> Hashing | Passing:
    """What hands out the pieces of the file and knows their hash in the end."""
    parts = parts_of(snapshot)
    return Passing(parts) if snapshot.live else Hashing(parts)


def write_shard(path: Path, snapshot: Snapshot, unwanted: Callable[[], bool] = _never) -> tuple[int, str]:
    """Write `snapshot` and wait for the disk; returns (bytes, SHA-256).

    Raises OSError, and GivenUpError once `unwanted` says so.
    """
    size, begun = 0, 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    hashing = hashing_of(snapshot)
    try:
        with open(fd, "wb", buffering=0) as file:
            for piece in hashing.pieces():
                view = piece
                while view:
                    if unwanted():
                        raise GivenUpError("given up before it was written")
                    written = file.write(view)
                    size += written
                    view = view[written:]
                    if size - begun >= _WRITEBACK:
                        # Linux begins to write these pages out now, while the next ones are copied: a shorter fsync.
                        os.posix_fadvise(fd, begun, size - begun, os.POSIX_FADV_DONTNEED)
                        begun = size
            os.fsync(fd)
        return size, hashing.result()
    except BaseException:
        hashing.cancel()
        raise


def _cut(parts: Sequence[bytes | memoryview]) -> Iterator[memoryview]:
    """At most CHUNK bytes at a time."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, view.nbytes, CHUNK):
            yield view[start : start + CHUNK]


def hash_file(path: Path) -> tuple[int, str]:
    """(bytes, SHA-256) of a file as it is on the disk now. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open(open_plain(path), "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            size += count
    return size, digest.hexdigest()


def read_shard(path: Path, size: int, sha256: str) -> Any:
    """Read a shard back, checked against its manifest first. Raises InvalidCheckpointError, OSError."""
    data = bytearray(size)  # writable, so that restored numpy arrays are
    view = memoryview(data)
    with open(open_plain(path), "rb", buffering=0) as file:
        while view and (count := file.readinto(view[: 1 << 30])):
            view = view[count:]
        longer = file.read(1)
    if view or longer or hashlib.sha256(data).hexdigest() != sha256:
        raise InvalidCheckpointError(f"{path} does not match its manifest")
    return unpack(data, path)


def unpack(data: bytearray, path: object) -> Any:
    """What a shard's bytes hold. Only for bytes whose hash was checked. Raises InvalidCheckpointError,
    StateMismatchError."""
    view, start = memoryview(data), len(_MAGIC) + _LENGTH.size
    if data[: len(_MAGIC)] != _MAGIC:
        raise InvalidCheckpointError(f"{path} is not a shard that this version can read")
    (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
    head = json.loads(bytes(view[start : start + length]))
    start += length
    body, start = view[start : start + head["pickle"]], start + head["pickle"]
    buffers = []
    for count in head["buffers"]:
        buffers.append(view[start : start + count])
        start += count
    try:
        return pickle.loads(body, buffers=buffers)  # noqa: S301 - hash checked by the callers; see the module's docstring
    except (AttributeError, ImportError) as error:
        raise StateMismatchError(
            f"{path} holds objects of a class that this program does not have ({error}): keep the class where it was,"
            " or use a new directory"
        ) from error
