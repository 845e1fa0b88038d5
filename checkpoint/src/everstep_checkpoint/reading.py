"""Reading what anybody may have put into the run's directory: nothing is waited for, trusted or judged by a bad moment.

A checkpoint that cannot be read now is not a damaged one: a network file system that stumbles, or a process that has
run out of descriptors, says nothing about what is on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from .errors import InvalidCheckpointError, UnreadableCheckpointError

# What the file system itself answers about names: these prove that the checkpoint is not what its manifest says.
PROOF = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


def problem(path: Path, error: Exception) -> InvalidCheckpointError:
    """Which error a failed look at a checkpoint is: damage that is proven, or an answer that did not come."""
    if isinstance(error, InvalidCheckpointError):
        return error
    if isinstance(error, OSError) and error.errno not in PROOF and not isinstance(error, FileNotFoundError):
        return UnreadableCheckpointError(f"{path}: {type(error).__name__}: {error}")
    return InvalidCheckpointError(f"{path}: {type(error).__name__}: {error}")


def open_plain(path: Path) -> int:
    """A descriptor to read a plain file; a pipe or a device in its place is refused, not waited for. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return fd


def read_plain(path: Path) -> bytes:
    """All of a plain file. Raises OSError."""
    with open(open_plain(path), "rb") as file:
        return file.read()


def read_own(path: Path) -> bytes:
    """The manifest at `path`, unless it may be a trap. Raises OSError, UnreadableCheckpointError.

    The manifest vouches for files that are unpickled, which is to run them. Who lets everybody write to the run's
    directory has not asked everybody for code: there only what we ourselves, or root, have written counts.
    """
    with open(open_plain(path), "rb") as file:
        folder = os.stat(path.parent)
        if (folder.st_mode | os.stat(path.parent.parent).st_mode) & stat.S_IWOTH:
            for owner in {os.fstat(file.fileno()).st_uid, folder.st_uid}:
                if not _is_ours(owner, path.parent.parent):
                    raise UnreadableCheckpointError(
                        f"{path.parent} belongs to user {owner}, in a directory that everybody may write to: what it"
                        " holds would be run. If it is yours: chmod o-w the directory and the checkpoint"
                    )
        return file.read()


def _is_ours(owner: int, directory: Path) -> bool:
    if owner in (os.geteuid(), 0):
        return True
    try:  # a file server may give all our files the name of another user
        with tempfile.TemporaryFile(dir=directory) as probe:
            return os.fstat(probe.fileno()).st_uid == owner
    except OSError:
        return False
