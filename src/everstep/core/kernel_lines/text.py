"""The text of one line: which family it belongs to and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from everstep.core.health import Evidence
from everstep.core.kernel_lines import amd, host, network, nvidia, pcie, sxid, xid
from everstep.core.kernel_lines.prefixes import message_start, networkd_start


class _Family(NamedTuple):
    markers: tuple[bytes, ...]
    parse: Callable[[bytes, int], Evidence | None]


_FAMILIES = tuple(_Family(family.MARKERS, family.parse) for family in (xid, sxid, nvidia, amd, network, pcie, host))


def read_text(line: bytes, *, record: bool = False) -> Evidence | None:
    """What one line says, companions included; None when it says nothing. Never raises.

    Args:
        record: ``line`` is the text of a ``/dev/kmsg`` record, which has no logger's prefix.
    """
    start, times = -1, 1
    for family in _FAMILIES:
        for marker in family.markers:
            if marker in line:
                break
        else:
            continue
        if start < 0:
            start, times = (len(line) - len(line.lstrip()), 1) if record else message_start(line)
        evidence = family.parse(line, start)
        if evidence is not None:
            if record and networkd_start(line) is not None:
                return None  # the kernel quotes no daemon
            return replace(evidence, line=line.decode("utf-8", "replace").strip(), count=times)
    return None
