"""A node's own kernel log: a file of ``/dev/kmsg`` records, because all lab nodes share the host's one kernel.

Records are ``PRIORITY,SEQUENCE,MICROSECONDS,-;TEXT`` with facility ``kern`` (priority below 8), which is what tells
the kernel's own words from what user space wrote. The time is the host's monotonic clock: the clock that processes
of the node see, as on a real machine, since lab nodes have no time namespace of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

NOTICE, INFO, ERROR = 5, 6, 3
TAIL_BYTES = 4096  # more than one record can be long


class KernelLog:
    """Appends whole records to one file; the file starts anew with every boot, as the ring buffer does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next, self._size = _next_sequence(path), -1

    def boot(self, lines: Sequence[str]) -> None:
        """Starts an empty log with the boot's first lines; readers of the old file keep the old file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._next = 0
        fresh = self.path.with_name(self.path.name + ".booting")
        fresh.write_bytes(b"".join(self._record(NOTICE if not n else INFO, line) for n, line in enumerate(lines)))
        fresh.replace(self.path)
        self._size = self.path.stat().st_size

    def append(self, priority: int, text: str) -> str:
        """Writes one record with one write call, so that a reader never sees half of it; returns it without newline."""
        return self.append_all(priority, [text])[0]

    def append_all(self, priority: int, texts: Sequence[str]) -> list[str]:
        """Writes one record after the other with one write call; returns them without newlines."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if (size := os.fstat(descriptor).st_size) != self._size:  # somebody else has written, such as a test
                self._next = max(self._next, _next_sequence(self.path))
            records = [self._record(priority, text) for text in texts]
            self._size = size + os.write(descriptor, b"".join(records))
        finally:
            os.close(descriptor)
        return [record.decode().rstrip("\n") for record in records]

    def _record(self, priority: int, text: str) -> bytes:
        # the kernel writes control characters and the backslash as \xNN
        printable = "".join(c if c.isprintable() and c != "\\" else f"\\x{ord(c):02x}" for c in text)
        record = f"{priority},{self._next},{time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000},-;{printable}\n"
        self._next += 1
        return record.encode()


def _next_sequence(path: Path) -> int:
    """One more than the last record's number; 0 for a log that does not exist yet."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            last = log.read().rstrip(b"\n").rpartition(b"\n")[2]
    except FileNotFoundError:
        return 0
    try:
        return int(last.split(b",", 2)[1]) + 1
    except (IndexError, ValueError):
        return 0


def boot_lines(kernel: str, addresses: Sequence[str]) -> list[str]:
    """What a GPU machine says when it boots: kernel, driver, one line a GPU.

    Args:
        kernel: release of the running kernel.
        addresses: PCI address of each GPU, ``0000:01:00``.
    """
    lines = [
        f"Linux version {kernel} (everstep lab machine)",
        "Command line: BOOT_IMAGE=/boot/vmlinuz root=/dev/nvme0n1p1 ro",
    ]
    if addresses:
        lines.append("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build")
    lines += [f"nvidia {pci}.0: enabling device (0000 -> 0002)" for pci in addresses]
    return lines
