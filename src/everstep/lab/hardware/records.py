"""What the hardware remembers across a restart of its process: machines, their parts and faults, operations."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from everstep.core.errors import Unreadable
from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import GpuIdentity


class MachineState(StrEnum):
    RUNNING = "running"
    OFF = "off"
    REPAIRING = "repairing"


class OperationPhase(StrEnum):
    """Where a retirement stands; the next phase is written before its work starts, and all work is repeatable."""

    ACCEPTED = "accepted"
    POWER_OFF = "powerOff"
    REPAIR = "repair"
    POWER_ON = "powerOn"
    DONE = "done"
    FAILED = "failed"


ENDED = (OperationPhase.DONE, OperationPhase.FAILED)


class Boot(msgspec.Struct, frozen=True):
    """One boot of a machine. ``first_process`` is (host pid, start time in ticks), None until it was seen."""

    id: str
    first_process: tuple[int, int] | None = None


class GpuRecord(msgspec.Struct):
    """A part in a machine and its faults."""

    identity: GpuIdentity
    lost: bool = False
    recovery_action: str = "none"
    states: list[GpuState] = []


class MachineRecord(msgspec.Struct):
    """One machine; ``pool`` is the pool in which it serves, and to which it comes back as a spare."""

    name: str
    state: MachineState = MachineState.OFF
    boot: Boot | None = None
    pool: str | None = None
    gpus: list[GpuRecord] = msgspec.field(default_factory=list)


class OperationRecord(msgspec.Struct):
    """One retirement; ``repair_ends`` is Unix seconds, set when the repair begins."""

    id: str
    machine: str
    action: str
    phase: OperationPhase = OperationPhase.ACCEPTED
    message: str = ""
    repair_ends: float | None = None


class Records(msgspec.Struct):
    """The whole file."""

    machines: dict[str, MachineRecord] = msgspec.field(default_factory=dict)
    operations: dict[str, OperationRecord] = msgspec.field(default_factory=dict)


class RecordStore:
    """Keeps :class:`Records` in one JSON file, replaced whole.

    Written without fsync: the file must outlive this process, not the host, because the lab does not outlive it either.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = self._load()

    def save(self) -> None:
        """Replaces the file; a reader sees the old or the new one."""
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self.records), indent=1))
        fresh.replace(self.path)

    def _load(self) -> Records:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return Records()
        try:
            return msgspec.json.decode(raw, type=Records)
        except msgspec.DecodeError as error:
            raise Unreadable(
                f"{self.path} cannot be understood ({error}); it says what each lab machine is, so it is not replaced: "
                "restore it, or take the lab down and up again"
            ) from error
