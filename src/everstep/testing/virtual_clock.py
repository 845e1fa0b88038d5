"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class VirtualClock:
    """Implements :class:`everstep.ports.Clock`; also runs what a model planned for a moment, in order.

    Attributes:
        time: Unix seconds.
    """

    def __init__(self, time: float = 1_000_000.0) -> None:
        self.time = time
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Returns once somebody moved the clock far enough."""
        woken = asyncio.Event()
        self.plan(seconds, woken.set)
        await woken.wait()

    def plan(self, seconds: float, event: Callable[[], None]) -> None:
        """Runs ``event`` when the clock has moved that much further."""
        heapq.heappush(self._planned, (self.time + max(0.0, seconds), next(self._order), event))

    def next_event(self) -> float | None:
        """When the next planned thing happens."""
        return self._planned[0][0] if self._planned else None

    def move_to(self, time: float) -> None:
        """Everything planned up to then happens, each at its own moment."""
        while self._planned and self._planned[0][0] <= time:
            at, _, event = heapq.heappop(self._planned)
            self.time = max(self.time, at)
            event()
        self.time = max(self.time, time)
