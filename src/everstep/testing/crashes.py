"""Kill a controller before or after any one of its I/O calls, or freeze it there, and start another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, cast

from everstep.core.errors import EverstepError
from everstep.engine.world import World


class Crash(Exception):
    """The process is dead: nothing that it still tries has any effect."""


class Side(StrEnum):
    BEFORE = "before"
    AFTER = "after"
    LATE = "late"  # it is frozen with the request on the wire: the effect comes when its successor is at work


@dataclass(slots=True)
class CrashPlan:
    """When to die, counted over the I/O calls of all lives of the controller.

    Attributes:
        at: number of the fatal call, from 1; 0 never dies.
        delay: seconds by which a ``LATE`` effect is late.
        calls: name of every call so far.
    """

    at: int = 0
    side: Side = Side.BEFORE
    delay: float = 10.0
    calls: list[str] = field(default_factory=list)


class Life:
    """One life of a process: its ports, which stop working when it dies.

    ``watch`` runs after each call, so that invariants are checked between any two effects; ``tick`` lets the call take
    its time, so that what comes first has the earlier time.
    """

    def __init__(
        self,
        world: World,
        plan: CrashPlan,
        watch: Callable[[], None],
        planner: Callable[[float, Callable[[], None]], None],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick = tick
        self._plan = plan
        self._planner = planner
        self._watch = watch
        self.dead = False
        ports = {f.name: getattr(world, f.name) for f in fields(World)}
        self.world = World(
            clock=ports.pop("clock"), **{name: cast(Any, _Mortal(port, name, self)) for name, port in ports.items()}
        )

    async def call(self, name: str, effect: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead:
            raise Crash(name)
        self._plan.calls.append(name)
        fatal = len(self._plan.calls) == self._plan.at
        if fatal and self._plan.side is Side.BEFORE:
            self.dead = True
            raise Crash(name)
        if fatal and self._plan.side is Side.LATE:
            self.dead = True
            self._planner(self._plan.delay, lambda: _land(effect))
            raise Crash(name)
        answer = await effect()
        self._tick()
        self._watch()
        if fatal:
            self.dead = True
            raise Crash(name)
        return answer


def _land(effect: Callable[[], Awaitable[Any]]) -> None:
    """Runs an effect to its end at once: the fakes never really wait. Nobody is left to hear its answer."""

    async def run() -> None:
        await effect()

    coroutine = run()
    try:
        coroutine.send(None)
    except (StopIteration, EverstepError):
        return
    finally:
        coroutine.close()


class _Mortal:
    """A port of one life."""

    def __init__(self, port: Any, name: str, life: Life) -> None:
        self._port, self._name, self._life = port, name, life

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._port, method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._life.call(f"{self._name}.{method}", lambda: target(*args, **kwargs))

        return call
