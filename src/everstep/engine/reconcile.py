"""The level-triggered loop body: observe, decide, persist, act. One pass over one name; safe to stop anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from everstep.core import actions as do
from everstep.core.cluster_state import NodeView
from everstep.core.errors import Conflict, EverstepError
from everstep.core.fleet_incidents import FleetView, fleet_incidents
from everstep.core.incidents import openings, suspicious
from everstep.core.remediation import decide
from everstep.core.remediation_status import Remediation, Status
from everstep.core.silence import mass_silence
from everstep.engine.act import Deliveries, perform
from everstep.engine.observe import observe, within
from everstep.engine.sight import Sight
from everstep.engine.story import event_reason, new_steps
from everstep.engine.world import World

log = structlog.get_logger(__name__)
INCIDENTS_EVERY = 1.0


class Fenced(EverstepError):
    """This process may not act any more: it could not renew its leadership."""


class Reconciler:
    """Passes over incidents.

    Args:
        may_act: asked before every write; False while this process is not the leader.
        wake: asks for a pass over a name now.
        sight: what was last seen of Slurm; kept fresh by somebody else.
    """

    def __init__(
        self,
        world: World,
        may_act: Callable[[], bool],
        wake: Callable[[str], None],
        sight: Sight | None = None,
    ) -> None:
        self._world = world
        self._sight = sight or Sight()
        self._may_act = may_act
        self._wake = wake
        self._refusals: dict[str, str] = {}
        self.deliveries = Deliveries(world, wake)

    async def open_incidents(self) -> float:
        """Opens what should be open; returns seconds until the next look."""
        world = self._world
        policy = await within(world.remediations.policy())
        nodes, reports = await asyncio.gather(within(world.cluster.nodes()), within(world.cluster.reports()))
        now = world.clock.now()
        claimed = [node for node in nodes if node.claimed_by]
        foreign = self._sight.foreign(now, nodes, policy)
        if not claimed and not suspicious(now, nodes, reports, policy, foreign):
            return INCIDENTS_EVERY
        if silent := mass_silence(now, nodes, reports, policy):
            log.warning("many nodes are silent at once; none is called lost", nodes=silent)
        known = await within(world.remediations.list())
        await self._free_forgotten_claims(claimed, known)
        shared = fleet_incidents(now, FleetView(nodes, reports, known, self._sight.look(now), foreign), policy)
        for opening in openings(now, nodes, reports, known, policy, foreign, shared):
            self._fence()
            try:
                await within(world.remediations.create(opening.name, opening.spec))
                log.info(
                    "incident opened", name=opening.name, node=opening.spec.node, why=opening.spec.faults[0].reason
                )
            except Conflict:
                log.info("incident exists already", name=opening.name)
            self._wake(opening.name)
        return INCIDENTS_EVERY

    async def _free_forgotten_claims(self, claimed: Sequence[NodeView], known: Sequence[Remediation]) -> None:
        """A claim that landed late, or whose incident is over or deleted, would keep its spare from everybody."""
        unfinished = {r.name for r in known if not r.status.resolved}
        for node in claimed:
            if node.claimed_by and node.claimed_by not in unfinished:
                self._fence()
                log.info("a forgotten claim is taken off", node=node.name, claimed_by=node.claimed_by)
                await within(self._world.cluster.release_spare(node.name, node.claimed_by))

    async def unfinished(self) -> list[str]:
        """Names of incidents that need passes; asked once at the start."""
        return [r.name for r in await within(self._world.remediations.list()) if _unfinished(r)]

    async def heal(self, name: str) -> float | None:
        """One pass; returns seconds until the next one, None when nothing is left to do.

        Raises:
            Conflict: somebody else wrote the record; nothing was done.
            RetryLater: Kubernetes could not be asked; nothing was done.
            CallAHuman: the record or the policy cannot be understood; nothing was done, nothing was reset.
            Fenced: this process is not the leader.
        """
        world = self._world
        fleet, policy = await asyncio.gather(within(world.remediations.list()), within(world.remediations.policy()))
        me = next((r for r in fleet if r.name == name), None)
        if me is None or not _unfinished(me):
            self._forget(name)
            return None
        seen = await observe(world, me, fleet, policy, self._sight)
        seen = replace(seen, delivered=self.deliveries.of(name), refusal=self._refusals.get(name, ""))
        decision = decide(world.clock.now(), me, seen, policy)
        if decision.status != me.status:
            self._fence()
            await within(world.remediations.update_status(me, decision.status))
        await self._act(me, decision.actions)
        await self._tell_story(me, decision.status)  # last: healing does not wait for its own narration
        return decision.requeue_after

    async def _act(self, me: Remediation, actions: tuple[do.Action, ...]) -> None:
        """Side by side: no action of a decision depends on another one's success."""
        notices = [a for a in actions if isinstance(a, do.TellJob | do.TellPeople)]
        effects = [a for a in actions if not isinstance(a, do.TellJob | do.TellPeople)]
        if actions:
            self._fence()
        for notice in notices:
            self.deliveries.start(me, notice)
        errors = [e for e in await asyncio.gather(*(self._try(me, action) for action in effects)) if e]
        self._refusals[me.name] = "; ".join(errors)

    async def _try(self, me: Remediation, action: do.Action) -> str:
        self._fence()
        try:
            await within(perform(self._world, me, action))
        except EverstepError as error:
            if isinstance(error, Fenced):
                raise
            text = f"{type(action).__name__}: {error}"
            log.warning("action failed; it is decided anew on the next pass", name=me.name, action=text)
            return text
        return ""

    async def _tell_story(self, me: Remediation, after: Status) -> None:
        """Log lines and Kubernetes Events; losing one in a crash loses no fact, for the record has it."""
        for step in new_steps(me.status, after):
            log.info("step", name=me.name, node=me.spec.node, step=step.name.value, at=step.at, reason=step.reason)
            for kind, name in (("Remediation", me.name), ("Node", me.spec.node)):
                try:
                    await within(self._world.cluster.event(kind, name, event_reason(step), step.reason))
                except EverstepError as error:
                    log.warning("event not recorded", name=name, error=str(error))
        if after.reason != me.status.reason:
            log.info("now", name=me.name, node=me.spec.node, stage=after.stage.value, reason=after.reason)

    def _forget(self, name: str) -> None:
        self._refusals.pop(name, None)
        self.deliveries.forget(name)

    def _fence(self) -> None:
        if not self._may_act():
            raise Fenced("this controller is no longer the leader and stops acting")


def _unfinished(me: Remediation) -> bool:
    """Open, or its last notice is not on record, or a person deleted it and it must be let go."""
    return not me.status.resolved or me.deleting or all(key != "resolved" for key, _ in me.status.told)
