"""The agent's tasks on a fake API server and a fake driver, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.adapters.gpu.kmsg import KernelLogFile
from everstep.adapters.kube.own_node import Said
from everstep.apps.agent.kernel_log import KernelLogTask
from everstep.apps.agent.publisher import Publisher
from everstep.apps.agent.questions import about_gpus
from everstep.apps.agent.state import State
from everstep.apps.agent.supervision import StateTask
from everstep.core.diagnosis import GPUS as INVENTORY
from everstep.core.diagnosis import Diagnosis, resumed
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.health import Gpu
from everstep.core.kernel_lines.stream import RecordStream
from everstep.core.occurrences import Occurrence

CATALOG = shipped_catalog()
GPUS = (Gpu(0, "GPU-a", "s0", "0000:01:00"), Gpu(1, "GPU-b", "s1", "0000:02:00"))


def xid_record(sequence: int, code: int = 79, priority: int = 4) -> str:
    return f"{priority},{sequence},1,-;NVRM: Xid (PCI:0000:02:00): {code}, pid=1, name=a, text\n"


class FakeApi:
    """Keeps the last diagnosis, as NodeHealth does; can be down."""

    def __init__(self) -> None:
        self.stored: Said | None = None
        self.writes: list[Diagnosis] = []
        self.beats: list[float] = []
        self.down = False
        self.refused = ""  # why NodeHealth is not taken, though all else is
        self.inherited: tuple[Occurrence, ...] = ()

    async def publish(self, diagnosis: Diagnosis, since: float) -> Sequence[Occurrence]:
        await asyncio.sleep(0)
        if self.down:
            raise Unreachable("connection refused")
        if self.refused:
            raise InvalidInput(self.refused)
        self.stored = Said(diagnosis, diagnosis.verdict, since)
        self.writes.append(diagnosis)
        return self.inherited

    async def beat(self) -> None:
        if self.down:
            raise Unreachable("connection refused")
        self.beats.append(time.monotonic())


class FakeDriver:
    def __init__(self, gpus: Sequence[Gpu] = GPUS) -> None:
        self.answer: Sequence[Gpu] | Exception | None = gpus

    async def gpus(self) -> Sequence[Gpu]:
        if self.answer is None:
            await asyncio.Event().wait()  # a driver that hangs
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


@asynccontextmanager
async def agent(
    kmsg: Path,
    api: FakeApi,
    driver: FakeDriver,
    boot_id: str = "boot-1",
    period: float = 0.02,
    not_before: int = 0,
    deadline: float = 10.0,
) -> AsyncIterator[State]:
    stored = api.stored.diagnosis if api.stored else None
    state = State(resumed(stored, boot_id, (KernelLogFile.name, INVENTORY)), CATALOG, time.time)
    gpus = StateTask(state, about_gpus(state, driver, period), deadline)
    log = KernelLogTask(state, KernelLogFile(kmsg), RecordStream(not_before=not_before))
    tasks = [asyncio.create_task(gpus.run())]
    await gpus.tried.wait()
    tasks += [asyncio.create_task(log.run())]
    await log.tried.wait()
    tasks += [asyncio.create_task(state.keep_time(tick=0.02))]
    tasks += [asyncio.create_task(Publisher(state, api, api.stored, counts_every=0.2).run())]
    try:
        yield state
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)
