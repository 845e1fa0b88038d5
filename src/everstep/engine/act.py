"""The only place where side effects start: one ``match`` from an action to a port call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import assert_never

import structlog

from everstep.core import actions as do
from everstep.core.draft import OUR_PREFIX
from everstep.core.errors import EverstepError
from everstep.core.remediation_status import Remediation
from everstep.engine.observe import within
from everstep.engine.world import World
from everstep.ports import Notice

log = structlog.get_logger(__name__)


async def perform(world: World, me: Remediation, action: do.Action) -> None:  # noqa: C901, PLR0912 (one line an action)
    """Carries one action out. Raises what the port raises."""
    cluster, slurm = world.cluster, world.scheduler
    match action:
        case do.Cordon(node):
            await cluster.cordon(node)
        case do.Uncordon(node):
            await cluster.uncordon(node)
        case do.Evict(pod):
            await cluster.evict(pod)
        case do.ClaimSpare(node):
            await cluster.claim_spare(node, me.name)
        case do.ReleaseSpare(node):
            await cluster.release_spare(node, me.name)
        case do.JoinPool(node, pool):
            await cluster.join_pool(node, pool, me.name)
        case do.LeavePool(node):
            await cluster.leave_pool(node, me.name)
        case do.SlurmDrain(where, node, reason):
            await slurm.drain(where, node, reason)
        case do.SlurmDown(where, node, reason):
            await slurm.down(where, node, reason)
        case do.SlurmResume(where, node):
            await slurm.resume(where, node, OUR_PREFIX)
        case do.SlurmForget(where, node):
            await slurm.forget(where, node)
        case do.RequeueJob(where, job, restarts):
            await slurm.requeue(where, job, restarts)
        case do.HoldJob(where, job, restarts):
            await slurm.hold(where, job, restarts)
        case do.ClearStaleAllocation(where, job, restarts):
            await slurm.clear_stale_allocation(where, job, restarts)
        case do.ReleaseJob(where, job, restarts):
            await slurm.release(where, job, restarts)
        case do.TellJob(_, where, job, text):
            await slurm.tell(where, job, text)
        case do.TellPeople(_, title, text, user, job):
            await world.notifier.notify(Notice(me.name, me.spec.node, title, text, user, job))
        case do.RetireMachine(operation, machine):
            await world.provider.retire(operation, machine)
        case do.LetGo():
            await world.remediations.let_go(me)
        case other:
            assert_never(other)


class Deliveries:
    """Notices on their way, beside the passes: a slow mail server must not slow a heal down.

    What was delivered is kept in memory until it is in the record; a crash in between repeats a notice, never loses it.
    """

    def __init__(self, world: World, wake: Callable[[str], None]) -> None:
        self._world = world
        self._wake = wake
        self._sent: dict[str, dict[str, str]] = {}
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    def of(self, name: str) -> Mapping[str, str]:
        """Key to error text ("" = delivered) of what was sent for one incident and may not be on record yet."""
        return dict(self._sent.get(name, {}))

    def start(self, me: Remediation, action: do.TellJob | do.TellPeople) -> None:
        """Begins a delivery unless it is under way or was made."""
        running = (me.name, action.key)
        if running not in self._running and action.key not in self._sent.get(me.name, {}):
            self._running[running] = asyncio.ensure_future(self._deliver(me, action))

    def forget(self, name: str) -> None:
        """Drops what is known of an incident that is over."""
        self._sent.pop(name, None)

    async def settle(self) -> None:
        """Waits for what is under way."""
        if self._running:
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _deliver(self, me: Remediation, action: do.TellJob | do.TellPeople) -> None:
        try:
            await within(perform(self._world, me, action), 30.0)
            outcome = ""
        except EverstepError as error:
            outcome = str(error) or type(error).__name__
        except Exception as error:  # a notice must never take a heal down, whatever its library does
            log.exception("a notice failed in an unforeseen way", name=me.name, key=action.key)
            outcome = f"unforeseen {type(error).__name__}"
        finally:
            self._running.pop((me.name, action.key), None)
        self._sent.setdefault(me.name, {})[action.key] = outcome
        self._wake(me.name)
