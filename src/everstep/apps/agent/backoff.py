"""Growing, jittered delays, so that the agents of a whole fleet do not come back at one moment."""

from __future__ import annotations

import asyncio
import random

RETRY_FIRST, RETRY_LIMIT = 0.2, 10.0  # seconds


class Backoff:
    """Each wait is about twice as long as the one before, up to ``limit`` seconds."""

    def __init__(self, first: float = RETRY_FIRST, limit: float = RETRY_LIMIT) -> None:
        self._first, self._limit = first, limit
        self._next = first

    async def wait(self) -> None:
        delay, self._next = self._next, min(self._next * 2, self._limit)
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

    def reset(self) -> None:
        self._next = self._first
