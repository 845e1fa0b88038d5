"""GPUs of a lab node, read from the file in which the lab keeps its simulated driver's state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.core.errors import Unreachable
from everstep.core.health import Gpu

STALE_AFTER = 60.0  # seconds without a sample: a driver that hangs answers nothing, and neither may this


class _Reading(msgspec.Struct, frozen=True):
    index: int
    uuid: str
    serial: str
    pci: str
    model: str = ""
    lost: bool = False
    recovery_action: str = "none"


class _Report(msgspec.Struct, frozen=True):
    boot_id: str
    gpus: list[_Reading]
    sampled_at: float | None = None


_decoder = msgspec.json.Decoder(_Report)


class SimulatedGpus:
    """Reads ``{"boot_id", "sampled_at", "gpus": [{"index", "uuid", "serial", ...}]}``; more fields do no harm."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def gpus(self) -> Sequence[Gpu]:
        """The GPUs now. Unreachable when the file is missing, malformed or old."""
        report = self._report()
        if report.sampled_at is not None and time.time() - report.sampled_at > STALE_AFTER:
            raise Unreachable(f"the simulated driver has not answered for {STALE_AFTER:.0f} s ({self._path})")
        return [
            Gpu(gpu.index, gpu.uuid, gpu.serial, gpu.pci, gpu.model, gpu.lost, gpu.recovery_action)
            for gpu in report.gpus
        ]

    def boot_id(self) -> str:
        """Boot id of the simulated machine. Unreachable when the file cannot be read."""
        return self._report().boot_id

    def _report(self) -> _Report:
        try:
            return _decoder.decode(self._path.read_bytes())
        except OSError as why:
            raise Unreachable(f"cannot read the simulated GPUs {self._path}: {why.strerror}") from why
        except msgspec.DecodeError as why:
            raise Unreachable(f"the simulated GPUs {self._path} make no sense: {why}") from why
