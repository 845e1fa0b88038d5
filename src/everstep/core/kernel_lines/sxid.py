"""NVSwitch SXid lines: ``nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error``.

One event prints a line with the verdict (Fatal or Non-fatal) and then lines with ``Severity`` and ``Data`` that repeat
its code; those are details. SOE and host events print no verdict at all.
"""

from __future__ import annotations

import re

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefixes import PCI

MARKERS = (b"SXid (",)

_SXID = re.compile(rb"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?" + PCI + rb"\): (?P<code>\d{1,6})(?=[\s,(]|$)")
_DETAIL = re.compile(rb",? *(?:Severity \d|Data\b|SOE HALT data)")


def parse(line: bytes, start: int) -> Evidence | None:
    """The SXid that the message at ``start`` reports, or None. The code is printed with leading zeros at times."""
    match = _SXID.match(line, start)
    if match is None:
        return None
    detail = _DETAIL.match(line, match.end()) is not None
    return Evidence(
        kind="sxid",
        code=str(int(match["code"])),
        pci=match["pci"].decode(),
        part=Part.DETAIL if detail else Part.WHOLE,
    )
