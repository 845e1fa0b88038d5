"""Sources that break: each runs by itself, is started again, counted, and never read as healthy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from everstep.apps.agent.backoff import Backoff
from everstep.apps.agent.state import State
from everstep.core.diagnosis import Diagnosis, unconfirmed, with_source
from everstep.core.errors import EverstepError, Unreachable

DEADLINE = 15.0  # seconds for one answer; sources have deadlines of their own, which say more about what hangs
CONFIRM_AFTER = 2.0  # seconds from an answer that holds something new to the question whether it is still there
SETTLE = 0.3  # seconds from the line to the question: the driver marks the GPU a moment after it printed the line
RESTART_FIRST, RESTART_LIMIT = 0.5, 30.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class Supervisor:
    """Runs one source for ever.

    A try that raises, or that ends, makes the source broken: the verdict is Unknown until ``works`` is called again.
    """

    def __init__(self, state: State, name: str, limit: float = RESTART_LIMIT) -> None:
        self._state = state
        self._name = name
        self._backoff = Backoff(RESTART_FIRST, limit)
        self.tried = asyncio.Event()  # set once the source has been asked, or found broken

    async def run(self, attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attempt()
                why = "it ended"
            except EverstepError as error:
                why = str(error)
            except Exception as error:  # a bug in one source must not take the others down
                log.exception("%s failed", self._name)
                why = f"{type(error).__name__}: {error}"
            self._broken(why)
            await self._backoff.wait()

    def works(self) -> None:
        """To be called by the attempt whenever the source has answered."""
        self._state.update(with_source(self._state.diagnosis, self._name, None))
        self._backoff.reset()
        self.tried.set()

    def _broken(self, why: str) -> None:
        if (self._name, why) not in self._state.diagnosis.broken:
            log.warning("%s cannot be read, trying again: %s", self._name, why)
        self._state.update(with_source(self._state.diagnosis, self._name, why))
        self.tried.set()


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What is asked every ``period`` seconds, and what an answer changes.

    Attributes:
        ask: one whole answer.
        take: the diagnosis with an answer to a question that was put at the given time (Unix seconds).
        wake: asks at once, ``SETTLE`` seconds after it is set.
    """

    name: str
    period: float
    ask: Callable[[], Awaitable[T]]
    take: Callable[[Diagnosis, T, float], Diagnosis]
    wake: asyncio.Event | None = None


class StateTask(Generic[T]):
    """Puts one question for ever, to a source that can be asked how it is."""

    def __init__(self, state: State, question: Question[T], deadline: float = DEADLINE) -> None:
        self._state = state
        self._question = question
        self._deadline = deadline
        self._supervisor = Supervisor(state, question.name)
        self._asked: asyncio.Task[T] | None = None
        self.tried = self._supervisor.tried

    async def run(self) -> None:
        try:
            await self._supervisor.run(self._attempt)
        finally:
            if self._asked is not None:
                self._asked.cancel()

    async def _attempt(self) -> None:
        question = self._question
        asked_twice = self.tried.is_set()
        while True:
            asked_at = self._state.now()
            answer = await self._answer()
            self._state.update(question.take(self._state.diagnosis, answer, asked_at))
            doubtful = unconfirmed(self._state.diagnosis, question.name)
            if asked_twice or not doubtful:  # nothing is said of the node before the first doubt is settled
                self._supervisor.works()
            asked_twice = True
            await self._pause(min(question.period, CONFIRM_AFTER) if doubtful else question.period)

    async def _answer(self) -> T:
        """One answer, within the deadline. A question that cannot be taken back is not put a second time meanwhile."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self._question.ask())
        asked = self._asked
        await asyncio.wait((asked,), timeout=self._deadline)
        if not asked.done() or asked.cancelled():
            asked.cancel()
            asked.add_done_callback(_heed)
            raise Unreachable(f"no answer within {self._deadline:.3g} s")
        return asked.result()

    async def _pause(self, seconds: float) -> None:
        wake = self._question.wake
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if wake is None:
                    await asyncio.Event().wait()
                else:
                    await wake.wait()
                    await asyncio.sleep(SETTLE)
        if wake is not None:
            wake.clear()


def _heed(late: asyncio.Task[T]) -> None:
    """Takes note of how an answer that came too late ended; nobody else would, and asyncio would complain."""
    if not late.cancelled():
        late.exception()
