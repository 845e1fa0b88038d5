"""Shows the agents' verdicts, and drains of others in Slurm, as conditions of each node, with an Event on a change.

Level-triggered: what a node shows is compared with what it ought to show, and only a difference is written. So many
differences at once (a first start on a large fleet, an API server that comes back) are written at a bounded rate,
nodes that are not well first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.errors import EverstepError
from everstep.core.foreign import DRAINED, foreign_faults
from everstep.core.node_verdict import HEALTHY, SILENT, SILENT_AFTER, verdict_condition
from everstep.core.policy import Policy
from everstep.engine.observe import within
from everstep.engine.queue import WorkQueue
from everstep.engine.sight import Sight
from everstep.engine.world import World

log = structlog.get_logger(__name__)

ALL, HINTED = "/all", "/hinted"
LOOK_EVERY = 5.0  # over all nodes: nothing but time tells that an agent has fallen silent
GATHER = 0.1  # for hints to come together: each look reads all reports
PAUSE = 0.02  # between two writes: 50 a second, a tenth of the heartbeats of 5,000 agents
BATCH = 25  # writes before the caches are read again and what changed meanwhile has its turn
ECHO = 5.0  # for a write of ours to come back by the watch
_EVENTS = {
    (HEALTHY, "True"): "EverstepHealthy",
    (HEALTHY, "False"): "EverstepFaulty",
    (HEALTHY, "Unknown"): "EverstepUnknown",
    (DRAINED, "True"): "SlurmDrained",
    (DRAINED, "False"): "SlurmDrainOver",
}
_USUAL = {HEALTHY: "True", DRAINED: "False"}  # what is no news of a node that shows nothing yet


@dataclass(frozen=True, slots=True)
class _Change:
    node: NodeView
    before: NodeCondition | None
    wanted: NodeCondition


class Verdicts:
    """Runs beside the heals, in the controller that leads.

    Args:
        sight: what was last seen of Slurm.
        may_act: asked before every write.
    """

    def __init__(self, world: World, sight: Sight, may_act: Callable[[], bool]) -> None:
        self._world = world
        self._sight = sight
        self._may_act = may_act
        self._queue = WorkQueue(world.clock)
        self._hinted: dict[str, None] = {}
        self._rest: dict[str, None] = {}
        self._said: dict[tuple[str, str], tuple[str, NodeCondition, float]] = {}
        self._looking_since: float | None = None
        self._policy = Policy()

    def hint(self, kind: str, name: str) -> None:
        """What an agent says is shown soon; whatever else changes on a node, the next look over all of them sees."""
        if kind == "NodeHealth":
            self._hinted[name] = None
            self._queue.add_after(HINTED, GATHER)

    async def run(self) -> None:
        """Until cancelled."""
        self._queue.add(ALL)
        while True:
            name = await self._queue.get()
            try:
                await self._turn(name)
            except EverstepError as error:
                log.warning("verdicts are not shown now", error=str(error))
                self._looking_since = None
                self._queue.add_after(ALL, 1.0)
            except Exception:
                log.exception("verdicts could not be shown, in an unforeseen way")
                self._queue.add_after(ALL, LOOK_EVERY)
            finally:
                self._queue.done(name)

    async def _turn(self, name: str) -> None:
        if not self._may_act():
            self._hinted.clear()
            self._rest.clear()
            self._queue.add_after(ALL, 1.0)
            return
        if name == ALL:
            self._queue.add_after(ALL, LOOK_EVERY)
        names, self._hinted = self._hinted, {}
        if not names:
            names, self._rest = self._rest, {}
        await self.show(None if name == ALL else names)

    async def show(self, names: Iterable[str] | None = None) -> None:
        """One comparison, of all nodes or of those named, and up to ``BATCH`` writes. Raises RetryLater."""
        world = self._world
        nodes, reports = await asyncio.gather(within(world.cluster.nodes()), within(world.cluster.reports()))
        policy = await self._policy_in_force()
        now = world.clock.now()
        if self._looking_since is None:
            self._looking_since = now
        asked = None if names is None else set(names)
        looked = [node for node in nodes if asked is None or node.name in asked]
        foreign = {node.name: foreign_faults(now, node, policy) for node in looked if policy.node_conditions}
        found = (
            self._change(now, node, wanted)
            for node in looked
            for wanted in (
                verdict_condition(now, node, reports.get(node.name), foreign.get(node.name, ())),
                self._sight.drain_condition(now, node),
            )
        )
        changes = sorted(
            (each for each in found if each), key=lambda change: change.wanted.status == _USUAL[change.wanted.type]
        )
        for number, change in enumerate(changes):
            if number == BATCH:
                self._rest.update(dict.fromkeys(each.node.name for each in changes[number:]))
                self._queue.add(HINTED)
                return
            if number:
                await world.clock.sleep(PAUSE)
            await self._write(change)
        if asked is None:
            self._said = {key: said for key, said in self._said.items() if now - said[2] < ECHO}

    async def _policy_in_force(self) -> Policy:
        """One that cannot be read stops heals; what nodes show goes on by the last one that could."""
        with contextlib.suppress(EverstepError):
            self._policy = await within(self._world.remediations.policy())
        return self._policy

    def _change(self, now: float, node: NodeView, wanted: NodeCondition | None) -> _Change | None:
        if wanted is None:
            return None
        shown = node.condition(wanted.type)
        uid, said, at = self._said.get((node.name, wanted.type), ("", None, 0.0))
        if said is not None and uid == node.uid and now - at < ECHO:
            shown = said
        if shown is not None and _same(shown, wanted):
            return None
        assert self._looking_since is not None
        if wanted.reason == SILENT and now - self._looking_since < SILENT_AFTER:
            return None  # whoever could not look for a while has missed heartbeats
        if shown is not None and shown.status == wanted.status:
            wanted = replace(wanted, since=shown.since)
        return _Change(node, shown, wanted)

    async def _write(self, change: _Change) -> None:
        """A failure is met again by the next look."""
        node, wanted = change.node, change.wanted
        if not self._may_act():
            return
        try:
            await within(self._world.cluster.set_condition(node.name, node.uid, wanted))
            self._said[node.name, wanted.type] = (node.uid, wanted, self._world.clock.now())
            before = change.before.status if change.before else _USUAL[wanted.type]
            if before != wanted.status:
                reason = _EVENTS[wanted.type, wanted.status]
                log.info("condition", node=node.name, now=reason, reason=wanted.message)
                await within(self._world.cluster.event("Node", node.name, reason, wanted.message or wanted.reason))
        except EverstepError as error:
            log.warning("the verdict of a node is not shown", node=node.name, error=str(error))


def _same(shown: NodeCondition, wanted: NodeCondition) -> bool:
    return (shown.status, shown.reason, shown.message) == (wanted.status, wanted.reason, wanted.message)
