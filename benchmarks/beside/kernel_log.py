"""Writes lines to the real ``/dev/kmsg``, so that every agent reads them from where it reads on any node.

What a program writes there is marked as the program's (user facility). Everstep passes such lines over unless it is
told to count them; other agents do not look at the mark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/kmsg")
_RATE_LIMIT = Path("/proc/sys/kernel/printk_devkmsg")  # "ratelimit" drops what one program writes fast
_PRIORITY = b"<12>"  # user facility, level warning: of a level that goes to no console here
_STEP = 0.002  # seconds between two bursts of a paced stream


@contextmanager
def unlimited() -> Iterator[None]:
    """Lifts the kernel's rate limit on writers for the time of the benchmark.

    Raises SystemExit where the kernel was booted with the limit fixed, or where this is not root.
    """
    try:
        before = _RATE_LIMIT.read_text().strip()
        _RATE_LIMIT.write_text("on\n")
    except OSError as why:
        raise SystemExit(f"cannot lift the rate limit on /dev/kmsg ({why}); run this as root") from why
    try:
        yield
    finally:
        _RATE_LIMIT.write_text(before + "\n")


class KernelWriter:
    """One line a write, as the kernel has it; a line that holds newlines is one record."""

    def __init__(self) -> None:
        self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    def write(self, line: str | bytes) -> float:
        """Writes one line; returns the monotonic time just before."""
        data = line.encode() if isinstance(line, str) else line
        now = time.monotonic()
        os.write(self._fd, _PRIORITY + data + b"\n")
        return now

    def pour(self, lines: Iterable[bytes], rate: float | None) -> float:
        """Writes many, ``rate`` a second or (None) as fast as the kernel takes them; returns the seconds it took."""
        fd, write, began = self._fd, os.write, time.monotonic()
        if rate is None:
            for line in lines:
                write(fd, _PRIORITY + line + b"\n")
            return time.monotonic() - began
        for done, line in enumerate(lines):
            while done >= (time.monotonic() - began) * rate:
                time.sleep(_STEP)
            write(fd, _PRIORITY + line + b"\n")
        return time.monotonic() - began


def repeated(lines: Sequence[bytes], count: int, at: Callable[[int], bytes | None]) -> Iterator[bytes]:
    """``count`` lines taken round and round; ``at(i)`` may put another line in before the i-th."""
    for number in range(count):
        other = at(number)
        if other is not None:
            yield other
        yield lines[number % len(lines)]
