"""What every Provider must do, as one pytest class; runs against the fake and the machine API, and against yours.

A subclass gives a world (``make_world``) with two machines that are on and not in any operation.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from everstep.core.errors import Conflict, NotFound, Refused, Unreachable
from everstep.core.machine_state import OperationState
from everstep.ports import Provider

ENDED = (OperationState.DONE, OperationState.FAILED)


class ProviderWorld(Protocol):
    """A provider in the hands of a test."""

    @property
    def provider(self) -> Provider: ...

    @property
    def machines(self) -> tuple[str, str]:
        """Names of two machines."""
        ...

    def retired(self) -> list[str]:
        """Machines that were really taken so far, in order, one entry a time."""
        ...

    async def repair(self, operation_id: str) -> None:
        """Lets the repair of that operation end well; returns when it has."""
        ...

    async def restart(self) -> None:
        """The provider's process ends and starts again, with what it had stored."""
        ...

    async def silence(self) -> None:
        """From now on nobody can reach the provider."""
        ...


class ProviderContract(ABC):
    """Subclass it as ``TestX`` and implement :meth:`make_world`."""

    @abstractmethod
    def make_world(self) -> AbstractAsyncContextManager[ProviderWorld]: ...

    def test_an_id_that_nobody_used_is_said_to_be_unknown(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                assert await world.provider.operation("never") is None

        asyncio.run(check())

    def test_a_request_sent_again_is_the_same_operation(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                machine, _ = world.machines
                for _ in range(3):
                    await world.provider.retire("a", machine)
                operation = await world.provider.operation("a")
                assert operation is not None
                assert (operation.id, operation.machine, operation.action) == ("a", machine, "retire")
                assert operation.state not in ENDED
                await world.repair("a")
                await world.provider.retire("a", machine)
                operation = await world.provider.operation("a")
                assert operation is not None
                assert operation.state is OperationState.DONE
                assert world.retired() == [machine]

        asyncio.run(check())

    def test_a_used_id_never_reaches_another_machine(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                machine, other = world.machines
                await world.provider.retire("a", machine)
                with pytest.raises(Refused):
                    await world.provider.retire("a", other)
                await world.repair("a")
                assert world.retired() == [machine]

        asyncio.run(check())

    def test_one_operation_a_machine_at_a_time(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                machine, other = world.machines
                await world.provider.retire("a", machine)
                with pytest.raises(Conflict):
                    await world.provider.retire("b", machine)
                assert await world.provider.operation("b") is None
                await world.provider.retire("c", other)
                await world.repair("a")
                await world.provider.retire("b", machine)
                await world.repair("b")
                assert sorted(world.retired()) == sorted([machine, machine, other])

        asyncio.run(check())

    def test_a_machine_that_does_not_exist_is_said_not_to(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                with pytest.raises(NotFound):
                    await world.provider.retire("a", "none-such")
                assert await world.provider.operation("a") is None
                assert world.retired() == []

        asyncio.run(check())

    def test_what_was_accepted_survives_a_restart(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                machine, _ = world.machines
                await world.provider.retire("a", machine)
                await world.restart()
                operation = await world.provider.operation("a")
                assert operation is not None
                assert operation.machine == machine
                await world.provider.retire("a", machine)
                await world.repair("a")
                assert world.retired() == [machine]

        asyncio.run(check())

    def test_silence_is_not_read_as_nothing_there(self) -> None:
        async def check() -> None:
            async with self.make_world() as world:
                machine, _ = world.machines
                await world.provider.retire("a", machine)
                await world.silence()
                for operation_id in ("a", "never"):
                    with pytest.raises(Unreachable):
                        await world.provider.operation(operation_id)
                with pytest.raises(Unreachable):
                    await world.provider.retire("a", machine)

        asyncio.run(check())
