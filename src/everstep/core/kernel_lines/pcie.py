"""PCI Express: Advanced Error Reporting, hot-plug, and links that came up narrower than they could.

The address is that of the reporter, usually a root port; the device that is to blame hangs below it. The first line of
an error and its detail lines can disagree about the severity. Patterns after drivers/pci/pcie/aer.c of the Linux
kernel, whose wording changed over the years (Corrected, Correctable; received, message received).
"""

from __future__ import annotations

from everstep.core.health import Evidence, Part
from everstep.core.kernel_lines.prefixes import PCI
from everstep.core.kernel_lines.rules import first_match, rule

MARKERS = (b"AER: ", b"PCIe Bus Error", b"pciehp: ", b"available PCIe bandwidth")

# Of other devices' drivers only the root port's word counts: an error of a sound card is none of a node's.
_HEAD = rb"(?:pcieport|pci|nvidia|amdgpu|mlx5_core|nvme|efa|bnxt_en|ionic) " + PCI + rb": "
_RECEIVED = rb" error(?: message)? received"
_BUS = _HEAD + rb"(?:AER: )?PCIe Bus Error: severity="
RULES = (
    rule("aer_recovery_failed", b"recover", _HEAD + rb"(?:AER: )?(?:device recovery failed|can't recover \()"),
    rule("aer_fatal", b"Fatal) error", _HEAD + rb"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\)" + _RECEIVED),
    rule(
        "aer_nonfatal",
        b"Non-Fatal) error",
        _HEAD + rb"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Non-Fatal\)" + _RECEIVED,
    ),
    rule("aer_corrected", b"Correct", _HEAD + rb"AER: (?:Multiple )?Correct(?:ed|able)" + _RECEIVED),
    rule("aer_fatal", b"PCIe Bus Error", _BUS + rb"Uncorrect(?:ed|able) \(Fatal\)", Part.DETAIL),
    rule("aer_nonfatal", b"PCIe Bus Error", _BUS + rb"Uncorrect(?:ed|able) \(Non-Fatal\)", Part.DETAIL),
    rule("aer_corrected", b"PCIe Bus Error", _BUS + rb"Correct(?:ed|able)", Part.DETAIL),
    rule(
        "hotplug_gone",
        b"pciehp: ",
        _HEAD + rb"pciehp: (?P<subject>Slot\([\w-]{1,16}\)): (?:Link Down|Card not present)",
    ),
    rule(
        "link_limited", b"available PCIe bandwidth", _HEAD + rb"[\d.]{1,12} Gb/s available PCIe bandwidth, limited by "
    ),
)


def parse(line: bytes, start: int) -> Evidence | None:
    """What the PCI Express message at ``start`` says, or None."""
    return first_match("pcie", RULES, line, start)
