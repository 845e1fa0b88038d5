"""One run for many callers, and never an answer from before a change."""

from __future__ import annotations

import asyncio

import pytest

from everstep.adapters.slurm.shared import Shared
from everstep.core.errors import Unreachable


class Source:
    def __init__(self) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def take(self) -> int:
        self.runs += 1
        number = self.runs
        await self.gate.wait()
        if self.fails:
            raise Unreachable("away")
        return number


def test_callers_share_a_run_for_half_a_second() -> None:
    async def scenario() -> None:
        time = [0.0]
        source = Source()
        shared = Shared(source.take, max_age=0.5, now=lambda: time[0])
        assert await asyncio.gather(*(shared.get() for _ in range(5))) == [1] * 5
        time[0] = 0.4
        assert await shared.get() == 1
        time[0] = 0.6
        assert await shared.get() == 2

    asyncio.run(scenario())


def test_after_a_change_nobody_gets_what_was_begun_before() -> None:
    async def scenario() -> None:
        source = Source()
        shared = Shared(source.take, now=lambda: 0.0)
        source.gate.clear()
        early = asyncio.create_task(shared.get())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shared.forget()
        late = asyncio.create_task(shared.get())
        await asyncio.sleep(0)
        source.gate.set()
        assert (await early, await late) == (1, 2)

    asyncio.run(scenario())


def test_a_caller_that_hangs_up_does_not_take_the_run_away() -> None:
    async def scenario() -> None:
        source = Source()
        shared = Shared(source.take, now=lambda: 0.0)
        source.gate.clear()
        first, second = asyncio.create_task(shared.get()), asyncio.create_task(shared.get())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        source.gate.set()
        assert await second == 1

    asyncio.run(scenario())


def test_an_error_is_not_kept() -> None:
    async def scenario() -> None:
        source = Source()
        shared = Shared(source.take, now=lambda: 0.0)
        source.fails = True
        with pytest.raises(Unreachable):
            await shared.get()
        source.fails = False
        assert await shared.get() == 2

    asyncio.run(scenario())
