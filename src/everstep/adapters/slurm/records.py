"""Reads the records that jobs leave in their users' homes, as files that a hostile user may have prepared.

Below the home root no link is followed, every part must belong to the user, only regular files are read, and never
more than 1.25 MiB of each. What fails these checks counts as "no record"; what cannot be read (the file server is
away) is an error, because then nobody knows what the job wrote.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.core.attempt_records import AttemptRecord, join_attempts, read_attempt
from everstep.core.errors import Unreachable
from everstep.core.scheduler_state import JobProgress

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 1024 * 1024
MAX_ATTEMPTS = 32  # the newest ones
_MAX_ENTRIES = 4096
_ATTEMPT = re.compile(r"attempt-(\d{4,9})\.jsonl")
# Somebody else's file, a link, a name that is no folder: the user's business, and no record for us.
_NO_RECORD = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """The records of every job of one Slurm cluster.

    Attributes:
        home_root: the folder that holds the users' home directories; it is trusted, what lies below is not.
    """

    home_root: Path

    def progress(self, job_id: str, user: str) -> JobProgress:
        """Blocks on the file system. Raises Unreachable when a folder or file is there and cannot be read."""
        try:
            with self._job_folder(job_id, user) as found:
                if found is None:
                    return JobProgress(job_id)
                folder, owner = found
                return JobProgress(job_id, join_attempts(_attempts(folder, owner)))
        except OSError as error:
            raise Unreachable(f"cannot read the record of job {job_id}: {error.strerror}") from None

    @contextlib.contextmanager
    def _job_folder(self, job_id: str, user: str) -> Iterator[tuple[int, int] | None]:
        """(folder's descriptor, the user's uid), or None when there is no such folder of that user's."""
        home, uid = self._home(user)
        with contextlib.ExitStack() as stack:
            folder = os.open(self.home_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            owner = uid
            for position, part in enumerate((*home, ".everstep", "jobs", job_id)):
                try:
                    folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                except OSError as error:
                    if error.errno not in _NO_RECORD:
                        raise
                    yield None
                    return
                stack.callback(os.close, folder)
                if position >= len(home) - 1:  # what lies between the root and the home is the administrator's
                    found = os.fstat(folder).st_uid
                    owner = found if owner is None else owner
                    if found != owner:
                        yield None
                        return
            assert owner is not None
            yield folder, owner

    def _home(self, user: str) -> tuple[tuple[str, ...], int | None]:
        """The parts of the home below the root, and the uid; None when this machine does not know the user."""
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            return (user,), None
        home = Path(entry.pw_dir)
        if home.is_relative_to(self.home_root) and home != self.home_root and ".." not in home.parts:
            return home.relative_to(self.home_root).parts, entry.pw_uid
        return (user,), entry.pw_uid


def _attempts(folder: int, owner: int) -> list[AttemptRecord]:
    numbers: dict[int, str] = {}
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= _MAX_ENTRIES:
                break
            if match := _ATTEMPT.fullmatch(entry.name):
                numbers[int(match[1])] = entry.name
    newest = sorted(numbers)[-MAX_ATTEMPTS:]
    records = ((number, _lines(folder, numbers[number], owner)) for number in newest)
    return [read_attempt(number, lines) for number, lines in records if lines is not None]


def _lines(folder: int, name: str, owner: int) -> list[bytes] | None:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_RECORD:
            return None
        raise
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner or found.st_nlink != 1:
            return None
        if found.st_size <= HEAD_BYTES + TAIL_BYTES:
            return _pread(file, HEAD_BYTES + TAIL_BYTES, 0).split(b"\n")
        # The cut may leave half a line at the end of the head and at the start of the tail.
        head = _pread(file, HEAD_BYTES, 0).split(b"\n")[:-1]
        tail = _pread(file, TAIL_BYTES, found.st_size - TAIL_BYTES).split(b"\n")[1:]
        return head + tail
    finally:
        os.close(file)


def _pread(file: int, size: int, offset: int) -> bytes:
    """Up to ``size`` bytes; a network file system may hand them over in pieces."""
    pieces = bytearray()
    while len(pieces) < size and (piece := os.pread(file, size - len(pieces), offset + len(pieces))):
        pieces += piece
    return bytes(pieces)
