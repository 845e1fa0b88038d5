"""The machines of a lab: which runs, which boot it is in, what its GPUs do, what its kernel said.

Everything is observed again on every pass: a machine runs while its node's first process lives, and a first process
that was not there before is a new boot. So a node that dies in any way is seen as off, and nobody has to report it.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from everstep.core.errors import Conflict, InvalidInput, NotFound
from everstep.lab.hardware import kernel_log
from everstep.lab.hardware.driver_state import STATE_FILE, driver_text, write_pci
from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import NO_LOAD, DriverReport, GpuReading, Load, SimulatedGpu, new_identity
from everstep.lab.hardware.kernel_log import KernelLog
from everstep.lab.hardware.processes import read_stat
from everstep.lab.hardware.records import Boot, GpuRecord, MachineRecord, MachineState
from everstep.lab.hardware.settings import MachineSettings
from everstep.lab.hardware.xids import effect_of


class Machine:
    """One machine. A change of its GPUs' health wakes whoever waits in :meth:`health_after`."""

    def __init__(self, settings: MachineSettings, record: MachineRecord) -> None:
        self.settings = settings
        self.record = record
        self.gpus = [SimulatedGpu(g.identity, g.lost, g.recovery_action, g.states) for g in record.gpus]
        self.log = KernelLog(Path(settings.run_directory) / "kmsg")
        self._driver_text = ""
        self.health_version = 0
        self._health_changed = asyncio.Event()

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def boot_id(self) -> str:
        """Of the present boot, or of the last one while the machine is off; empty before the first."""
        return self.record.boot.id if self.record.boot else ""

    def start_boot(self) -> str:
        """Gets ready for power on: new boot id, empty kernel log, GPUs as the firmware finds them. Returns the id.

        The lab calls it before it starts the node, so that the node never sees the files of the boot before.
        """
        self.record.boot = Boot(id=str(uuid.uuid4()))
        for gpu in self.gpus:
            gpu.clear()
        self.log.boot(kernel_log.boot_lines(os.uname().release, [g.identity.pci for g in self.gpus]))
        _replace(Path(self.settings.run_directory) / "boot_id", f"{self.boot_id}\n".encode())
        self.publish_health()
        write_pci(Path(self.settings.run_directory), self.gpus)
        self._driver_text = ""
        self.report(time.time())
        return self.boot_id

    def observe(self) -> int | None:
        """Looks for the node's first process: its host pid while the machine runs, None while it does not."""
        found = self._first_process()
        if self.record.state is MachineState.REPAIRING:
            return None
        if found is None:
            if self.record.state is MachineState.RUNNING:
                self.record.state = MachineState.OFF
                for gpu in self.gpus:
                    gpu.power_off()
            return None
        boot = self.record.boot
        if boot is None or boot.first_process not in (None, found):
            self.start_boot()
        self.record.boot = Boot(self.boot_id, found)
        self.record.state = MachineState.RUNNING
        return found[0]

    def advance(self, seconds: float, loads: Mapping[str, Load]) -> None:
        """Moves the GPUs' gauges on; ``loads`` by index or UUID, as processes name their devices."""
        for gpu in self.gpus:
            by_index = loads.get(str(gpu.identity.index), NO_LOAD)
            by_uuid = loads.get(gpu.identity.uuid, NO_LOAD)
            gpu.advance(Load(by_index.busy + by_uuid.busy, by_index.memory_mib + by_uuid.memory_mib), seconds)

    def report(self, now: float) -> None:
        """Writes what the node's agent reads: ``gpus.json``, and the driver's state. ``now`` is Unix seconds."""
        run = Path(self.settings.run_directory)
        report = DriverReport(boot_id=self.boot_id, sampled_at=round(now, 3), gpus=self.readings())
        _replace(run / "gpus.json", msgspec.json.encode(report))
        if (text := driver_text(self.gpus)) != self._driver_text:
            _replace(run / STATE_FILE, text.encode())
            self._driver_text = text

    def readings(self) -> list[GpuReading]:
        return [gpu.reading() for gpu in self.gpus]

    def inject(self, xid: int, index: int) -> list[str]:
        """Makes GPU ``index`` fail with ``xid``: its effects, then the kernel's lines. Returns the records written.

        Raises:
            InvalidInput: an XID that the simulated hardware does not know, or no such GPU.
            Conflict: the machine does not run, so its kernel says nothing.
        """
        effect = effect_of(xid)
        gpu = self._running_gpu(index)
        first = gpu.healthy
        gpu.fail(effect.lost, effect.recovery_action)
        who = gpu.identity
        # the driver introduces a GPU the first time that it has something to say about it
        lines = [f"NVRM: GPU at PCI:{who.pci}: {who.uuid}", f"NVRM: GPU Board Serial Number: {who.serial}"]
        lines = [*(lines if first else ()), effect.line(who.pci)]
        self.report(time.time())  # before the line, so that whoever reads the line finds the driver's word in place
        records = [self.log.append(kernel_log.ERROR, line) for line in lines]
        self.publish_health()
        return records

    def set_state(self, state: GpuState, index: int) -> None:
        """Puts GPU ``index`` into a state that only its driver tells. Raises as :meth:`inject`."""
        self._running_gpu(index).take(state)
        self.report(time.time())
        self.publish_health()

    def _running_gpu(self, index: int) -> SimulatedGpu:
        if not 0 <= index < len(self.gpus):
            have = f"GPUs 0 to {len(self.gpus) - 1}" if self.gpus else "no GPU"
            raise InvalidInput(f"{self.name} has no GPU {index}: it has {have}")
        self.observe()
        if self.record.state is not MachineState.RUNNING:
            raise Conflict(f"{self.name} is {self.record.state}: power it on before breaking its GPU")
        return self.gpus[index]

    def repair(self) -> None:
        """Puts new GPUs in and forgets all faults."""
        self.record.gpus = [GpuRecord(new_identity(n)) for n in range(self.settings.gpus)]
        self.gpus = [SimulatedGpu(g.identity) for g in self.record.gpus]
        self.publish_health()

    async def health_after(self, version: int) -> int:
        """Returns the present ``health_version`` as soon as it differs from ``version``."""
        while self.health_version == version:
            await self._health_changed.wait()
        return self.health_version

    def keep(self) -> MachineRecord:
        """The record to store, with the GPUs' present faults."""
        self.record.gpus = [GpuRecord(g.identity, g.lost, g.recovery_action, sorted(g.states)) for g in self.gpus]
        return self.record

    def publish_health(self) -> None:
        """Wakes whoever waits in :meth:`health_after`; to be called after every change of a GPU's health."""
        self.health_version += 1
        waiting, self._health_changed = self._health_changed, asyncio.Event()
        waiting.set()

    def _first_process(self) -> tuple[int, int] | None:
        try:
            pid = int(Path(self.settings.pid_file).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        stat = read_stat("/proc", pid)
        return None if stat is None else (pid, stat.started)


class Machines:
    """All machines by name; a lookup that fails names the ones that exist."""

    def __init__(self, settings: tuple[MachineSettings, ...], known: dict[str, MachineRecord]) -> None:
        self._machines: dict[str, Machine] = {}
        for one in settings:
            record = known.get(one.name)
            if record is None or len(record.gpus) != one.gpus:
                gpus = [GpuRecord(new_identity(n)) for n in range(one.gpus)]
                record = MachineRecord(name=one.name, pool=one.pool, gpus=gpus)
            self._machines[one.name] = Machine(one, record)

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._machines.values())

    def get(self, name: str) -> Machine:
        """NotFound when there is no such machine."""
        try:
            return self._machines[name]
        except KeyError:
            raise NotFound(f"no machine {name} in this lab; it has {', '.join(self._machines)}") from None

    def keep(self) -> dict[str, MachineRecord]:
        """All records to store."""
        return {machine.name: machine.keep() for machine in self}


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)
