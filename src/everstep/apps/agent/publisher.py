"""The tasks that write: NodeHealth on change, the heartbeat Lease on time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from everstep.adapters.kube.own_node import Said
from everstep.apps.agent.backoff import Backoff
from everstep.apps.agent.state import State
from everstep.core.diagnosis import Diagnosis
from everstep.core.errors import EverstepError
from everstep.core.occurrences import Occurrence

STALE_AFTER = 30.0  # seconds for which what others act on may stay unwritten; then the heartbeat stops
HEARTBEAT = 10.0  # seconds; a node whose Lease is 40 s old is Unknown
COUNTS_EVERY = 5.0  # seconds between writes that only raise a count
REPEAT_EVERY = 120.0  # seconds: what others deleted or changed comes back; what is equal costs the API server no write
BURST, RATE = 20.0, 10.0  # writes at once, and further ones a second: a storm of ever new faults must not flood the API

log = logging.getLogger(__name__)


class Api(Protocol):
    """The part of :class:`everstep.adapters.kube.own_node.OwnNode` that the tasks use."""

    async def publish(self, diagnosis: Diagnosis, since: float) -> Sequence[Occurrence]: ...

    async def beat(self) -> None: ...


class Allowance:
    """So many writes at once, then so many a second."""

    def __init__(self, burst: float = BURST, rate: float = RATE) -> None:
        self._burst, self._rate = burst, rate
        self._left = burst
        self._counted_at = time.monotonic()

    async def spend(self) -> None:
        """Returns at once, or as soon as the next write is allowed."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._counted_at) * self._rate)
        self._counted_at = now
        self._left -= 1
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)


class Publisher:
    """Writes NodeHealth whenever the diagnosis says something new; what failed is tried again until it is written.

    Now and then it is written without news: somebody may have deleted or changed it.
    """

    def __init__(self, state: State, api: Api, said: Said | None = None, counts_every: float = COUNTS_EVERY) -> None:
        self._state = state
        self._api = api
        self._verdict = said.verdict if said else None
        self._since = said.since if said else 0.0
        self._counts_every = counts_every
        self._written: Diagnosis | None = None
        self._unwritten_since: float | None = None  # by the monotonic clock
        self.published = asyncio.Event()  # set once the first write has gone through

    @property
    def current(self) -> bool:
        """Whether NodeHealth says what this agent knows, or what it knew a moment ago.

        While it does not, the heartbeat must not speak for it: a node whose NodeHealth is refused, for whatever reason,
        would look as it did before its fault.
        """
        since = self._unwritten_since
        return self.published.is_set() and (since is None or time.monotonic() - since < STALE_AFTER)

    async def run(self) -> None:
        backoff, allowance = Backoff(), Allowance()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPEAT_EVERY * random.uniform(0.8, 1.2)):  # noqa: S311  # no secret
                    await self._state.changed.wait()
            if self._state.changed.is_set() and not self._state.urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._counts_every):
                        await self._state.urgent.wait()
            await allowance.spend()
            self._state.changed.clear()
            self._state.urgent.clear()
            diagnosis = self._state.diagnosis
            if diagnosis.verdict is not self._verdict:
                self._verdict, self._since = diagnosis.verdict, self._state.now()
            if self._unwritten_since is None:
                self._unwritten_since = time.monotonic()
            try:
                inherited = await self._api.publish(diagnosis, self._since)
            except EverstepError as why:
                log.warning("NodeHealth not written, trying again: %s", why)
                self._state.changed.set()
                self._state.urgent.set()
                await backoff.wait()
            else:
                backoff.reset()
                self._unwritten_since = None
                self.published.set()
                if diagnosis is not self._written:
                    log.info("NodeHealth written: %s: %s", diagnosis.verdict, diagnosis.reason)
                self._written = diagnosis
                self._state.inherit(inherited)


class Heartbeat:
    """Renews the Lease. It runs in the loop that reads the sources, so an agent that hangs stops beating.

    Args:
        may_beat: whether NodeHealth can be believed; while it cannot, the Lease is left to run out.
    """

    def __init__(self, api: Api, may_beat: Callable[[], bool], period: float = HEARTBEAT) -> None:
        self._api = api
        self._may_beat = may_beat
        self._period = period

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            if not self._may_beat():
                await asyncio.sleep(min(1.0, self._period))
                continue
            try:
                await self._api.beat()
            except EverstepError as why:
                log.warning("heartbeat not written, trying again: %s", why)
                await backoff.wait()
            else:
                backoff.reset()
                await asyncio.sleep(self._period)
