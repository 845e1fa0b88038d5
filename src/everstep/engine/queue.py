"""A work queue of names: each name at most once, never two workers on one name, retries that back off.

Time comes from the Clock port, so that the simulator and the tests can run it on a virtual clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from everstep.ports import Clock

BACKOFF_FIRST = 0.05
BACKOFF_MOST = 10.0


class WorkQueue:
    """Names waiting for a pass.

    A name that is added while a worker has it is handed out again after ``done``. Of several delayed additions of one
    name the earliest counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[str] = deque()
        self._due: dict[str, float] = {}
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()

    def add(self, name: str) -> None:
        """Asks for a pass now."""
        self._due.pop(name, None)
        if name in self._working:
            self._again.add(name)
        elif name not in self._ready:
            self._ready.append(name)
        self._changed.set()

    def add_after(self, name: str, seconds: float) -> None:
        """Asks for a pass in a while."""
        if seconds <= 0:
            self.add(name)
            return
        due = self._clock.now() + seconds
        self._due[name] = min(due, self._due.get(name, due))
        self._changed.set()

    def failed(self, name: str) -> float:
        """Asks for a retry after a delay that doubles with each failure in a row; returns the delay in seconds."""
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        delay = min(BACKOFF_FIRST * 2.0 ** min(count, 20), BACKOFF_MOST)
        self.add_after(name, delay)
        return delay

    def succeeded(self, name: str) -> None:
        """Forgets the failures of a name."""
        self._failures.pop(name, None)

    def done(self, name: str) -> None:
        """Gives a name back after its pass."""
        self._working.discard(name)
        if name in self._again:
            self._again.discard(name)
            self.add(name)

    async def get(self) -> str:
        """The next name; the caller owes a ``done``."""
        while True:
            self._promote()
            if self._ready:
                name = self._ready.popleft()
                self._working.add(name)
                return name
            self._changed.clear()
            await self._wait_for_change()

    def _promote(self) -> None:
        now = self._clock.now()
        for name in sorted((n for n, due in self._due.items() if due <= now), key=self._due.__getitem__):
            self.add(name)

    async def _wait_for_change(self) -> None:
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._changed.wait())]
        if self._due:
            pause = min(self._due.values()) - self._clock.now()
            waits.append(asyncio.create_task(_sleep(self._clock, pause)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _sleep(clock: Clock, seconds: float) -> None:
    await clock.sleep(max(0.0, seconds))
