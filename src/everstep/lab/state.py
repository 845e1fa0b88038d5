"""What the supervisor knows about its lab, written to `state.json` after every change."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from everstep.lab.errors import LabError
from everstep.lab.layout import LabLayout
from everstep.lab.processes import alive, start_time

Phase = Literal["starting", "ready", "failed", "stopping"]


class ProcessId(msgspec.Struct):
    """A process by pid and start time (clock ticks since boot): together they are never reused."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, start_time(pid) or 0)

    @property
    def alive(self) -> bool:
        return alive(self.pid, self.started)


class DaemonState(msgspec.Struct):
    """One daemon of a node: `exits` counts its unexpected ends, `last_exit` is the code (negative: the signal)."""

    running: bool = False
    exits: int = 0
    last_exit: int | None = None


class NodeState(msgspec.Struct):
    """One node, or the control plane (`ctl`). `holder` is the process whose death cuts the power."""

    power: Literal["on", "off"] = "off"
    cable: Literal["plugged", "cut"] = "plugged"
    boots: int = 0
    boot_id: str | None = None
    holder: ProcessId | None = None
    daemons: dict[str, DaemonState] = msgspec.field(default_factory=dict)


class LabState(msgspec.Struct):
    """The whole lab. Times are Unix seconds; `timings` are seconds from the start of `up` to each milestone."""

    phase: Phase
    supervisor: ProcessId
    started_at: float
    index: int | None = None
    binaries: str = ""
    store: str = ""
    message: str = ""
    nodes: dict[str, NodeState] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)
    timings: dict[str, float] = msgspec.field(default_factory=dict)


class Event(msgspec.Struct):
    """One line of `events.jsonl`."""

    time: float
    text: str
    problem: bool = False


def read_state(layout: LabLayout) -> LabState | None:
    """None when the supervisor has not written any yet. Raises LabError for a file that cannot be read."""
    try:
        return msgspec.json.decode(layout.state_file.read_bytes(), type=LabState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LabError(f"cannot read {layout.state_file}: {error}") from error


def write_state(layout: LabLayout, state: LabState) -> None:
    fresh = layout.state_file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(state))
    os.replace(fresh, layout.state_file)


def append_event(layout: LabLayout, text: str, *, problem: bool = False) -> None:
    with layout.events_file.open("ab") as file:
        file.write(msgspec.json.encode(Event(time.time(), text, problem)) + b"\n")


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Whole lines from `offset` on, and the offset behind them."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            lines = file.read()
    except FileNotFoundError:
        return [], offset
    whole = lines[: lines.rfind(b"\n") + 1]
    return [msgspec.json.decode(line, type=Event) for line in whole.splitlines()], offset + len(whole)
