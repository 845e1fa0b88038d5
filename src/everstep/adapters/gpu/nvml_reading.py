"""What NVML answers about one node, and what of it is evidence of a fault."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from everstep.core.health import Evidence, Gpu

# nvmlDeviceGpuRecoveryAction_t, in NVML's order
RECOVERY_ACTIONS = (
    "none", "reset", "reboot", "drain-peers", "drain-reset", "recover-imex", "bus-reset", "system-reboot",
)  # fmt: skip
_THERMAL, _POWER_BRAKE = 0x40, 0x80  # nvmlClocksEventReasonHw{Thermal,PowerBrake}Slowdown
_FABRIC_NOT_STARTED, _FABRIC_IN_PROGRESS, _FABRIC_COMPLETED = 1, 2, 3  # nvmlGpuFabricState_t
_FABRIC_STATES = {_FABRIC_NOT_STARTED: "not started", _FABRIC_IN_PROGRESS: "in progress"}
# Bits of the fabric's health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK): a two-bit field each, in which 1 means yes.
_FABRIC_HEALTH = {"bandwidth degraded": 0, "route unhealthy": 4}

# How long it must last, and in what share of the readings, before it is said (seconds, share).
_HOT = (600.0, 0.6)  # gpud's rule, and the catalogue's: a GPU that is too hot now and then is no fault
_FABRIC_STARTS = (300.0, 1.0)  # the fabric manager trains all links of a machine when it starts
_FABRIC_FAILS = (60.0, 1.0)
_FEWEST = 3  # readings: two with a gap between them show nothing that lasts


class GpuAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU; None where it does not know the question. ``unknown`` has what it could not answer, and why.

    ``recovery``, ``reasons`` and ``fabric_*`` are NVML's own numbers, ``pci`` is as sysfs writes it (``0000:1b:00.0``).
    """

    index: int
    pci: str = ""
    uuid: str | None = None
    serial: str | None = None
    model: str | None = None
    lost: bool = False
    reset_required: bool = False
    recovery: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    sram: bool | None = None
    reasons: int | None = None
    fabric_state: int | None = None
    fabric_status: int = 0
    fabric_health: int = 0
    width: int | None = None
    max_width: int | None = None
    inforom: bool | None = None
    unknown: dict[str, str] = {}

    @property
    def recovery_action(self) -> str:
        """As a word; a number that this table lacks is no ``none`` either."""
        if not self.recovery:
            return "reset" if self.reset_required else "none"
        known = self.recovery < len(RECOVERY_ACTIONS)
        return RECOVERY_ACTIONS[self.recovery] if known else f"unknown-{self.recovery}"

    @property
    def inventory(self) -> Gpu:
        """As the rest of Everstep knows it. A board without a serial number goes by its UUID."""
        serial = self.serial or self.uuid or ""
        pci = self.pci.partition(".")[0]
        return Gpu(self.index, self.uuid or "", serial, pci, self.model or "", self.lost, self.recovery_action)


class Reading(msgspec.Struct, frozen=True):
    """One answer: an error of NVML as a whole, or its GPUs, those on the PCI bus, and those it was told to leave."""

    error: int = 0
    text: str = ""
    gpus: list[GpuAnswer] = []
    present: list[str] = []
    excluded: list[str] = []

    @property
    def missing(self) -> list[str]:
        """GPUs on the bus that NVML does not list."""
        known = {gpu.pci for gpu in self.gpus if gpu.pci}
        unlisted = [pci for pci in self.present if pci not in known and pci not in self.excluded]
        nameless = sum(not gpu.pci for gpu in self.gpus)  # lost before NVML was opened: listed, without an address
        return unlisted[: max(0, len(unlisted) - nameless)]


