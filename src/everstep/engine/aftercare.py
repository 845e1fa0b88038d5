"""Asks the provider how the repairs of healed nodes end, beside the passes: a provider that hangs delays no heal."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from everstep.core.aftercare import answered, ask_again, goes_on, sentence, unanswered
from everstep.core.errors import EverstepError
from everstep.core.remediation_status import Remediation
from everstep.engine.observe import within
from everstep.engine.reconcile import Fenced
from everstep.engine.world import World

log = structlog.get_logger(__name__)


class Aftercare:
    """One question at a time. What is on record decides, so a controller that dies in between asks once more.

    Args:
        may_act: asked before every write; False while this process is not the leader.
    """

    def __init__(self, world: World, may_act: Callable[[], bool]) -> None:
        self._world = world
        self._may_act = may_act

    async def awaited(self) -> list[str]:
        """Names of the incidents whose repair goes on; asked once at the start."""
        return [r.name for r in await within(self._world.remediations.list()) if goes_on(r)]

    async def follow(self, name: str) -> float | None:
        """Asks once about one incident; returns seconds until the next question, None when none is left.

        Raises:
            Conflict: somebody else wrote the record; nothing was written.
            RetryLater: the record could not be read or written.
            Fenced: this process is not the leader.
        """
        world = self._world
        me = next((r for r in await within(world.remediations.list()) if r.name == name), None)
        if me is None or not goes_on(me):
            return None
        mark = me.status.operation
        assert mark is not None
        try:
            operation = await within(world.provider.operation(mark.id))
            status = answered(world.clock.now(), me.status, operation)
        except EverstepError as why:
            log.info("the provider cannot say how a repair goes", name=name, machine=mark.machine, error=str(why))
            status = unanswered(world.clock.now(), me.status)
        if status != me.status:
            if not self._may_act():
                raise Fenced("this controller is no longer the leader and stops acting")
            await within(world.remediations.update_status(me, status))
        after = status.operation
        assert after is not None
        if after.ended_at is None:
            return ask_again(world.clock.now(), after)
        await self._tell(me, f"Repair{after.state.capitalize()}", sentence(after))
        return None

    async def _tell(self, me: Remediation, reason: str, text: str) -> None:
        """A log line and an Event; losing them in a crash loses no fact, for the record has it."""
        log.info("repair ended", name=me.name, node=me.spec.node, how=text)
        try:
            await within(self._world.cluster.event("Remediation", me.name, reason, text))
        except EverstepError as error:
            log.warning("event not recorded", name=me.name, error=str(error))
