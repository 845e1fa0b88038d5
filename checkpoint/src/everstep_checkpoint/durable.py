"""Files that are either there whole or not there: the few calls behind every promise about what is on the disk."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Make names created, renamed or removed in `path` durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Wait until the content of an existing file is on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file and wait until its content is on the disk. Raises OSError, also when something is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(fd)


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put `data` at `path` in one step: a reader sees the old content or the new, never a part. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_file(temporary, data, mode)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def erase(path: Path) -> None:
    """Remove what is at `path`, never what a symbolic link points to. Never raises: see what is left."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
    except OSError:
        return
    shutil.rmtree(path, ignore_errors=True)


def shared_secret(path: Path) -> bytes:
    """Return the 32 random bytes at `path`, made by whichever process comes first. Raises OSError.

    A hard link is the one call that is atomic and exclusive on network file systems too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        write_file(temporary, secrets.token_bytes(32), 0o600)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_bytes()
