"""NVIDIA XID lines, as the driver prints them: ``NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, ...``."""

from __future__ import annotations

import re

from everstep.core.health import Evidence
from everstep.core.kernel_lines.prefixes import PCI

MARKERS = (b"Xid (",)

_XID = re.compile(
    rb"NVRM: Xid \((?:PCI:)?" + PCI + rb"(?: GPU-I:\d{1,3}(?: GPU-CI:\d{1,3})?)?"  # a MIG instance
    rb"\): (?P<code>\d{1,5})(?=[\s,(\]]|$)"
)
_PID = re.compile(rb",? ?pid=(?:'?<unknown>'?|(?P<pid>\d{1,10}))(?=[\s,\]]|$)")
_NAME = re.compile(rb",? ?name=")
_COMM_LIMIT = 15  # Linux cuts a process' name there (TASK_COMM_LEN is 16 with the final NUL)
# How what follows the name begins: a name may itself hold a comma and a blank.
_AFTER_NAME = re.compile(rb"[A-Z]|Ch\b|channel |intr|errorString|engmask|errorStr|[0-9a-f]{4}")
_UNKNOWN_NAMES = frozenset((b"<unknown>", b""))


def parse(line: bytes, start: int) -> Evidence | None:
    """The XID that the message at ``start`` reports, or None."""
    match = _XID.match(line, start)
    if match is None:
        return None
    pid, process = _process(line[match.end() :])
    return Evidence(kind="xid", code=str(int(match["code"])), pci=match["pci"].decode(), pid=pid, process=process)


def _process(rest: bytes) -> tuple[int | None, str | None]:
    """Process id and name as printed; None for each that is absent or unknown."""
    match = _PID.match(rest)
    if match is None:
        return None, None
    pid = int(match["pid"]) if match["pid"] else None
    name = _NAME.match(rest, match.end())
    if name is None:
        return pid, None
    found = _name(rest[name.end() :]).strip(b"'")
    return pid, None if found in _UNKNOWN_NAMES else found.decode("utf-8", "replace")


def _name(rest: bytes) -> bytes:
    """The process name at the start of ``rest``, which may hold commas, blanks, colons and brackets."""
    first: int | None = None
    at = rest.find(b",")
    while 0 <= at <= _COMM_LIMIT + 2:  # two for quotes
        tail = rest[at + 1 :]
        if not tail.strip() or (tail[:1] == b" " and _AFTER_NAME.match(tail, 1)):
            return rest[:at]
        first = at if first is None else first
        at = rest.find(b",", at + 1)
    return rest[:first] if first is not None else rest[: rest.find(b",")] if b"," in rest else rest.strip()
