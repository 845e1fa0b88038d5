"""Many Slurm clusters asked at once: one that hangs is not waited for twice, and is believed again once it answers."""

from __future__ import annotations

import asyncio

import pytest

from everstep.adapters.slurm import roundup
from everstep.adapters.slurm.roundup import Roundup
from everstep.core.errors import Unreachable
from everstep.core.scheduler_state import SchedulerSnapshot, SilentCluster, SlurmNode

ENDPOINTS = [("slurm/one", "http://one"), ("slurm/two", "http://two")]


class Slurms:
    """Two clusters; ``slurm/two`` hangs while ``hangs`` is set, and fails at once with ``refuses``."""

    def __init__(self) -> None:
        self.hangs, self.refuses = asyncio.Event(), False
        self.free = asyncio.Event()
        self.asked: list[str] = []

    async def ask(self, cluster: str, url: str) -> SchedulerSnapshot:
        self.asked.append(cluster)
        if cluster == "slurm/two" and self.hangs.is_set():
            await self.free.wait()
        if cluster == "slurm/two" and self.refuses:
            raise Unreachable("connection refused")
        return SchedulerSnapshot(cluster, "24.11", 0.0, (SlurmNode(f"{cluster[6:]}-1", frozenset()),))


def names(found: tuple[SchedulerSnapshot | SilentCluster, ...]) -> list[str]:
    return [each.cluster for each in found]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundup, "PATIENCE", 0.05)
    monkeypatch.setattr(roundup, "MOST_PATIENCE", 1.0)


def test_one_that_hangs_is_waited_for_once_and_comes_back_when_it_answers() -> None:
    async def use() -> None:
        slurms = Slurms()
        asking = Roundup(slurms.ask, lambda cluster: ({"pool": cluster},))
        assert names((await asking.look(ENDPOINTS)).answered) == ["slurm/one", "slurm/two"]
        slurms.hangs.set()
        look = await asking.look(ENDPOINTS)
        assert names(look.answered) == ["slurm/one"]
        assert names(look.silent) == ["slurm/two"]
        assert look.silent[0].may_hold("two-1", {}), "it had the node when it last answered"
        asked = len(slurms.asked)
        async with asyncio.timeout(0.03):
            assert names((await asking.look(ENDPOINTS)).silent) == ["slurm/two"]
        assert slurms.asked[asked:].count("slurm/two") <= 1, "only the probe beside the looks asks it"
        slurms.hangs.clear()
        slurms.free.set()
        await asyncio.sleep(0.01)
        assert names((await asking.look(ENDPOINTS)).answered) == ["slurm/one", "slurm/two"]
        await asking.close()

    asyncio.run(use())


def test_one_that_is_slow_but_answers_gets_the_time_it_needs() -> None:
    async def use() -> None:
        slurms = Slurms()

        async def slow(cluster: str, url: str) -> SchedulerSnapshot:
            await asyncio.sleep(0.15 if cluster == "slurm/two" else 0.0)
            return await slurms.ask(cluster, url)

        asking = Roundup(slow, lambda cluster: None)
        assert names((await asking.look(ENDPOINTS)).silent) == ["slurm/two"]
        await asyncio.sleep(0.25)
        assert names((await asking.look(ENDPOINTS)).answered) == ["slurm/one", "slurm/two"]
        await asking.close()

    asyncio.run(use())


def test_one_that_refuses_is_asked_on_every_look_and_one_that_is_gone_no_more() -> None:
    async def use() -> None:
        slurms = Slurms()
        slurms.refuses = True
        asking = Roundup(slurms.ask, lambda cluster: None)
        for _ in range(2):
            (silent,) = (await asking.look(ENDPOINTS)).silent
            assert silent.why == "connection refused"
            assert silent.may_hold("anything", {}), "nobody knows its pools"
        assert slurms.asked.count("slurm/two") == 2
        slurms.hangs.set()
        await asking.look(ENDPOINTS)
        assert names((await asking.look(ENDPOINTS[:1])).silent) == []
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "the probe of a cluster that was deleted ends"

    asyncio.run(use())
