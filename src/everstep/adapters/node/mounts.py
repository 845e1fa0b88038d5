"""File systems: no longer writable, without an answer, not there, full."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from everstep.adapters.node.deadlines import Asking
from everstep.adapters.node.files import read_number, sees_the_host, since_boot
from everstep.core.health import Evidence
from everstep.core.node_state.mount_table import Mount, file_systems, is_full, mount_ids, parse_mounts
from everstep.ports import PartlyUnreachable

PERIOD = 30.0
HANGS_AFTER = 60.0  # seconds without an answer: a file server that fails over may take as long as this
MISSING_AFTER = 60.0  # seconds: a mount that is moved or mounted again is away for a moment
BOOT_GRACE = 600.0  # seconds since boot: network mounts come late
_PATIENCE = 6.0  # seconds that a look waits for an answer; less than a source has for all of them
_MOST = 512  # file systems that are asked; each one that hangs holds a thread
_GONE = frozenset((errno.ENOENT, errno.ENOTDIR))
_BROKEN = frozenset((errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.ESHUTDOWN, errno.ENXIO, errno.ENODEV))


class Mounts:
    """Looks at the disks' and file servers' file systems of the host.

    Args:
        root: where the host's files are found; ``/`` for a process outside every container.
        expected: paths on the host where something must be mounted.
        known: devices that are on record as no longer writable; they were writable before this process began.
        ask: answers for one path as ``os.statvfs`` does.
        at_once: a mount that must be there counts as missing at the first look.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        expected: Iterable[str] = (),
        known: Iterable[str] = (),
        clock: Callable[[], float] = since_boot,
        ask: Callable[[Path], os.statvfs_result] = os.statvfs,
        *,
        at_once: bool = False,
    ) -> None:
        self._at_once = at_once
        self._root = root
        self._expected = tuple(expected)
        self._clock = clock
        self._ask = ask
        self._was_writable = set(known)
        self._asking: dict[str, Asking[os.statvfs_result]] = {}
        self._missing_since: dict[str, float] = {}

    def look(self) -> Sequence[Evidence]:
        """One reading. OSError when the table cannot be read, PartlyUnreachable while one has yet to answer."""
        table, host, hosts = self._table()
        mounts = parse_mounts(table)
        asked = file_systems(mounts)[:_MOST]
        found = [*self._not_writable(asked), *(self._not_there(mounts) if hosts else ())]
        self._ask_all(asked, host)
        for mount in asked:
            found += self._answered(mount)
        if self._expected and not hosts:
            raise PartlyUnreachable(
                "the host's mounts cannot be seen: run it as root, and in a container with hostPID", found
            )
        if late := [mount.point for mount in asked if self._silence(mount) < 0]:
            raise PartlyUnreachable(f"{', '.join(late)}: no answer yet", found)
        return found

    def _table(self) -> tuple[bytes, Path, bool]:
        """A table of mounts, the folder that its paths begin at, and whether it is the host's.

        That of the host's first process, where we may look through its eyes; else our own, which is the host's if both
        hold the same mounts: outside every container they do.
        """
        first = self._root / "proc/1"
        try:
            table = (first / "mountinfo").read_bytes()
        except (FileNotFoundError, PermissionError):
            table = b""
        host = sees_the_host(self._root)
        if table and os.access(first / "root", os.X_OK):
            return table, first / "root", host
        own = (self._root / "proc/self/mountinfo").read_bytes()
        return own, self._root, host and bool(mount_ids(table) & mount_ids(own))

    def _not_writable(self, mounts: Sequence[Mount]) -> Sequence[Evidence]:
        found = []
        for mount in mounts:
            if not mount.is_disk:
                continue
            if not mount.readonly:
                self._was_writable.add(mount.subject)
            elif self._was_broken(mount):
                text = f"{mount.kind} on {mount.source} at {mount.point} can no longer be written"
                found.append(Evidence("host", "mount_readonly", subject=mount.subject, line=text))
        return found

    def _was_broken(self, mount: Mount) -> bool:
        """Whether errors made it read-only. ext4 counts them; of the others only those that were writable before."""
        name = (self._root / "sys/dev/block" / mount.device).resolve().name  # the kernel's own, dm-0 for a volume
        errors = read_number(self._root / "sys/fs/ext4" / name / "errors_count") if ":" not in name else None
        return errors > 0 if errors is not None else mount.subject in self._was_writable

    def _not_there(self, mounts: Sequence[Mount]) -> Sequence[Evidence]:
        now = self._clock()
        points = {mount.point for mount in mounts}
        absent = [path for path in self._expected if path not in points]
        self._missing_since = {path: self._missing_since.get(path, now) for path in absent}
        return [
            Evidence("host", "mount_missing", subject=path, line=f"nothing is mounted at {path}")
            for path in absent
            if self._at_once or (now >= BOOT_GRACE and now - self._missing_since[path] >= MISSING_AFTER)
        ]

    def _ask_all(self, mounts: Sequence[Mount], host: Path) -> None:
        for mount in mounts:
            before = self._asking.get(mount.device)
            if before is None or before.done.is_set():
                path = host / mount.point.lstrip("/")
                self._asking[mount.device] = Asking(partial(self._ask, path), f"statvfs {mount.point}")
        devices = {mount.device for mount in mounts}
        self._asking = {device: asking for device, asking in self._asking.items() if device in devices}
        for asking in self._asking.values():
            asking.done.wait(max(0.0, asking.begun + _PATIENCE - time.monotonic()))

    def _answered(self, mount: Mount) -> Sequence[Evidence]:
        asking = self._asking[mount.device]
        name = f"{mount.kind} on {mount.source} at {mount.point}"
        silence = self._silence(mount)
        if silence:
            text = f"{name} gives no answer for {silence:.0f} s"
            return [Evidence("host", "mount_hangs", subject=mount.subject, line=text)] if silence > 0 else ()
        try:
            answer = asking.answer()
        except OSError as why:
            if why.errno in _GONE:
                return ()  # unmounted since the table was read
            if why.errno not in _BROKEN:
                raise
            text = f"{name} answers with errors: {why.strerror}"
            return [Evidence("host", "mount_failed", subject=mount.subject, line=text)]
        if not mount.is_disk or mount.readonly:
            return ()
        left = answer.f_bavail * answer.f_frsize
        if not is_full(answer.f_blocks * answer.f_frsize, left, answer.f_files, answer.f_favail):
            return ()
        text = f"{name} is nearly full: {left // 1_000_000} MB and {answer.f_favail} files are left"
        return [Evidence("host", "disk_full", subject=mount.subject, line=text)]

    def _silence(self, mount: Mount) -> float:
        """Seconds that a mount has been silent for; -1 while that says nothing yet, 0 when it has answered."""
        asking = self._asking[mount.device]
        if asking.done.is_set():
            return 0.0
        silent = time.monotonic() - asking.begun
        return silent if silent >= HANGS_AFTER else -1.0
