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
import struct
from pathlib import Path
from typing import Any

from .errors import InvalidCheckpointError

_MAGIC = b"EVRSHRD1"
_LENGTH = struct.Struct("<Q")
_CHUNK = 8 << 20  # bytes hashed and written at a time: the page cache works while the next piece is hashed


def write_shard(path: Path, captured: Any) -> tuple[int, str]:
    """Write `captured` and wait for the disk; returns (bytes, SHA-256). Raises OSError, pickle.PicklingError."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(captured, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    head = json.dumps({"pickle": len(body), "buffers": [view.nbytes for view in views]}).encode()
    digest, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    parts: list[bytes | memoryview] = [_MAGIC, _LENGTH.pack(len(head)), head, body, *views]
    with open(fd, "wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                written = file.write(view[:_CHUNK])
                digest.update(view[:written])
                size += written
                view = view[written:]
        os.fsync(fd)
    return size, digest.hexdigest()


def hash_file(path: Path) -> tuple[int, str]:
    """(bytes, SHA-256) of a file as it is on the disk now. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            size += count
    return size, digest.hexdigest()


def read_shard(path: Path, size: int, sha256: str) -> Any:
    """Read a shard back, checked against its manifest first. Raises InvalidCheckpointError, OSError."""
    data = bytearray(path.read_bytes())  # writable, so that restored numpy arrays are
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise InvalidCheckpointError(f"{path} does not match its manifest")
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
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - hash checked above; see the module's docstring
