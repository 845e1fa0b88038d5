"""One contract for every Provider: the fake, and the machine API's client with the lab's server behind it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from everstep.adapters.provider.machine_api import MachineApi
from everstep.core.machine_state import OperationState
from everstep.lab.hardware.records import OperationPhase
from everstep.lab.hardware.service import Hardware, hardware
from everstep.ports import Provider
from everstep.testing.provider import FakeProvider
from everstep.testing.provider_contract import ProviderContract, ProviderWorld
from tests.unit.lab_hardware.machine_room import SleepingPower, hardware_settings

REPAIR_SECONDS = 3600.0  # repairs end when a test says so


class FakeWorld:
    machines = ("gpu-1", "gpu-2")

    def __init__(self) -> None:
        self._taken: list[str] = []
        self._fake = FakeProvider(self.machines, self._taken.append)

    @property
    def provider(self) -> Provider:
        return self._fake

    def retired(self) -> list[str]:
        return self._taken

    async def repair(self, operation_id: str) -> None:
        self._fake.advance(operation_id, OperationState.DONE)

    async def restart(self) -> None:
        again = FakeProvider(self.machines, self._taken.append)
        again.operations = self._fake.operations
        self._fake = again

    async def silence(self) -> None:
        self._fake.unreachable = True


class TestFakeProvider(ProviderContract):
    def make_world(self) -> AbstractAsyncContextManager[ProviderWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[ProviderWorld]:
            yield FakeWorld()

        return world()


class LabWorld:
    """The lab's hardware on a loopback port."""

    machines = ("gpu-1", "gpu-2")

    def __init__(self, root: Path) -> None:
        self._root = root
        self._power = SleepingPower(root)
        self._running = AsyncExitStack()
        self._state: Hardware | None = None
        self._api: MachineApi | None = None

    @property
    def provider(self) -> Provider:
        assert self._api is not None
        return self._api

    def retired(self) -> list[str]:
        return [node for what, node, _ in self._power.calls if what == "off"]

    async def start(self) -> None:
        settings = hardware_settings(self._root, *self.machines, repair_seconds=REPAIR_SECONDS)
        self._state = await self._running.enter_async_context(hardware(settings, self._power))
        url = f"http://127.0.0.1:{self._state.api_port}"
        self._api = await self._running.enter_async_context(MachineApi(url, self._root / "token", seconds=2))

    async def stop(self) -> None:
        await self._running.aclose()
        self._power.close()

    async def repair(self, operation_id: str) -> None:
        assert self._state is not None
        operation = self._state.operations[operation_id]
        async with asyncio.timeout(10):
            while operation.phase is not OperationPhase.REPAIR:
                await asyncio.sleep(0.01)
            operation.repair_ends = 0.0
            await self.restart()  # a provider that starts again finds that the repair is over
            while (found := await self.provider.operation(operation_id)) and found.state is not OperationState.DONE:
                await asyncio.sleep(0.01)
        assert found is not None

    async def restart(self) -> None:
        assert self._state is not None
        self._state.keep()
        await self._running.aclose()
        self._running = AsyncExitStack()
        await self.start()

    async def silence(self) -> None:
        await self._running.aclose()
        self._running = AsyncExitStack()
        assert self._state is not None
        url = f"http://127.0.0.1:{self._state.api_port}"
        self._api = await self._running.enter_async_context(MachineApi(url, self._root / "token", seconds=2))


class TestMachineApi(ProviderContract):
    def make_world(self) -> AbstractAsyncContextManager[ProviderWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[ProviderWorld]:
            with tempfile.TemporaryDirectory() as folder:
                lab = LabWorld(Path(folder))
                await lab.start()
                try:
                    yield lab
                finally:
                    await lab.stop()

        return world()
