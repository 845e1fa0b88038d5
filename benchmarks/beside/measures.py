"""What is measured of one agent, phase by phase; every phase starts the agent anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from beside.costs import Cost, Meter, proportional_bytes, resident_bytes
from beside.kernel_log import KernelWriter, repeated
from beside.lines import ORDINARY, PROBES_A_START, Case, Probe, batches, probe
from beside.reports import Reports

SETTLE = 3.0  # seconds after the start before anything is measured
GIVE_UP = 10.0  # seconds after which a report is missing
GAP = 0.1  # seconds between a report and the next line
QUIET = 0.6  # seconds within which a line of the field must be reported
EXPLAINED = 65.0  # seconds more for an agent that waits for other lines to explain one, and quotes what it reports
_LOOK_EVERY = 2000  # lines of a storm between two looks at what the agent says
_FLUSH = 4000  # ordinary lines: more than the kernel's buffer holds, so that no agent starts with old faults


class Agent(Protocol):
    """One agent under measurement. Between ``start`` and ``stop`` the other attributes stand."""

    name: str
    family: str  # of the probes that it reports
    pid: int
    reports: Reports

    def version(self) -> str: ...

    def start(self, writer: KernelWriter) -> float:
        """Starts it without any memory of earlier runs and waits until it reports; returns the seconds it took."""
        ...

    def stop(self) -> None:
        """Ends it; fine when it has not come up."""
        ...


@dataclass(slots=True)
class Storm:
    """How an agent came through a storm.

    Attributes:
        cost: over the storm, its processor time and highest memory.
        others: seconds to the report of each other fault that was written into the storm; None where it was lost.
        after: seconds to the report of the next fault, written when the storm was over.
    """

    seconds: float
    cost: Cost
    others: list[float | None]
    after: float | None


@dataclass(slots=True)
class Readings:
    """All that was read of one agent; sizes in bytes, times in seconds, one item of a list a round."""

    start: list[float] = field(default_factory=list)
    idle_share: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    proportional: list[int] = field(default_factory=list)
    latency: list[float | None] = field(default_factory=list)
    storms: dict[str, list[Storm]] = field(default_factory=dict)
    missed: dict[str, list[str]] = field(default_factory=dict)
    family: str = ""


@contextmanager
def running(agent: Agent, writer: KernelWriter) -> Iterator[float]:
    """The agent, newly started; the seconds that took."""
    writer.pour(repeated(ORDINARY, _FLUSH, lambda _: None), None)
    try:
        took = agent.start(writer)
        time.sleep(SETTLE)  # what it does once at its start is not what it costs
        agent.reports.skip()
        yield took
    finally:
        agent.stop()


def idle(agent: Agent, writer: KernelWriter, into: Readings, seconds: float) -> None:
    """What the agent costs while nothing happens."""
    with running(agent, writer):
        with Meter(agent.pid) as meter:
            time.sleep(seconds)
        into.idle_share.append(meter.cost.processor / meter.cost.seconds)
        into.resident.append(resident_bytes(agent.pid))
        into.proportional.append(proportional_bytes(agent.pid))


def latency(agent: Agent, writer: KernelWriter, into: Readings) -> None:
    """The seconds from a line to its report, one line at a time."""
    with running(agent, writer) as took:
        into.start.append(took)
        into.family = agent.family
        for number in range(PROBES_A_START):
            into.latency.append(_seconds_to_report(agent, writer, probe(agent.family, number)))
            time.sleep(GAP)


def _seconds_to_report(agent: Agent, writer: KernelWriter, what: Probe) -> float | None:
    written = writer.write(what.line)
    seen = agent.reports.wait(what.marker, GIVE_UP)
    return None if seen is None else seen - written


@dataclass(frozen=True, slots=True)
class StormPlan:
    """``count`` lines at ``rate`` a second (None: as fast as the kernel takes them), other faults spread in it."""

    name: str
    lines: Sequence[bytes]
    count: int
    rate: float | None
    others: int = 8


def storm(agent: Agent, writer: KernelWriter, plan: StormPlan, into: Readings) -> None:
    """Pours the storm over the agent, looks for the other faults, and writes one more when it is over."""
    with running(agent, writer):
        every = plan.count // plan.others
        hidden = {(number + 1) * every - every // 2: probe(agent.family, number) for number in range(plan.others)}
        written: dict[int, float] = {}
        with Meter(agent.pid) as meter:
            began = time.monotonic()
            writer.pour(repeated(plan.lines, plan.count, _noting(agent, hidden, written)), plan.rate)
            seconds = time.monotonic() - began
            after = _seconds_to_report(agent, writer, probe(agent.family, plan.others))
        found = Storm(seconds, meter.cost, _found(agent, hidden, written), after)
        into.storms.setdefault(plan.name, []).append(found)


def _noting(agent: Agent, hidden: dict[int, Probe], written: dict[int, float]) -> Callable[[int], bytes | None]:
    def at(number: int) -> bytes | None:
        if number % _LOOK_EVERY == 0:
            agent.reports.look()
        if number not in hidden:
            return None
        written[number] = time.monotonic()
        return hidden[number].line.encode()

    return at


def _found(agent: Agent, hidden: dict[int, Probe], written: dict[int, float]) -> list[float | None]:
    """Seconds to the report of each fault that was hidden in a storm; None where none has come some time after it."""
    give_up = time.monotonic() + GIVE_UP
    found: list[float | None] = []
    for number, what in hidden.items():
        seen = agent.reports.wait(what.marker, max(0.0, give_up - time.monotonic()))
        found.append(None if seen is None else seen - written[number])
    return found


def field_lines(agent: Agent, writer: KernelWriter, cases: Sequence[Case], into: Readings) -> None:
    """Which lines of the field are missed, by family, and which healthy ones (family ``none``) are reported."""
    into.missed = {family: [] for family in sorted({case.family for case in cases})}
    for batch in batches(cases):
        with running(agent, writer):
            silent = [case for case in batch if not _reported(agent, writer, case)]
            if agent.reports.names_lines and silent:
                give_up = time.monotonic() + EXPLAINED
                silent = [
                    case for case in silent
                    if agent.reports.wait(_quote(case), max(0.0, give_up - time.monotonic())) is None
                ]  # fmt: skip
        for case in batch:
            if (case in silent) != (case.family == "none"):
                into.missed[case.family].append(case.line)


def _reported(agent: Agent, writer: KernelWriter, case: Case) -> bool:
    if not agent.reports.names_lines:
        agent.reports.skip()
    writer.write(case.line)
    return agent.reports.wait(_quote(case) if agent.reports.names_lines else "", QUIET) is not None


def _quote(case: Case) -> str:
    """What its report is known by: the code, which no other case of the batch has, or the line itself."""
    return f"{case.code}@" if case.code else case.line.partition("\n")[0][:60]
