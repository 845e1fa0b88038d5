"""What small files of sysfs say of a device: error counts of an AMD GPU, widths of a PCI Express link."""

from __future__ import annotations

import re

_COUNT = re.compile(r"^\s*(ue|ce|de)\s*:\s*(\d{1,20})\s*$", re.MULTILINE)
NO_COUNT = 0xFFFF0  # posted from healthy GPUs that repeat it at every query; no counter of real errors gets there
_WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))  # PCI Express Base Specification; a lost device answers 63


def parse_error_counts(text: str) -> dict[str, int] | None:
    """``ue`` (uncorrectable), ``ce`` (correctable), ``de`` (deferred) of a ``*_err_count`` file; None without an ue."""
    counts = {name: int(value) for name, value in _COUNT.findall(text)}
    return counts if "ue" in counts else None


def believable(count: int) -> bool:
    """Whether a count of uncorrectable errors is a count."""
    return count < NO_COUNT


def full_width(current: int | None, own: int | None, slot: int | None) -> int | None:
    """The width in lanes that a link should have, if it has less; None when all is well or nothing can be told.

    Args:
        current: lanes in use.
        own: lanes that the device has.
        slot: lanes that the port above it has; None where there is no such port. A slot that is narrow by design, as
            those of many adapters, makes no fault.
    """
    if current not in _WIDTHS or own not in _WIDTHS:
        return None
    possible = min(own, slot) if slot in _WIDTHS and slot is not None else own
    return possible if current is not None and own is not None and current < possible else None
