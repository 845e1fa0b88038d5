"""A simulated GPU: who it is, what ails it, and gauges that follow the work that its processes do."""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from everstep.lab.hardware.gpu_states import LASTING, GpuState

MODEL = "NVIDIA H100 80GB HBM3"
MEMORY_TOTAL_MIB = 81559  # what nvidia-smi shows for that model
IDLE_WATTS, PEAK_WATTS = 70.0, 700.0  # the H100 SXM data sheet's limit, and what an idle one draws
IDLE_CELSIUS, PEAK_CELSIUS = 31.0, 68.0
CONTEXT_MIB = 520.0  # a CUDA context takes about this much before the first allocation
BUSY_CORE_FRACTION = 0.3  # so much of one core shows as a fully busy GPU: lab jobs leave room for each other
LOAD_LAG_SECONDS, POWER_LAG_SECONDS, HEAT_LAG_SECONDS = 0.7, 1.5, 12.0

RECOVERY_ACTIONS = ("none", "drain", "reset", "reboot", "replace")  # mildest first


class GpuIdentity(msgspec.Struct, frozen=True):
    """What a repair changes: the part itself. ``pci`` is domain:bus:device, as the kernel's XID lines print it."""

    index: int
    uuid: str
    serial: str
    pci: str
    model: str = MODEL


class GpuReading(msgspec.Struct, frozen=True):
    """One GPU as a node's driver reports it; the element type of ``gpus`` in ``gpus.json``."""

    index: int
    uuid: str
    serial: str
    pci: str
    model: str
    utilization_percent: int
    memory_used_mib: int
    memory_total_mib: int
    power_watts: float
    temperature_c: int
    recovery_action: str
    lost: bool
    states: list[str] = []


class DriverReport(msgspec.Struct, frozen=True):
    """The whole of ``gpus.json``. ``sampled_at`` is Unix seconds, so that a reader can tell a driver that hangs."""

    boot_id: str
    sampled_at: float
    gpus: list[GpuReading]


@dataclass(frozen=True, slots=True)
class Load:
    """What processes did on one GPU since the last sample: busy share of one core (0 and up), memory in MiB."""

    busy: float = 0.0
    memory_mib: float = 0.0


NO_LOAD = Load()


def new_identity(index: int) -> GpuIdentity:
    """A part fresh from the box: 13-digit serial as NVIDIA's boards have, random UUID, slot's own PCI address."""
    serial = f"165{secrets.randbelow(10**10):010d}"
    return GpuIdentity(index=index, uuid=f"GPU-{uuid.uuid4()}", serial=serial, pci=f"0000:{index + 1:02x}:00")


class SimulatedGpu:
    """One GPU of one machine. ``lost``, ``recovery_action`` and ``states`` are its faults; the gauges are derived."""

    def __init__(
        self,
        identity: GpuIdentity,
        lost: bool = False,
        recovery_action: str = "none",
        states: Iterable[GpuState] = (),
    ) -> None:
        self.identity = identity
        self.lost = lost
        self.recovery_action = recovery_action
        self.states = set(states)
        self._utilization = 0.0
        self._memory = 0.0
        self._watts = IDLE_WATTS
        self._celsius = IDLE_CELSIUS

    @property
    def healthy(self) -> bool:
        """Whether the device plugin offers it for work."""
        return not self.lost and self.recovery_action == "none"

    def fail(self, lost: bool, recovery_action: str) -> None:
        """Adds a fault. What is lost stays lost, and a recovery action is never taken back by a milder fault."""
        self.lost = self.lost or lost
        if RECOVERY_ACTIONS.index(recovery_action) > RECOVERY_ACTIONS.index(self.recovery_action):
            self.recovery_action = recovery_action
        if self.lost:
            self.power_off()

    def take(self, state: GpuState) -> None:
        """Takes on a state that shows only when the driver is asked; ``WELL`` ends all of them, and every fault."""
        match state:
            case GpuState.WELL:
                self.states.clear()
                self.clear()
            case GpuState.LOST:
                self.fail(lost=True, recovery_action="none")
            case GpuState.WANTS_RESET:
                self.fail(lost=False, recovery_action="reset")
            case GpuState.WANTS_REBOOT:
                self.fail(lost=False, recovery_action="reboot")
            case _:
                self.states.add(state)

    def clear(self) -> None:
        """A power cycle: the driver finds the device again. Damage to the part itself stays."""
        self.lost, self.recovery_action = False, "none"
        self.states &= LASTING
        self.power_off()

    def power_off(self) -> None:
        """All gauges to what nobody measures any more."""
        self._utilization = self._memory = self._watts = 0.0
        self._celsius = IDLE_CELSIUS

    def advance(self, load: Load, seconds: float) -> None:
        """Moves the gauges ``seconds`` on under ``load``; a lost GPU shows nothing, whatever its processes do."""
        if self.lost:
            return
        target = min(1.0, load.busy / BUSY_CORE_FRACTION)
        self._utilization += (target - self._utilization) * _share(seconds, LOAD_LAG_SECONDS)
        self._memory = min(load.memory_mib, float(MEMORY_TOTAL_MIB))
        watts = IDLE_WATTS + (PEAK_WATTS - IDLE_WATTS) * self._utilization
        self._watts += (watts - self._watts) * _share(seconds, POWER_LAG_SECONDS)
        celsius = IDLE_CELSIUS + (PEAK_CELSIUS - IDLE_CELSIUS) * self._watts / PEAK_WATTS
        self._celsius += (celsius - self._celsius) * _share(seconds, HEAT_LAG_SECONDS)

    def reading(self) -> GpuReading:
        """The present state, rounded as NVML rounds it."""
        who = self.identity
        return GpuReading(
            index=who.index,
            uuid=who.uuid,
            serial=who.serial,
            pci=who.pci,
            model=who.model,
            utilization_percent=round(100 * self._utilization),
            memory_used_mib=round(self._memory),
            memory_total_mib=MEMORY_TOTAL_MIB,
            power_watts=round(self._watts, 1),
            temperature_c=round(self._celsius),
            recovery_action=self.recovery_action,
            lost=self.lost,
            states=sorted(self.states),
        )


def _share(seconds: float, lag: float) -> float:
    """How much of the way a first-order lag goes in ``seconds``."""
    return 1.0 - math.exp(-seconds / lag)
