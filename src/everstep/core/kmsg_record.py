"""One record of ``/dev/kmsg``, taken apart.

Format (Documentation/ABI/testing/dev-kmsg of the Linux kernel): ``PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,more];TEXT``,
then a newline and, for some records, continuation lines ``" KEY=value"``. PRIORITY is facility * 8 + level. The kernel
writes control characters and the backslash as ``\\xNN``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),([^;,\n]{0,16})(?:,[^;\n]{0,128})?;")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A record's head and its text.

    Attributes:
        priority: facility * 8 + syslog level.
        sequence: number of the record, counted from boot; it never repeats within one boot.
        microseconds: the kernel's monotonic time. It drifts from wall-clock time, so it is no date.
        text: first line only, escapes undone.
    """

    priority: int
    sequence: int
    microseconds: int
    text: bytes

    @property
    def from_kernel(self) -> bool:
        """Whether the kernel itself wrote it. What user space writes to ``/dev/kmsg`` never has facility 0."""
        return self.priority < 8


def parse_record(data: bytes) -> KernelRecord | None:
    """Takes one record apart; None for bytes that are no record. Never raises."""
    head = _HEAD.match(data)
    if head is None:
        return None
    text = data[head.end() :].split(b"\n", 1)[0]
    if b"\\x" in text:
        text = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text)
    return KernelRecord(int(head[1]), int(head[2]), int(head[3]), text)