class Lasting:
    """Which of several conditions have lasted: true in a share of the readings over some time."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[tuple[float, bool]]] = {}

    def lasts(self, key: tuple[str, str], now: float, seen: bool, rule: tuple[float, float]) -> bool:
        """Takes one reading of ``key`` in. ``now`` is in seconds on any clock that never goes back."""
        seconds, share = rule
        if key not in self._seen and not seen:
            return False
        seen_before = self._seen.setdefault(key, deque())
        seen_before.append((now, seen))
        while len(seen_before) > 1 and seen_before[1][0] <= now - seconds:
            seen_before.popleft()
        times = sum(was for _, was in seen_before)
        if not times:
            del self._seen[key]
        covered = seen_before[0][0] <= now - seconds and len(seen_before) >= _FEWEST
        return covered and times >= share * len(seen_before)


class Judge:
    """Turns readings into evidence. ``at_once``: says even what has not lasted yet, for a single look at the node."""

    def __init__(self, *, at_once: bool = False) -> None:
        self._lasting = Lasting()
        self._at_once = at_once

    def evidence(self, reading: Reading, now: float) -> list[Evidence]:
        """Everything that is wrong now. ``now`` is in seconds on a clock that never goes back."""
        found = [item for gpu in reading.gpus for item in self._of(gpu, now)]
        listed = f"NVML lists {len(reading.gpus)} of the machine's GPUs"
        for pci in reading.missing:
            short = pci.partition(".")[0]
            found.append(Evidence("host", "gpu_missing", pci=short, line=f"{listed}, not that at {short}"))
        return found

    def _of(self, gpu: GpuAnswer, now: float) -> Iterator[Evidence]:
        if gpu.lost:
            yield _evidence(gpu, "host:gpu_lost", "is lost")
            return
        if (action := gpu.recovery_action) != "none":
            yield _evidence(gpu, "host:gpu_recovery", f"recovery_action={action}")
        if gpu.remap_failed:
            yield _evidence(gpu, "host:gpu_remap_failed", "a row could not be remapped")
        if gpu.remap_pending:
            yield _evidence(gpu, "host:gpu_remap_pending", "a row waits to be remapped")
        if gpu.sram:
            yield _evidence(gpu, "host:gpu_sram_threshold", "the threshold of SRAM errors is exceeded")
        if gpu.inforom:
            yield _evidence(gpu, "host:gpu_inforom", "the checksums of its InfoROM are wrong")
        if gpu.width and gpu.max_width and gpu.width < gpu.max_width:
            yield _evidence(gpu, "pcie:link_degraded", f"PCIe width {gpu.width} of {gpu.max_width}")
        for code, bit, text in (
            ("host:gpu_thermal_slowdown", _THERMAL, "hardware slowdown: too hot"),
            ("host:gpu_power_brake", _POWER_BRAKE, "hardware slowdown: power brake"),
        ):
            if gpu.reasons is not None and self._lasts(gpu, code, now, bool(gpu.reasons & bit), _HOT):
                yield _evidence(gpu, code, text)
        yield from self._fabric(gpu, now)

    def _fabric(self, gpu: GpuAnswer, now: float) -> Iterator[Evidence]:
        code, state = "host:gpu_fabric_state", gpu.fabric_state
        starting = _FABRIC_STATES.get(state or 0)
        if self._lasts(gpu, f"{code} starting", now, starting is not None, _FABRIC_STARTS):
            yield _evidence(gpu, code, f"fabric: {starting}")
        problems = [text for text, shift in _FABRIC_HEALTH.items() if gpu.fabric_health >> shift & 3 == 1]
        if gpu.fabric_status:
            problems.insert(0, f"joining it failed with NVML error {gpu.fabric_status}")
        failed = state == _FABRIC_COMPLETED and bool(problems)
        if self._lasts(gpu, f"{code} failed", now, failed, _FABRIC_FAILS) and failed:
            yield _evidence(gpu, code, f"fabric: {', '.join(problems)}")

    def _lasts(self, gpu: GpuAnswer, what: str, now: float, seen: bool, rule: tuple[float, float]) -> bool:
        if self._at_once:
            return seen
        return self._lasting.lasts((gpu.uuid or gpu.pci, what), now, seen, rule)


def _evidence(gpu: GpuAnswer, code: str, text: str) -> Evidence:
    kind, _, name = code.partition(":")
    who = f"GPU {gpu.index} ({gpu.serial or gpu.uuid or 'its serial number cannot be read'})"
    pci = gpu.pci.partition(".")[0] or None
    return Evidence(kind, name, pci=pci, line=f"NVML: {who}: {text}", subject=f"GPU{gpu.index}")


def unanswered(gpus: Sequence[GpuAnswer]) -> str:
    """What could not be asked, in one sentence; "" when all was."""
    return "; ".join(f"GPU {gpu.index}: {what}: {why}" for gpu in gpus for what, why in gpu.unknown.items())
