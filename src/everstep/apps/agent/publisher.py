"""The tasks that write: NodeHealth on change, the heartbeat Lease on time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Protocol

from everstep.adapters.kube.own_node import Said
from everstep.apps.agent.state import State
from everstep.core.diagnosis import Diagnosis
from everstep.core.errors import EverstepError

HEARTBEAT = 10.0  # seconds; a node whose Lease is 40 s old is Unknown
COUNTS_EVERY = 5.0  # seconds between writes that only raise a count
RETRY_FIRST, RETRY_LIMIT = 0.2, 10.0

log = logging.getLogger(__name__)


class Api(Protocol):
    """The part of :class:`everstep.adapters.kube.own_node.OwnNode` that the tasks use."""

    async def publish(self, diagnosis: Diagnosis, since: float) -> None: ...

    async def beat(self) -> None: ...


class Backoff:
    """Growing, jittered delays, so that the agents of a whole fleet do not come back at one moment."""

    def __init__(self, first: float = RETRY_FIRST, limit: float = RETRY_LIMIT) -> None:
        self._first, self._limit = first, limit
        self._next = first

    async def wait(self) -> None:
        delay, self._next = self._next, min(self._next * 2, self._limit)
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

    def reset(self) -> None:
        self._next = self._first


class Publisher:
    """Writes NodeHealth whenever the diagnosis says something new; what failed is tried again until it is written."""

    def __init__(self, state: State, api: Api, said: Said | None = None, counts_every: float = COUNTS_EVERY) -> None:
        self._state = state
        self._api = api
        self._verdict = said.verdict if said else None
        self._since = said.since if said else 0.0
        self._counts_every = counts_every
        self.published = asyncio.Event()  # set once the first write has gone through

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._state.changed.wait()
            if not self._state.urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._counts_every):
                        await self._state.urgent.wait()
            self._state.changed.clear()
            self._state.urgent.clear()
            diagnosis = self._state.diagnosis
            if diagnosis.verdict is not self._verdict:
                self._verdict, self._since = diagnosis.verdict, self._state.now()
            try:
                await self._api.publish(diagnosis, self._since)
            except EverstepError as why:
                log.warning("NodeHealth not written, trying again: %s", why)
                self._state.changed.set()
                self._state.urgent.set()
                await backoff.wait()
            else:
                backoff.reset()
                self.published.set()
                log.info("NodeHealth written: %s: %s", diagnosis.verdict, diagnosis.reason)


class Heartbeat:
    """Renews the Lease. It runs in the loop that reads the sources, so an agent that hangs stops beating."""

    def __init__(self, api: Api, period: float = HEARTBEAT) -> None:
        self._api = api
        self._period = period

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._api.beat()
            except EverstepError as why:
                log.warning("heartbeat not written, trying again: %s", why)
                await backoff.wait()
            else:
                backoff.reset()
                await asyncio.sleep(self._period)
