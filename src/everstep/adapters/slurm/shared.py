"""One snapshot for everybody who asks at about the same moment, so that many callers cost Slurm no more than one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_AGE_SECONDS = 0.5


@dataclass(slots=True)
class Shared(Generic[T]):
    """Shares the result of ``take`` for ``max_age`` seconds from its start, and its run with all who wait for it.

    After :meth:`forget` nobody is given a result that was begun before: who has just drained a node sees it drained.
    An error goes to all who waited for that run, and is not kept.
    """

    take: Callable[[], Awaitable[T]]
    max_age: float = MAX_AGE_SECONDS
    now: Callable[[], float] = time.monotonic
    _run: asyncio.Task[T] | None = field(default=None, init=False)
    _began: float = field(default=float("-inf"), init=False)

    async def get(self) -> T:
        run = self._run
        usable = run is not None and (not run.done() or self.now() - self._began <= self.max_age)
        if run is None or not usable:
            self._began = self.now()
            run = self._run = asyncio.ensure_future(self._take())
            run.add_done_callback(self._drop_failure)
        # Shielded: a caller that hangs up must not take the run away from the others.
        return await asyncio.shield(run)

    def forget(self) -> None:
        self._run = None

    async def _take(self) -> T:
        return await self.take()

    def _drop_failure(self, run: asyncio.Task[T]) -> None:
        failed = run.cancelled() or run.exception() is not None
        if failed and self._run is run:
            self._run = None
