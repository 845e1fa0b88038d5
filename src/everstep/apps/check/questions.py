"""What a check asks on this node: its kernel log, its GPUs, and whatever else can be asked how it is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.apps.check.asking import Question
from everstep.core.boot_log import Boot, BootLog
from everstep.core.errors import InvalidInput
from everstep.core.fault_catalog import Catalog
from everstep.core.gpu_inventory import placed, unwell
from everstep.core.health import Evidence, Gpu, accuses
from everstep.core.node_check import Answer, faults_of
from everstep.ports import GpuReader, LineSource, PartlyUnreachable, StateSource

KERNEL_LOG, GPUS = "kernel log", "GPUs"
AGAIN_AFTER = 0.5  # seconds from a reading that accuses the node to the one that has to confirm it


@dataclass(frozen=True, slots=True)
class Sources:
    """What this node has."""

    kernel_log: LineSource
    gpus: GpuReader
    states: Sequence[StateSource] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """How the answers are judged.

    Attributes:
        patience: seconds for which the kernel log's judgement waits for the other answers.
        window: seconds of the kernel log that count, back from now; None for the whole boot.
    """

    catalog: Catalog
    allow_injected: bool = False
    patience: float = 10.0
    window: float | None = None


@dataclass(slots=True)
class Board:
    """What has been answered so far, for the kernel log: it is judged by what the other sources say now."""

    waiting: set[str]
    passed: bool = True
    gpus: tuple[Gpu, ...] = ()
    changed: threading.Condition = field(default_factory=threading.Condition)

    def post(self, name: str, *, passed: bool) -> None:
        with self.changed:
            self.waiting.discard(name)
            self.passed = self.passed and passed
            self.changed.notify_all()

    def complete(self, patience: float) -> bool:
        """Waits for all others; False when one did not answer in time or accuses the node."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.waiting, patience) and self.passed


class Inventory:
    """The GPUs as a source of states; the others learn the inventory from the board."""

    name, period = GPUS, 0.0

    def __init__(self, reader: GpuReader, board: Board) -> None:
        self.owner = reader  # it may be a source of states too, and belongs to one event loop then
        self._board = board
        self.close = getattr(reader, "close", None)

    async def read(self) -> Sequence[Evidence]:
        self._board.gpus = tuple(await self.owner.gpus())
        return unwell(self._board.gpus)


def questions(sources: Sources, rules: Rules, wanted: Sequence[str] = ()) -> Mapping[str, Question]:
    """The questions by the name of their source.

    Args:
        wanted: names of sources; the others are left alone. Empty for all. Upper and lower case are one, and so are
            spaces and dashes.

    Raises:
        InvalidInput: there is no such source here; the text lists those that there are.
    """
    board = Board(set())
    states = [Inventory(sources.gpus, board), *sources.states]
    known = {_plain(name): name for name in (KERNEL_LOG, *(source.name for source in states))}
    if unknown := [name for name in wanted if _plain(name) not in known]:
        raise InvalidInput(f"there is no source {unknown[0]!r} on this node; it has {', '.join(known.values())}")
    chosen = {_plain(name) for name in wanted} or set(known)
    asked: dict[str, Question] = {}
    if _plain(KERNEL_LOG) in chosen:
        asked[KERNEL_LOG] = _kernel_log(sources, rules, board)
    for source in states:
        if _plain(source.name) in chosen:
            board.waiting.add(source.name)
            asked[source.name] = _state(source, rules.catalog, board)
    board.passed = len(chosen) == len(known)  # what was not asked can prove nothing
    return asked


def _plain(name: str) -> str:
    return name.lower().replace(" ", "-")


def _state(source: StateSource, catalog: Catalog, board: Board) -> Question:
    async def question() -> Answer:
        passed = False
        try:
            answer = await _confirmed(source, catalog, board)
            passed = answer.problem is None and not any(map(accuses, answer.faults))
        finally:
            board.post(source.name, passed=passed)
        return answer

    owner = source.owner if isinstance(source, Inventory) else source
    return Question(question, getattr(source, "close", None), owner)


async def _confirmed(source: StateSource, catalog: Catalog, board: Board) -> Answer:
    """One reading. Where it accuses the node, the next has to say the same: a driver that was just busy will not."""
    reading, problem = await _reading(source)
    found = faults_of(catalog, reading)
    if any(map(accuses, found)):
        await asyncio.sleep(AGAIN_AFTER)
        before = {fault.key for fault in found}
        reading, problem = await _reading(source)
        found = tuple(fault for fault in faults_of(catalog, reading) if fault.key in before or not accuses(fault))
    remark = f"{len(board.gpus)} GPUs answer" if source.name == GPUS else ""
    return Answer(source.name, tuple(placed(fault, board.gpus) for fault in found), problem, remark)


async def _reading(source: StateSource) -> tuple[Sequence[Evidence], str | None]:
    """What is wrong, and why some of the source could not be asked, if so."""
    try:
        return await source.read(), None
    except PartlyUnreachable as why:
        return why.evidence, str(why)


def _kernel_log(sources: Sources, rules: Rules, board: Board) -> Question:
    async def question() -> Answer:
        reader = await sources.kernel_log.open()  # first: what cannot be opened need not wait for the others
        try:
            passed = board.complete(rules.patience)
            boot = Boot(
                rules.catalog,
                now=time.time(),
                uptime=time.clock_gettime(time.CLOCK_MONOTONIC),
                gpus=board.gpus,
                window=rules.window,
                allow_injected=rules.allow_injected,
            )
            log = BootLog(boot)
            while records := reader.available().records:
                log.take(records)
        finally:
            reader.close()
        return Answer(KERNEL_LOG, log.standing(passed=passed), remark=log.remark)

    return Question(question)
