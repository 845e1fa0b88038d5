"""A node's GPU driver for tests: the simulated library, and the files that it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from everstep.adapters.gpu.nvml import Nvml, NvmlSettings
from everstep.adapters.gpu.nvml_process import Patience
from everstep.lab.driver import ensure_driver, install_driver
from everstep.lab.hardware.driver_state import DRIVER_FOLDER, PCI_FOLDER, STATE_FILE, driver_text, write_pci
from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import SimulatedGpu, new_identity

CALM = Patience(answer=30.0, start=60.0, first_pause=0.05, longest_pause=0.1)  # a busy machine hangs nobody
SHORT = Patience(answer=0.3, start=2.0, first_pause=0.05, longest_pause=0.1)


@dataclass
class Driver:
    """Two GPUs, the library in ``run/driver`` and the PCI bus in ``run/pci``."""

    run: Path
    gpus: list[SimulatedGpu] = field(default_factory=lambda: [SimulatedGpu(new_identity(n)) for n in range(2)])

    def write(self) -> None:
        new = self.run / "state.new"
        new.write_text(driver_text(self.gpus))
        new.replace(self.run / STATE_FILE)

    def take(self, *states: GpuState, index: int = 0) -> None:
        for state in states:
            self.gpus[index].take(state)
        self.write()

    @asynccontextmanager
    async def nvml(self, *, at_once: bool = True, patience: Patience = CALM) -> AsyncIterator[Nvml]:
        """What the agent uses, on this driver."""
        settings = NvmlSettings(
            driver_folder=self.run / DRIVER_FOLDER,
            devices=self.run / PCI_FOLDER,
            inforom_every=0.0,
            patience=patience,
            at_once=at_once,
        )
        nvml = Nvml(settings)
        try:
            yield nvml
        finally:
            await nvml.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        return ensure_driver()


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("EVERSTEP_CACHE", str(library.parents[2]))
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    install_driver(tmp_path)
    made = Driver(tmp_path)
    write_pci(tmp_path, made.gpus)
    made.write()
    return made
