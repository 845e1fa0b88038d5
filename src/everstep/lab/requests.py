"""The supervisor's unix socket: one JSON line asks, one JSON line answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from everstep.lab.errors import LabError
from everstep.lab.hardware.sockets import listen_unix, short_name
from everstep.lab.layout import LabLayout

Handler = Callable[..., Awaitable[object]]
_TIMEOUT = 180.0  # a power-on waits for the node, nothing else takes long


async def serve_requests(layout: LabLayout, handlers: dict[str, Handler]) -> None:
    """Answers until cancelled. A request is `{"command": ..., arguments}`; an answer has `result` or `error`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            if line:
                writer.write(msgspec.json.encode(await _reply(handlers, line)) + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, sock=listen_unix(layout.socket))
    async with server:
        await server.serve_forever()


async def _reply(handlers: dict[str, Handler], line: bytes) -> dict[str, object]:
    try:
        request: dict[str, Any] = json.loads(line)
        command = request.pop("command")
        if command not in handlers:
            return {"error": f"this lab's supervisor does not know {command!r}; it knows {', '.join(handlers)}"}
        return {"result": await handlers[command](**request)}
    except LabError as error:
        return {"error": str(error)}
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"not a request: {error}"}


def ask(layout: LabLayout, command: str, **arguments: object) -> Any:
    """Asks the supervisor of a lab and returns its result. Raises LabError with what it answered instead."""
    try:
        with short_name(layout.socket) as name, socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_TIMEOUT)
            link.connect(name)
            link.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with link.makefile("rb") as file:
                line = file.readline()
    except OSError as error:
        raise LabError(
            f"the supervisor of lab {layout.name!r} does not answer ({error}): "
            f"see `everstep lab status --name {layout.name}`"
        ) from error
    if not line:
        raise LabError(f"the supervisor of lab {layout.name!r} hung up: see {layout.supervisor_log}")
    reply = json.loads(line)
    if "error" in reply:
        raise LabError(reply["error"])
    return reply["result"]
