"""How the GPUs of this node are read: through NVML, from a file, or not at all. The agent and a check agree on it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from everstep.adapters.gpu.boot import BOOT_ID, KernelBoot
from everstep.adapters.gpu.nvml import PCI_DEVICES, Nvml, NvmlSettings
from everstep.adapters.gpu.simulated import SimulatedGpus
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.health import Gpu
from everstep.ports import GpuReader, StateSource

READERS = ("nvml", "simulated", "none")


class BootId(Protocol):
    def boot_id(self) -> str:
        """Which boot of the machine this is. Unreachable when that cannot be read."""
        ...


class NoGpuReader:
    """For a node without any reader of its GPUs: that is said, and the node is not called healthy."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def gpus(self) -> Sequence[Gpu]:
        raise Unreachable(self._why)


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What is configured.

    Attributes:
        reader: one of ``READERS``.
        simulated: the file with a lab's simulated GPUs.
        nvml_library: folder of libnvidia-ml.so.1; None where the loader finds it by itself.
        pci_devices: sysfs' folder of PCI devices.
        boot_id: file that holds this boot's id.
    """

    reader: str = "nvml"
    simulated: Path | None = None
    nvml_library: Path | None = None
    pci_devices: Path = PCI_DEVICES
    boot_id: Path = BOOT_ID

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> GpuSettings:
        """As the agent's pod has them; the defaults of a real node elsewhere."""
        simulated, library = environment.get("EVERSTEP_SIMULATED_GPUS"), environment.get("EVERSTEP_NVML_LIBRARY")
        return cls(
            environment.get("EVERSTEP_GPUS") or ("simulated" if simulated else "nvml"),
            Path(simulated) if simulated else None,
            Path(library) if library else None,
            Path(environment.get("EVERSTEP_PCI_DEVICES") or PCI_DEVICES),
            Path(environment.get("EVERSTEP_BOOT_ID") or BOOT_ID),
        )

    def boot(self) -> BootId:
        """What knows the boot id: simulated GPUs belong to a machine with boots of its own."""
        if self.reader == "simulated":
            return SimulatedGpus(self._simulated())
        return KernelBoot(self.boot_id)

    def sources(self, *, at_once: bool = False) -> tuple[GpuReader, tuple[StateSource, ...]]:
        """The inventory, and what else the driver tells. ``at_once``: also what has not lasted yet.

        Raises:
            InvalidInput: the reader is none of ``READERS``, or lacks its file.
        """
        match self.reader:
            case "simulated":
                return SimulatedGpus(self._simulated()), ()
            case "none":
                return NoGpuReader("no GPU reader is configured for this node"), ()
            case "nvml":
                settings = NvmlSettings(self.nvml_library, self.pci_devices, at_once=at_once)
                try:
                    nvml = Nvml(settings)
                except Unreachable as why:
                    return NoGpuReader(str(why)), ()
                return nvml, (nvml,)
        raise InvalidInput(f"{self.reader!r} reads no GPUs; choose one of {', '.join(READERS)}")

    def _simulated(self) -> Path:
        if self.simulated is None:
            raise InvalidInput("simulated GPUs need the file with their state: give --simulated-gpus")
        return self.simulated


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that :func:`gpu_settings` reads; each has its default in the environment."""
    given = GpuSettings.from_environment()
    parser.add_argument(
        "--gpus", choices=READERS, help="how GPUs are read (default: $EVERSTEP_GPUS, else nvml)", default=None
    )
    parser.add_argument(
        "--nvml-library",
        type=Path,
        default=given.nvml_library,
        metavar="FOLDER",
        help="where libnvidia-ml.so.1 lies, if the loader does not find it (default: $EVERSTEP_NVML_LIBRARY)",
    )
    parser.add_argument(
        "--pci-devices", type=Path, default=given.pci_devices, metavar="FOLDER", help="default: %(default)s"
    )
    parser.add_argument(
        "--boot-id",
        type=Path,
        default=given.boot_id,
        metavar="FILE",
        help="holds this boot's id (default: %(default)s)",
    )
    parser.add_argument(
        "--simulated-gpus", type=Path, default=given.simulated, metavar="FILE", help="with the state of simulated GPUs"
    )


def gpu_settings(arguments: argparse.Namespace) -> GpuSettings:
    """What :func:`add_gpu_arguments` was given."""
    chosen = arguments.gpus or os.environ.get("EVERSTEP_GPUS") or ("simulated" if arguments.simulated_gpus else "nvml")
    return GpuSettings(
        chosen, arguments.simulated_gpus, arguments.nvml_library, arguments.pci_devices, arguments.boot_id
    )
