"""The Provider port against the lab's real machine API over HTTP, and against servers that are not it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from everstep.adapters.provider.machine_api import MachineApi
from everstep.core.errors import Conflict, NotFound, Refused, Unreachable
from everstep.core.machine_state import OperationState
from everstep.lab.hardware.service import Hardware, hardware
from everstep.ports import Provider
from tests.unit.lab_hardware.machine_room import SleepingPower, hardware_settings


@pytest.fixture
def room(tmp_path: Path) -> SleepingPower:
    return SleepingPower(tmp_path)


@asynccontextmanager
async def lab(power: SleepingPower, repair_seconds: float = 0.1) -> AsyncIterator[tuple[MachineApi, Hardware]]:
    settings = hardware_settings(power.root, "gpu-1", "gpu-2", repair_seconds=repair_seconds)
    try:
        async with hardware(settings, power) as state:
            url = f"http://127.0.0.1:{state.api_port}"
            async with MachineApi(url, power.root / "token") as api:
                yield api, state
    finally:
        power.close()


async def ended(api: Provider, operation_id: str) -> OperationState:
    async with asyncio.timeout(10):
        while True:
            operation = await api.operation(operation_id)
            if operation and operation.state in (OperationState.DONE, OperationState.FAILED):
                return operation.state
            await asyncio.sleep(0.02)


def test_a_machine_is_retired_once_however_often_it_is_asked_for(room: SleepingPower) -> None:
    async def check() -> None:
        async with lab(room) as (api, _):
            assert await api.operation("rem-1") is None
            await api.retire("rem-1", "gpu-1")
            await api.retire("rem-1", "gpu-1")
            operation = await api.operation("rem-1")
            assert operation is not None
            assert (operation.id, operation.machine, operation.action) == ("rem-1", "gpu-1", "retire")
            assert await ended(api, "rem-1") is OperationState.DONE
            await api.retire("rem-1", "gpu-1")

    asyncio.run(check())
    assert room.calls == [("off", "gpu-1", None), ("on", "gpu-1", "main")]


def test_operations_survive_a_restart_of_the_provider(room: SleepingPower) -> None:
    async def check() -> None:
        async with lab(room, repair_seconds=60) as (api, _):
            await api.retire("rem-1", "gpu-1")
        async with lab(room) as (api, state):
            operation = await api.operation("rem-1")
            assert operation is not None
            assert operation.state is OperationState.RUNNING
            state.operations["rem-1"].repair_ends = 0.0

    asyncio.run(check())


def test_refusals_are_told_apart(room: SleepingPower) -> None:
    async def check() -> None:
        async with lab(room, repair_seconds=60) as (api, _):
            await api.retire("rem-1", "gpu-1")
            with pytest.raises(Refused, match="operation rem-1 exists"):
                await api.retire("rem-1", "gpu-2")
            with pytest.raises(NotFound, match="no machine gpu-9"):
                await api.retire("rem-2", "gpu-9")
            with pytest.raises(Conflict, match="has not ended"):
                await api.retire("rem-3", "gpu-1")
            (room.root / "token").write_text("wrong")
            with pytest.raises(Refused, match="bearer token"):
                await api.operation("rem-1")

    asyncio.run(check())


def test_an_id_cannot_lead_to_another_path(room: SleepingPower) -> None:
    async def check() -> None:
        async with lab(room) as (api, state):
            with pytest.raises(Unreachable):
                await api.retire("../machines", "gpu-1")
            assert state.operations == {}

    asyncio.run(check())


Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replying(status: str, body: str, kind: str = "application/json") -> Reply:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()

    return reply


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


OTHER_OPERATION = '{"id": "rem-1", "machine": "gpu-2", "action": "retire", "state": "accepted"}'


@pytest.mark.parametrize(
    "reply",
    [
        replying("404 Not Found", "<html>nginx</html>", "text/html"),
        replying("404 Not Found", '{"detail": "Not Found"}'),
        replying("404 Not Found", ""),
        replying("500 Internal Server Error", '{"code": "unknownOperation", "error": "x"}'),
        replying("503 Service Unavailable", '{"code": "notFound", "error": "x"}'),
        replying("302 Found", "", "text/plain"),
        replying("200 OK", "[]"),
        replying("200 OK", '{"id": "rem-1", "machine": "gpu-1", "action": "retire", "state": "perhaps"}'),
        replying("200 OK", "", "text/plain"),
        hang,
        cut,
    ],
)
def test_what_is_no_answer_is_never_read_as_nothing_there(tmp_path: Path, reply: Reply) -> None:
    (tmp_path / "token").write_text("t")

    async def check() -> None:
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, MachineApi(url, tmp_path / "token", seconds=0.5) as api:
            with pytest.raises(Unreachable):
                await api.operation("rem-1")
            with pytest.raises(Unreachable):
                await api.retire("rem-1", "gpu-1")

    asyncio.run(check())


def test_an_answer_for_another_machine_is_not_taken_as_ours(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")

    async def check() -> None:
        server = await asyncio.start_server(replying("200 OK", OTHER_OPERATION), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, MachineApi(url, tmp_path / "token") as api:
            with pytest.raises(Unreachable, match="retire of gpu-2"):
                await api.retire("rem-1", "gpu-1")

    asyncio.run(check())


def test_nobody_listening_and_no_token_are_could_not_ask(tmp_path: Path) -> None:
    async def check() -> None:
        async with MachineApi("http://127.0.0.1:9", tmp_path / "token") as api:
            with pytest.raises(Unreachable, match="token cannot be read"):
                await api.operation("rem-1")
            (tmp_path / "token").write_text("t")
            with pytest.raises(Unreachable, match="does not answer"):
                await api.operation("rem-1")

    asyncio.run(check())


def test_machines_are_listed_with_state_and_boot(room: SleepingPower) -> None:
    async def check() -> object:
        async with lab(room) as (_, state):
            state.boot("gpu-1")
            room.start("gpu-1")
            state.sample()
            headers = {"Authorization": f"Bearer {(room.root / 'token').read_text()}"}
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{state.api_port}", headers=headers) as http:
                listed = (await http.get("/v1/machines")).json()
            boot = state.machines.get("gpu-1").boot_id
            assert listed == [
                {"name": "gpu-1", "state": "running", "boot_id": boot},
                {"name": "gpu-2", "state": "off", "boot_id": ""},
            ]
            return listed

    assert asyncio.run(check())
