"""Looks across the fleet beside the heals: keeps the look at Slurm fresh, and writes down what many nodes share.

What it finds holds nothing up and sets nothing going by itself; :mod:`everstep.core.incidents` and
:mod:`everstep.core.admission` judge by the same rules, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from everstep.core.correlation.fleet import Blame, FleetRecord
from everstep.core.errors import EverstepError
from everstep.core.fleet_incidents import FleetView, fleet_incidents, forgotten, recorded
from everstep.core.inheritance import inheritances
from everstep.core.occurrences import Occurrence
from everstep.engine.observe import within
from everstep.engine.sight import Sight
from everstep.engine.world import World
from everstep.ports import Notice

log = structlog.get_logger(__name__)

LOOK_EVERY = 5.0
EVENTS_A_LOOK = 50  # of a mount that a thousand nodes lose, the record tells at once; Events on the nodes follow
WRITES_A_LOOK = 25
NOTICE_SECONDS = 30.0


class FleetWatch:
    """Runs beside the heals, in the controller that leads.

    Args:
        sight: refreshed by every look.
        may_act: asked before every write.
    """

    def __init__(self, world: World, sight: Sight, may_act: Callable[[], bool]) -> None:
        self._world, self._sight, self._may_act = world, sight, may_act
        self._shown: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._may_act():
                await self.turn()
            await self._world.clock.sleep(LOOK_EVERY)

    async def turn(self) -> None:
        """One look; what fails is met again by the next one."""
        try:
            await self._look()
        except EverstepError as error:
            log.warning("the fleet cannot be looked at now", error=str(error))
        except Exception:
            log.exception("the look at the fleet failed in an unforeseen way")

    async def _look(self) -> None:
        world = self._world
        await self._ask_slurm()
        nodes, reports, known, policy, records = await asyncio.gather(
            within(world.cluster.nodes()),
            within(world.cluster.reports()),
            within(world.remediations.list()),
            within(world.remediations.policy()),
            within(world.fleet_incidents.list()),
        )
        now = world.clock.now()
        look = self._sight.look(now)
        view = FleetView(nodes, reports, known, look, self._sight.foreign(now, nodes, policy))
        found = fleet_incidents(now, view, policy)
        sure = look is not None and not look.silent
        changed = {record.name: record for record in recorded(now, found, records, sure=sure)}
        for record in {**{each.name: each for each in records}, **changed}.values():
            await self._keep(record, record.name in changed)
        await self._pass_on(inheritances(now, reports))
        for name in forgotten(now, records):
            if self._may_act():
                await within(world.fleet_incidents.delete(name))

    async def _pass_on(self, histories: Mapping[str, Sequence[Occurrence]]) -> None:
        for node, inherited in list(histories.items())[:WRITES_A_LOOK]:
            if self._may_act():
                log.info("a node is told what its GPUs had elsewhere", node=node, episodes=len(inherited))
                await within(self._world.cluster.tell_history(node, inherited))

    async def _ask_slurm(self) -> None:
        try:
            look = await within(self._world.scheduler.snapshots())
        except EverstepError as error:
            log.warning("Slurm cannot be asked; no job is blamed for anything now", error=str(error))
            return
        self._sight.note(self._world.clock.now(), look)

    async def _keep(self, record: FleetRecord, changed: bool) -> None:
        """Written first, then told; told twice after a crash in between, never not at all."""
        if changed:
            await self._write(record)
            log.info("fleet incident", name=record.name, reason=record.reason, over=record.ended_at is not None)
        if not record.told and self._may_act():
            await self._tell(record)
        if record.ended_at is None:
            await self._show(record, (node for node in record.nodes if (record.name, node) not in self._shown))

    async def _write(self, record: FleetRecord) -> None:
        if self._may_act():
            await within(self._world.fleet_incidents.write(record))

    async def _tell(self, record: FleetRecord) -> None:
        job, user = self._job(record)
        title = f"Job {job} broke on {len(record.nodes)} nodes" if job else f"{len(record.nodes)} nodes share one cause"
        text = f"{record.reason}. {advice(record)}"
        try:
            notice = Notice("", record.nodes[0], title, text, user, job, fleet_incident=record.name)
            await within(self._world.notifier.notify(notice), NOTICE_SECONDS)
        except EverstepError as error:
            log.warning("a notice was not delivered", name=record.name, error=str(error))
        await self._write(replace(record, told=True))

    def _job(self, record: FleetRecord) -> tuple[str, str]:
        """Id and owner of the job that is to blame: it is the owner's matter. Empty where none is, or none is known."""
        cluster, _, job = record.about.rpartition("/")
        look = self._sight.look(self._world.clock.now())
        if record.blame is not Blame.JOB or look is None:
            return "", ""
        found = (s.job(job) for s in look.answered if s.cluster == cluster)
        return job, next((each.user for each in found if each), "")

    async def _show(self, record: FleetRecord, nodes: Iterable[str]) -> None:
        """The sentence names no number of nodes, so that it is one Event however many nodes follow."""
        for number, node in enumerate(list(nodes)):
            if number == EVENTS_A_LOOK or not self._may_act():
                return
            text = f"{record.code} on this and other nodes: see FleetIncident {record.name}. {advice(record)}"
            await within(self._world.cluster.event("Node", node, "FleetIncident", text))
            self._shown.add((record.name, node))


def advice(record: FleetRecord) -> str:
    """What follows from it, for people."""
    match record.blame:
        case Blame.JOB:
            return f"The job is to blame, not its nodes: none of them is replaced for {record.code}."
        case Blame.STORAGE:
            return f"Look at {record.about}: no node is replaced for it."
        case Blame.COMMON:
            return (
                "Look for what they share: power, a rack, a switch, a driver. The first node is healed as any other; "
                "the others wait for a person, who raises fleet.commonNodes in the RemediationPolicy to let them go on."
            )
