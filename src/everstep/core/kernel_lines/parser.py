"""One line in, one piece of evidence out: total, without state, and quick about lines that say nothing."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.folding import chief, read_message, read_record
from everstep.core.kernel_lines.prefilter import may_be_fault
from everstep.core.kernel_lines.text import read_text
from everstep.core.kmsg_record import parse_record

_SCAN_LIMIT = 8192  # a kernel record is at most 1 KiB; a longer line is not one, and costs no more than this


def parse_line(line: bytes | str, *, allow_injected: bool = False, companions: bool = False) -> Evidence | None:
    """Reads one line, or one ``/dev/kmsg`` record, of a kernel log.

    Args:
        line: any bytes or text. Of a message of several lines, what it is about (:func:`folding.chief`).
        allow_injected: accept records that user space wrote (facility other than ``kern``); their evidence is marked.
        companions: also return lines that only go with another fault's line (:attr:`Part.COMPANION`).

    Returns:
        What the line says, or None when it says nothing of hardware. Never raises.
    """
    data = line.encode("utf-8", "replace") if isinstance(line, str) else line
    if not may_be_fault(data):
        return None
    record = parse_record(data)
    if record is None:
        if b"\n" in data or b"\r" in data:
            return chief(read_message(data, companions=companions))
        evidence = read_text(data[:_SCAN_LIMIT])
    elif record.from_kernel or allow_injected:
        evidence = read_record(record.text)
    else:
        return None
    if evidence is None or (evidence.part is Part.COMPANION and not companions):
        return None
    return replace(evidence, injected=True) if record is not None and not record.from_kernel else evidence
