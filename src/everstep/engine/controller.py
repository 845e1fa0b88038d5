"""The controller's life: hints and timers fill the queue, workers take passes from it, only the leader acts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from everstep.core.errors import Conflict, EverstepError, RetryLater
from everstep.engine.aftercare import Aftercare
from everstep.engine.fleet_watch import FleetWatch
from everstep.engine.leader import Leadership
from everstep.engine.queue import WorkQueue
from everstep.engine.reconcile import Fenced, Reconciler
from everstep.engine.sight import Sight
from everstep.engine.verdicts import Verdicts
from everstep.engine.world import World
from everstep.ports import Changes

log = structlog.get_logger(__name__)

INCIDENTS = "/incidents"  # no Remediation can have this name
WORKERS = 3
STANDBY_EVERY = 0.5


class Controller:
    """Runs until cancelled."""

    def __init__(self, world: World, leadership: Leadership, changes: Changes) -> None:
        self._world = world
        self._leadership = leadership
        self._queue = WorkQueue(world.clock)
        sight = Sight()
        self._reconciler = Reconciler(world, lambda: leadership.leading, self._queue.add, sight)
        self._verdicts = Verdicts(world, sight, lambda: leadership.leading)
        self._fleet_watch = FleetWatch(world, sight, lambda: leadership.leading)
        self._aftercare = Aftercare(world, lambda: leadership.leading)
        self._repairs = WorkQueue(world.clock)  # a queue and a worker of its own: no heal waits for a provider
        self._open: set[str] = set()
        changes.subscribe(self._hint)
        changes.subscribe(self._verdicts.hint)

    async def run(self) -> None:
        """Leads when it may, stands by when it may not."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run())
            tasks.create_task(self._take_over())
            tasks.create_task(self._verdicts.run())
            tasks.create_task(self._fleet_watch.run())
            for _ in range(WORKERS):
                tasks.create_task(self._work(self._queue, self._pass))
            tasks.create_task(self._work(self._repairs, self._follow_repair))

    def _hint(self, kind: str, name: str) -> None:
        """Something changed: a pass over what it may concern."""
        if kind == "Remediation":
            self._queue.add(name)
            self._repairs.add(name)
            return
        if kind != "Pod":
            self._queue.add(INCIDENTS)
        for remediation in self._open:  # one of its nodes, spares or pods; few are open at a time
            self._queue.add(remediation)

    async def _take_over(self) -> None:
        """On each change from standby to leader, whatever is unfinished gets a pass."""
        led = False
        while True:
            leads = self._leadership.leading
            if leads and not led:
                leads = await self._begin()
            led = leads
            await self._world.clock.sleep(STANDBY_EVERY)

    async def _begin(self) -> bool:
        try:
            names = await self._reconciler.unfinished()
            repairs = await self._aftercare.awaited()
        except EverstepError as error:
            log.error("what is unfinished could not be read; trying again", error=str(error))
            return False
        for name in (INCIDENTS, *names):
            self._queue.add(name)
        for name in repairs:
            self._repairs.add(name)
        return True

    async def _work(self, queue: WorkQueue, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            name = await queue.get()
            try:
                if self._leadership.leading:
                    await work(name)
                else:
                    queue.add_after(name, STANDBY_EVERY)
            finally:
                queue.done(name)

    async def _follow_repair(self, name: str) -> None:
        """One question about a repair; errors delay the next one."""
        try:
            again = await self._aftercare.follow(name)
        except EverstepError as error:
            log.info("repair not followed", name=name, error=str(error), seconds=self._repairs.failed(name))
        except Exception:
            log.exception("a repair could not be followed", name=name, seconds=self._repairs.failed(name))
        else:
            self._repairs.succeeded(name)
            if again is not None:
                self._repairs.add_after(name, again)

    async def _pass(self, name: str) -> None:
        """One pass; errors delay the next one and never end the controller."""
        try:
            if name == INCIDENTS:
                again: float | None = await self._reconciler.open_incidents()
            else:
                again = await self._reconciler.heal(name)
        except Fenced as fenced:
            log.warning(str(fenced))
        except Conflict:
            self._queue.add_after(name, 0.02)
        except RetryLater as error:
            log.warning("pass put off", name=name, error=str(error), seconds=self._queue.failed(name))
        except EverstepError as error:
            log.error("a person is needed", name=name, error=str(error), seconds=self._queue.failed(name))
        except Exception:
            log.exception("a pass failed in an unforeseen way", name=name, seconds=self._queue.failed(name))
        else:
            self._queue.succeeded(name)
            self._note(name, again)

    def _note(self, name: str, again: float | None) -> None:
        if again is None:
            self._open.discard(name)
            return
        if name != INCIDENTS:
            self._open.add(name)
        self._queue.add_after(name, max(again, 0.02))
