"""One controller acts. It fences itself when it cannot renew, by its own clock, before anybody else may take over."""

from __future__ import annotations

import structlog

from everstep.core.errors import EverstepError
from everstep.ports import Clock, LeaderLease

log = structlog.get_logger(__name__)

LEASE_SECONDS = 6.0
RENEW_EVERY = 2.0
# The holder stops this long before its time is over, so that a request already sent has landed by then.
SAFETY = 1.0


class Leadership:
    """Who leads, as this process may believe it.

    ``leading`` is true only within the time that the last renewal gave, counted from before the renewal was sent: a
    frozen process that wakes up finds its time over before it can act.
    """

    def __init__(self, lease: LeaderLease, clock: Clock, identity: str) -> None:
        self._lease = lease
        self._clock = clock
        self._identity = identity
        self._until = 0.0

    @property
    def leading(self) -> bool:
        return self._clock.now() < self._until

    async def renew(self) -> None:
        """One try to take or keep the Lease; a failure changes nothing, so that time runs out by itself."""
        asked = self._clock.now()
        was = self.leading
        try:
            held = await self._lease.hold(self._identity, LEASE_SECONDS)
        except EverstepError as error:
            log.warning("leadership could not be renewed", error=str(error))
            return
        self._until = asked + LEASE_SECONDS - SAFETY if held else 0.0
        if held != was:
            log.info("leadership", leading=held, identity=self._identity)

    async def run(self) -> None:
        """Renews for ever."""
        while True:
            await self.renew()
            await self._clock.sleep(RENEW_EVERY if self.leading else 1.0)

    async def release(self) -> None:
        """Gives the Lease up at an orderly end, so that the next leader need not wait."""
        self._until = 0.0
        try:
            await self._lease.release(self._identity)
        except EverstepError as error:
            log.warning("the Lease was not released and runs out by itself", error=str(error))
