"""What can be wrong with a simulated GPU that only its driver tells when asked: no line in the kernel log says it."""

from __future__ import annotations

from enum import StrEnum

from everstep.core.errors import InvalidInput


class GpuState(StrEnum):
    """``WELL`` takes all of it back; the others add to what is there."""

    WELL = "well"
    LOST = "lost"
    WANTS_RESET = "wants-reset"
    WANTS_REBOOT = "wants-reboot"
    UNLISTED = "unlisted"  # on the PCI bus, but the driver does not list it
    REMAP_PENDING = "remap-pending"
    REMAP_FAILED = "remap-failed"
    SRAM_ERRORS = "sram-errors"
    TOO_HOT = "too-hot"
    POWER_BRAKE = "power-brake"
    NO_FABRIC = "no-fabric"
    INFOROM_DAMAGED = "inforom-damaged"
    NARROW_LINK = "narrow-link"
    BROKEN_QUERY = "broken-query"  # one question is answered by an error that says nothing
    HANG = "hang"  # no question to the node's driver comes back
    NO_DRIVER = "no-driver"  # the node's driver is not loaded


# A power cycle mends the rest: these are damage to the part, which keeps a record of it.
LASTING = frozenset((GpuState.REMAP_FAILED, GpuState.SRAM_ERRORS, GpuState.INFOROM_DAMAGED))


def gpu_state(name: str) -> GpuState:
    """InvalidInput names the ones that exist."""
    try:
        return GpuState(name)
    except ValueError:
        raise InvalidInput(f"no state {name!r} of a GPU; choose one of {', '.join(GpuState)}") from None
