"""Small files of sysfs and procfs."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

_LIMIT = 65536
_HOST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of the Linux kernel: the first pid namespace
# A device that leaves between the listing and the read, and an attribute that this device does not have.
_GONE = frozenset((errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR))


def read_word(path: Path) -> str | None:
    """The file's text without its newline; None when there is no such file. OSError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT).decode(errors="replace").strip()
    except OSError as why:
        if why.errno in _GONE:
            return None
        raise


def read_number(path: Path) -> int | None:
    """The file's whole number; None when there is none in it or no such file. OSError when it cannot be read."""
    text = read_word(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def names(folder: Path) -> list[str]:
    """What is in a folder, in order; nothing when there is no such folder. OSError when it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except FileNotFoundError:
        return []


def since_boot() -> float:
    """Seconds since boot, time asleep included: the clock of every window here, which no step of the date moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def sees_the_host(root: Path) -> bool:
    """Whether ``/proc`` below ``root`` is the host's: in a pid namespace of its own, nobody sees what else runs."""
    try:
        return os.readlink(root / "proc/self/ns/pid") == _HOST_PIDS
    except OSError:
        return False
