"""Entries of systemd's journal as records of ``/dev/kmsg``, so that one reader serves both.

The journal has no number of the kernel's own for a record. Its sequence numbers begin anew with its files, and older
journalctl (before systemd 254) does not print them. What every version keeps is the kernel's time of the record. So a
record's number is that time in microseconds, with its place among the records of the same microsecond behind it: it
does not depend on which files are still there, and is the same however often the journal is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACES = 1024  # more records than that in one microsecond there cannot be: each takes the kernel longer
_KERNEL = 0  # syslog's facility of the kernel
_ESCAPED = re.compile(rb"[^\x20-\x5b\x5d-\x7e]")  # what /dev/kmsg writes as \xNN


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What matters of one entry that came from the kernel's log (``_TRANSPORT=kernel``, which no client can set).

    Attributes:
        microseconds: the kernel's monotonic time of the record.
        level, facility: syslog's; a program that writes to ``/dev/kmsg`` never has facility 0.
        identifier, pid: what journald cut off the front of a program's text, as ``NVRM`` and ``12``.
    """

    microseconds: int
    level: int
    facility: int
    message: bytes
    identifier: str = ""
    pid: str = ""

    @property
    def text(self) -> bytes:
        """The record's text, put together again. Of the kernel's own records journald cuts nothing off."""
        if self.facility == _KERNEL or not self.identifier:
            return self.message
        pid = f"[{self.pid}]" if self.pid else ""
        return f"{self.identifier}{pid}: ".encode() + self.message


@dataclass(frozen=True, slots=True)
class Numbering:
    """Where the count stands. Times of records may go back by a little: CPUs stamp them, and their clocks differ."""

    microseconds: int = -1
    place: int = 0

    def after(self, microseconds: int) -> Numbering:
        """The count after one more record."""
        if microseconds > self.microseconds:
            return Numbering(microseconds)
        return Numbering(self.microseconds, min(self.place + 1, _PLACES - 1))

    @property
    def sequence(self) -> int:
        return self.microseconds * _PLACES + self.place


def as_record(entry: JournalEntry, sequence: int) -> bytes:
    """The entry as a record of ``/dev/kmsg``."""
    head = f"{entry.facility * 8 + entry.level},{sequence},{entry.microseconds},-;".encode()
    return head + _ESCAPED.sub(lambda match: b"\\x%02x" % match[0][0], entry.text)
