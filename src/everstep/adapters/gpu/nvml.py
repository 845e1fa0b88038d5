"""NVIDIA GPUs, asked through NVML in a child process that can be killed."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from everstep.adapters.gpu.nvml_process import Child, Hung, Patience
from everstep.adapters.gpu.nvml_reading import GpuAnswer, Judge, Reading, unanswered
from everstep.core.errors import Unreachable
from everstep.core.health import Evidence, Gpu
from everstep.ports import PartlyUnreachable

PCI_DEVICES = Path("/sys/bus/pci/devices")
PERIOD = 10.0  # seconds between two readings; what needs a fast answer is in the kernel log too
HANGS = 2  # in a row, before the driver is said to hang: a busy node is slow
_HANGS = f"NVML: no answer to {HANGS} questions in a row"  # always the same words: a change would be news to all
_GLANCE = 0.5  # seconds that a driver that hangs is given to show that it no longer does
_CHILD = Path(__file__).with_name("nvml_child.py")
_LIBRARY_MISSING, _DRIVER_MISSING, _MISMATCH = 12, 9, 18  # NVML_ERROR_{LIBRARY_NOT_FOUND,DRIVER_NOT_LOADED,LIB_RM_...}
_MENDS = {
    _LIBRARY_MISSING: "libnvidia-ml.so.1 cannot be loaded: install NVIDIA's driver, in a container let NVIDIA's "
    "container runtime bring it, or name its folder (agent.nvmlLibraryPath of the chart, else EVERSTEP_NVML_LIBRARY); "
    "an empty one is what a driver that was half installed leaves",
    _DRIVER_MISSING: "the NVIDIA driver is not loaded: look at the kernel log of the node, or load it",
    _MISMATCH: "the driver in the kernel and its library differ in version: reboot the node, or load the new one",
}
_decoder = msgspec.json.Decoder(Reading)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmlSettings:
    """Where things are.

    Attributes:
        driver_folder: where libnvidia-ml.so.1 lies; None where the loader finds it by itself.
        devices: sysfs' folder of PCI devices.
        inforom_every: seconds between two looks at the InfoROMs, which NVML reads from flash.
        at_once: report also what has not lasted yet, for a single look at the node.
    """

    driver_folder: Path | None = None
    devices: Path = PCI_DEVICES
    inforom_every: float = 3600.0
    patience: Patience = field(default_factory=Patience)
    at_once: bool = False


class Nvml:
    """Implements :class:`everstep.ports.GpuReader` and :class:`everstep.ports.StateSource`; ``close`` it.

    Belongs to the event loop in which it is first asked.

    Raises:
        Unreachable: pynvml is not installed (the extra ``agent``).
    """

    name = "NVML"
    period = PERIOD

    def __init__(self, settings: NvmlSettings | None = None) -> None:
        settings = settings or NvmlSettings()
        self._child = Child(*_command(settings), settings.patience)
        self._judge = Judge(at_once=settings.at_once)
        self._asking: asyncio.Task[Reading] | None = None
        self._evidence: tuple[Evidence, ...] = ()
        self._identities: dict[int, GpuAnswer] = {}

    @property
    def restarts(self) -> int:
        """How often the child that asks had to be started again."""
        return self._child.restarts

    async def gpus(self) -> Sequence[Gpu]:
        """The GPUs now. One that is lost, and that this process never saw well, is left out: nobody knows which it is.

        Unreachable when NVML does not answer or has no driver to ask.
        """
        reading = await self._reading()
        nameless = [gpu for gpu in reading.gpus if not gpu.uuid]
        if any(not gpu.lost for gpu in nameless):
            raise Unreachable(f"NVML does not say which GPUs there are: {unanswered(nameless)}")
        return [gpu.inventory for gpu in reading.gpus if gpu.uuid]

    async def read(self) -> Sequence[Evidence]:
        """What is wrong with the GPUs now; two questions in a row without an answer are a fault of their own.

        While NVML hangs, what it said before still stands.

        Raises:
            PartlyUnreachable: a GPU answered a question with an error that says nothing of its health.
            Unreachable: NVML cannot be asked.
        """
        try:
            reading = await self._reading()
        except Hung as why:
            if self._child.hangs < HANGS:
                raise
            return (*self._evidence, Evidence("host", "gpu_query_hang", line=str(why)))
        self._evidence = tuple(self._judge.evidence(reading, time.monotonic()))
        if why_not := unanswered(reading.gpus):
            raise PartlyUnreachable(f"NVML does not say everything: {why_not}", self._evidence)
        return self._evidence

    async def close(self) -> None:
        """Ends the child. A GPU can be reset, and a driver unloaded, only when nothing holds it open any more."""
        if self._asking is not None:
            self._asking.cancel()
        await self._child.close()

    async def _reading(self) -> Reading:
        """One question for all who ask at the same time. Who stops waiting does not stop the question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(_retrieve)
        asking = self._asking
        if self._child.hangs >= HANGS:
            # It hangs: that can be said without another ten seconds. Whoever asks next hears how this one ended.
            await asyncio.wait((asking,), timeout=_GLANCE)
            if not asking.done():
                raise Hung(_HANGS)
        return await asyncio.shield(asking)

    async def _ask(self) -> Reading:
        before = self._child.restarts
        try:
            answer = await self._child.ask()
        except Hung as why:
            raise Hung(_HANGS if self._child.hangs >= HANGS else f"NVML: {why}") from why
        except Unreachable as why:
            raise Unreachable(f"NVML: {why}") from why
        finally:
            if self._child.restarts > before:
                log.warning("the process that asks NVML was started again, for the %d. time", self._child.restarts)
        try:
            reading = _decoder.decode(answer)
        except msgspec.DecodeError as why:
            raise Unreachable(f"NVML: the answer makes no sense: {why}") from why
        if reading.error:
            raise Unreachable(f"NVML: {_MENDS.get(reading.error, reading.text)}")
        return msgspec.structs.replace(reading, gpus=[self._identified(gpu) for gpu in reading.gpus])

    def _identified(self, gpu: GpuAnswer) -> GpuAnswer:
        """A GPU that was lost before its child was started cannot say who it is; who sat there before can."""
        if gpu.uuid:
            self._identities[gpu.index] = gpu
            return gpu
        before = self._identities.get(gpu.index)
        if not gpu.lost or before is None or (gpu.pci and gpu.pci != before.pci):
            return gpu
        return msgspec.structs.replace(gpu, pci=before.pci, uuid=before.uuid, serial=before.serial, model=before.model)


def _retrieve(task: asyncio.Task[Reading]) -> None:
    """Looks at a failure that everybody has stopped waiting for, or asyncio would print it."""
    if not task.cancelled():
        task.exception()


def _command(settings: NvmlSettings) -> tuple[list[str], dict[str, str]]:
    """The child's arguments and environment."""
    binding = importlib.util.find_spec("pynvml")
    if binding is None or binding.origin is None:
        raise Unreachable("pynvml is not installed: install everstep[agent]")
    folder = str(Path(binding.origin).parent)
    # -I -S: neither the agent's modules nor site-packages, so that the child stays small.
    argv = [sys.executable, "-I", "-S", str(_CHILD), folder, str(settings.devices), str(settings.inforom_every)]
    environment = {name: value for name, value in os.environ.items() if name in ("NVIDIA_VISIBLE_DEVICES", "PATH")}
    if settings.driver_folder is not None:
        environment["LD_LIBRARY_PATH"] = str(settings.driver_folder)
    elif "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return argv, environment
