"""Which XIDs the simulated hardware can show: text and effect of each, the rows of ``xids.csv``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from everstep.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class XidEffect:
    """One row: text after the code, whether the device vanishes, and the recovery action that NVML then advises."""

    xid: int
    text: str
    lost: bool
    recovery_action: str

    def line(self, pci: str) -> str:
        """The kernel's line for a GPU at ``pci``, as NVIDIA's driver prints it."""
        return f"NVRM: Xid (PCI:{pci}): {self.xid}, {self.text}"


@cache
def _table() -> dict[int, XidEffect]:
    text = resources.files(__package__).joinpath("xids.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    effects = (XidEffect(int(row["xid"]), row["text"], row["lost"] == "yes", row["recovery_action"]) for row in rows)
    return {effect.xid: effect for effect in effects}


def effect_of(xid: int) -> XidEffect:
    """The row for ``xid``; InvalidInput names the ones that exist."""
    try:
        return _table()[xid]
    except KeyError:
        known = ", ".join(str(code) for code in sorted(_table()))
        raise InvalidInput(f"XID {xid} is not one that the simulated GPUs can show; choose one of {known}") from None
