"""The table of mounts, and which of them are in a state they should not be in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_OCTAL = re.compile(rb"\\([0-7]{3})")
DISK_TYPES = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"))
# A file server's death shows in these. FUSE is not among them: any user may mount one, and make it hang.
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "gpfs", "beegfs", "wekafs", "vastnfs", "9p", "glusterfs")
)
# Volumes and root file systems of pods, and what people plug in. Users choose what those are, down to a server that
# answers with errors, so they are no sign of the node. A file server that pods lose shows in the kernel log.
_NOT_OURS = re.compile(
    r"/kubelet/(?:pods|plugins)/|^/(?:run/)?media/|^/(?:run|var/lib)/(?:containerd|docker|containers|crio|rancher)/"
)
FULL_BELOW = 500_000_000  # bytes left to programs, as gpud
SMALL_BELOW = 5_000_000_000  # bytes in all: a boot partition is always that full
FEW_FILES = 1000  # inodes left


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``mountinfo`` (proc_pid_mountinfo(5)).

    Attributes:
        device: ``major:minor``; the same file system may be mounted at many places.
        readonly: of the file system itself. A place may be mounted read-only though its file system is not.
    """

    device: str
    point: str
    kind: str
    source: str
    readonly: bool

    @property
    def is_disk(self) -> bool:
        return self.kind in DISK_TYPES

    @property
    def is_network(self) -> bool:
        return self.kind in NETWORK_TYPES

    @property
    def subject(self) -> str:
        """What people know it by: the file server, else the device without its folder, else the place."""
        if self.is_network:
            server = self.source.split(":/", 1)[0] if ":/" in self.source else self.source
            return server or self.point
        return self.source.rsplit("/", 1)[-1] or self.point


def parse_mounts(table: bytes) -> list[Mount]:
    """Every line of a ``mountinfo`` that makes sense. Never raises."""
    mounts = []
    for line in table.split(b"\n"):
        left, separator, right = line.partition(b" - ")
        ahead, behind = left.split(b" "), right.split(b" ")
        if separator and len(ahead) >= 6 and len(behind) >= 3:
            readonly = b"ro" in behind[2].split(b",")
            mounts.append(Mount(_text(ahead[2]), _text(ahead[4]), _text(behind[0]), _text(behind[1]), readonly))
    return mounts


def mount_ids(table: bytes) -> set[bytes]:
    """Numbers of the mounts. No two mounts of a machine have the same, in whatever namespace they are."""
    return {line.split(b" ", 1)[0] for line in table.splitlines() if b" - " in line}


def file_systems(mounts: Iterable[Mount]) -> list[Mount]:
    """One mount, the one with the shortest path, of each of the node's own file systems on disks and servers."""
    found: dict[str, Mount] = {}
    for mount in mounts:
        if not (mount.is_disk or mount.is_network) or _NOT_OURS.search(mount.point):
            continue
        before = found.get(mount.device)
        if before is None or len(mount.point) < len(before.point):
            found[mount.device] = mount
    return list(found.values())


def is_full(size: int, left: int, files: int, files_left: int) -> bool:
    """Whether programs will soon fail to write: sizes in bytes as statvfs counts them for a user, and inodes.

    btrfs and some network file systems count no inodes; that is no shortage.
    """
    few_files = files > FEW_FILES and files_left < min(FEW_FILES, files // 100)
    return few_files or (size >= SMALL_BELOW and left < FULL_BELOW)


def _text(field: bytes) -> str:
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), field).decode(errors="replace")
