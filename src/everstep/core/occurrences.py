"""What a device has had: the smallest thing that is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One episode of one code on one device.

    Attributes:
        device: serial of the GPU where it is known.
        code: ``kind:code``.
        lineages: of the jobs that used the device then.
    """

    device: str
    code: str
    at: float
    boot_id: str = ""
    lineages: tuple[str, ...] = ()
