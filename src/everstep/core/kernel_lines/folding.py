"""One event that is spread over several records.

A GPU that is gone at boot takes three records, of which only the first has its address and none is an XID. A CPU that
is stuck says so first and shows where only in the frames that follow. Other CPUs' records may come in between.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeVar

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefilter import may_be_fault
from everstep.core.kernel_lines.prefixes import PCI, message_start
from everstep.core.kernel_lines.text import read_text
from everstep.core.kmsg_record import parse_record

_T = TypeVar("_T")
_SCAN_LIMIT = 8192  # a kernel record is at most 1 KiB; a longer line is not one, and costs no more than this
_GONE_LINES = 8  # further records within which the three of a lost GPU stand
_TRACE_LINES = 64  # further records within which the frames of a stuck CPU stand

_GPU_HEAD = re.compile(rb"NVRM: The NVIDIA GPU " + PCI)
# Frames with "?" are leftovers on the stack, not where the CPU is.
_NAPI_FRAME = re.compile(
    rb"(?:RIP: [0-9a-f]{4}:)?(?:mlx5e_napi_poll|mlx5e_poll_\w{1,40})\+0x[0-9a-f]+/0x[0-9a-f]+ \[mlx5_core\]"
)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a stream of records has begun and may yet continue.

    Attributes:
        gone: address of a GPU that is perhaps reported as gone, and for how many records that is still awaited.
        stuck: a stuck CPU whose frames may follow, and for how many records.
    """

    gone: tuple[str, int] | None = None
    stuck: tuple[Evidence, int] | None = None


NOTHING = Unfinished()


def follow(
    before: Unfinished, line: bytes, *, allow_injected: bool = False, companions: bool = False
) -> tuple[Unfinished, Evidence | None]:
    """Reads the next line or record of a stream. The meaning of the flags is that of ``parser.parse_line``.

    Returns:
        What to pass in with the next line, and what this line says. Never raises.
    """
    if before is NOTHING and not may_be_fault(line):
        return NOTHING, None
    record = parse_record(line)
    if record is not None and not record.from_kernel and not allow_injected:
        return before, None
    if record is None:
        after, evidence = _step(before, line[:_SCAN_LIMIT], record=False)
    else:
        after, evidence = _folded(before, record_lines(record.text))
    if evidence is not None and record is not None and not record.from_kernel:
        evidence = replace(evidence, injected=True)
    if evidence is not None and evidence.part is Part.COMPANION and not companions:
        evidence = None
    return after, evidence


def record_lines(text: bytes) -> list[bytes]:
    """The lines of a record that may be believed. The text of a record can hold several lines.

    Only NVIDIA's driver is known to write such records. In others a second line may be a user's: the kernel prints
    names of files and of processes as they are, and those may hold a newline and whatever comes after it.
    """
    first, newline, _ = text[:_SCAN_LIMIT].partition(b"\n")
    return text[:_SCAN_LIMIT].split(b"\n") if newline and first.startswith(b"NVRM: ") else [first]


def read_record(text: bytes) -> Evidence | None:
    """What the text of one ``/dev/kmsg`` record says, companions included."""
    return _folded(NOTHING, record_lines(text))[1]


def _folded(before: Unfinished, lines: list[bytes]) -> tuple[Unfinished, Evidence | None]:
    found: list[Evidence] = []
    for line in lines:
        before, evidence = _step(before, line, record=True)
        if evidence is not None:
            found.append(evidence)
    return before, chief(tuple(found))


def read_message(data: bytes, *, allow_injected: bool = False, companions: bool = False) -> tuple[Evidence, ...]:
    """Everything that a message of several lines says, in order."""
    found: list[Evidence] = []
    state = NOTHING
    for line in data[:_SCAN_LIMIT].splitlines():
        state, evidence = follow(state, line, allow_injected=allow_injected, companions=companions)
        if evidence is not None:
            found.append(evidence)
    return tuple(found)


def chief(found: tuple[Evidence, ...]) -> Evidence | None:
    """What a message of several lines is about: an XID before all else, then where a CPU is stuck, else the first.

    A companion is it only when nothing else is.
    """
    for kind, code in (("xid", None), ("ib", "napi_lockup")):
        for evidence in found:
            if evidence.kind == kind and code in (None, evidence.code):
                return evidence
    return next((evidence for evidence in found if evidence.part is not Part.COMPANION), found[0] if found else None)


def _step(before: Unfinished, text: bytes, *, record: bool) -> tuple[Unfinished, Evidence | None]:
    gone: tuple[str, int] | None = _older(before.gone)
    stuck: tuple[Evidence, int] | None = _older(before.stuck)
    start = (len(text) - len(text.lstrip())) if record else message_start(text)[0]
    if head := _GPU_HEAD.match(text, start):
        return Unfinished((head["pci"].decode(), _GONE_LINES), stuck), None
    if stuck is not None and _NAPI_FRAME.match(text, start):
        line = f"{stuck[0].line} | {text.decode('utf-8', 'replace').strip()}"
        return Unfinished(gone), replace(stuck[0], kind="ib", code="napi_lockup", line=line)
    evidence = read_text(text, record=record)
    if evidence is not None and evidence.code == "gpu_lost_at_boot" and gone is not None:
        evidence = replace(evidence, pci=gone[0])
        gone = None
    if evidence is not None and evidence.code == "soft_lockup":
        stuck = (evidence, _TRACE_LINES)
    return NOTHING if gone is None and stuck is None else Unfinished(gone, stuck), evidence


def _older(waiting: tuple[_T, int] | None) -> tuple[_T, int] | None:
    return None if waiting is None or waiting[1] <= 1 else (waiting[0], waiting[1] - 1)
