"""Sources that raise, hang and come back: counted, Unknown meanwhile, and harmless to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.apps.agent import supervision
from everstep.apps.agent.questions import about
from everstep.apps.agent.state import State
from everstep.apps.agent.supervision import StateTask
from everstep.core.diagnosis import Source, resumed
from everstep.core.errors import Unreachable
from everstep.core.health import Evidence, Verdict

CATALOG = shipped_catalog()
REMAP = Evidence("host", "gpu_remap_failed", pci="0000:02:00.0", line="remapping failed")


class Scripted:
    """Answers as it is told: evidence, an error, or (None) never."""

    name, period = "NVML", 0.01

    def __init__(self, answer: Sequence[Evidence] | Exception | None = ()) -> None:
        self.answer = answer
        self.asked = 0
        self.pending = 0
        self.stubborn = False  # does not let itself be cancelled

    async def read(self) -> Sequence[Evidence]:
        self.asked += 1
        self.pending += 1
        try:
            while self.answer is None:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    if not self.stubborn:
                        raise
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer
        finally:
            self.pending -= 1


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTART_FIRST", 0.01)
    monkeypatch.setattr(supervision, "CONFIRM_AFTER", 0.01)


async def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


def play(source: Scripted, scenario: Callable[[State], Awaitable[None]]) -> State:
    state = State(resumed(None, "boot-1", (source.name,)), CATALOG, lambda: 100.0)

    async def whole() -> None:
        task = asyncio.create_task(StateTask(state, about(state, source), deadline=0.05).run())
        try:
            await scenario(state)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(whole(), 20))
    return state


@pytest.mark.parametrize("failure", [Unreachable("no driver"), ValueError("a bug"), None])
def test_a_source_that_fails_is_unknown_counted_and_recovers(failure: Exception | None) -> None:
    source = Scripted()

    async def scenario(state: State) -> None:
        await until(lambda: state.diagnosis.verdict is Verdict.HEALTHY)
        source.answer = failure
        await until(lambda: state.diagnosis.verdict is Verdict.UNKNOWN)
        await until(lambda: state.diagnosis.sources[0].restarts >= 2)
        source.answer = ()
        await until(lambda: state.diagnosis.verdict is Verdict.HEALTHY)

    (after,) = play(source, scenario).diagnosis.sources
    assert (after.name, after.broken) == ("NVML", "")
    assert after.restarts >= 2


def test_a_source_that_never_answered_was_tried_all_the_same() -> None:
    source = Scripted(None)

    async def scenario(state: State) -> None:
        await until(lambda: state.diagnosis.sources == (Source("NVML", "no answer within 0.05 s", 1),))

    play(source, scenario)


def test_a_question_that_cannot_be_taken_back_is_not_put_twice() -> None:
    source = Scripted(None)
    source.stubborn = True

    async def scenario(state: State) -> None:
        await until(lambda: state.diagnosis.sources[0].restarts >= 3)
        assert (source.asked, source.pending) == (1, 1)
        source.answer = ()
        await until(lambda: state.diagnosis.verdict is Verdict.HEALTHY)

    play(source, scenario)


def test_what_is_new_is_asked_again_at_once_and_before_anything_is_said() -> None:
    source = Scripted((REMAP,))
    source.period = 60.0  # type: ignore[misc]
    state = State(resumed(None, "boot-1", (source.name,)), CATALOG, lambda: 100.0)

    async def whole() -> None:
        task = StateTask(state, about(state, source))
        running = asyncio.create_task(task.run())
        await task.tried.wait()
        assert (source.asked, state.diagnosis.verdict) == (2, Verdict.FAULTY)
        running.cancel()

    asyncio.run(asyncio.wait_for(whole(), 5))
