"""A loopback API server that breaks its watches on purpose, one written reply after another.

It speaks just enough HTTP/1.1 for list and watch, by hand, because a well-behaved server library cannot cut a
connection in the middle of a chunk or go away between two requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]
REASONS = {200: "OK", 410: "Gone", 429: "Too Many Requests", 503: "Service Unavailable"}


def node(name: str, version: int) -> Object:
    """A Node with nothing but its name and version."""
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": {}}


def listing(version: int, *items: Object, token: str = "") -> Object:
    meta = {"resourceVersion": str(version), **({"continue": token} if token else {})}
    return {"apiVersion": "v1", "kind": "NodeList", "metadata": meta, "items": list(items)}


def event(kind: str, thing: Object) -> Object:
    return {"type": kind, "object": thing}


def bookmark(version: int) -> Object:
    return event("BOOKMARK", {"apiVersion": "v1", "kind": "Node", "metadata": {"resourceVersion": str(version)}})


def failure(code: int, reason: str, message: str) -> Object:
    """``v1.Status``, as the API server sends it in a body or in an ERROR event."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


GONE = failure(410, "Expired", "too old resource version: 100 (150)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: ``list`` or ``watch``, with its query."""

    verb: str
    query: Mapping[str, str]


class Connection:
    """The server's end of one request; a reply writes to it."""

    def __init__(self, server: ScriptedApi, query: Mapping[str, str], writer: asyncio.StreamWriter) -> None:
        self.server, self.query, self._writer = server, query, writer

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole reply with a length."""
        given = {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(body))}
        self._head(status, given)
        self._writer.write(body)
        await self._writer.drain()

    async def start(self) -> None:
        """The head of an endless reply."""
        self._head(200, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        """Closes the reply in good order."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def cut(self) -> None:
        """Resets the connection, as a crash or a firewall does."""
        self._writer.transport.abort()

    async def hold(self) -> None:
        """Says nothing more until the server stops."""
        await self.server.stopped.wait()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}", *(f"{k}: {v}" for k, v in headers.items())]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())


Reply = Callable[[Connection], Awaitable[None]]


def refuse(status: int, body: Object | str, headers: Mapping[str, str] | None = None) -> Reply:
    """A reply with an error status; a string body is sent as it is."""

    async def reply(connection: Connection) -> None:
        raw = body if isinstance(body, str) else json.dumps(body)
        await connection.answer(status, raw.encode(), headers)

    return reply


def stream(*events: Object, then: str = "hold") -> Reply:
    """Sends the events; ``then``: ``hold`` the line, ``close`` it, ``cut`` it, or ``restart`` the server."""

    async def reply(connection: Connection) -> None:
        await connection.start()
        for each in events:
            await connection.send(json.dumps(each).encode() + b"\n")
        match then:
            case "close":
                await connection.end()
            case "cut":
                connection.cut()
            case "restart":
                connection.server.restart_soon()
                await connection.hold()
            case _:
                await connection.hold()

    return reply


@dataclass
class ScriptedApi:
    """Replies in order to lists and watches, each kind from its own script; the last reply repeats for ever.

    Attributes:
        asked: every request so far.
    """

    lists: Sequence[Object]
    watches: Sequence[Reply]
    downtime: float = 0.3
    asked: list[Asked] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _port: int = 0
    _server: asyncio.Server | None = None
    _restarts: list[asyncio.Task[None]] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def requests(self, verb: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.verb == verb]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedApi]:
        await self._start()
        try:
            yield self
        finally:
            for restart in self._restarts:
                await restart
            await self._stop()

    def restart_soon(self) -> None:
        """Stops the server for ``downtime`` seconds; every connection is cut, and new ones are refused meanwhile."""
        self._restarts.append(asyncio.get_running_loop().create_task(self._restart()))

    async def _restart(self) -> None:
        await self._stop()
        await asyncio.sleep(self.downtime)
        await self._start()

    async def _start(self) -> None:
        self.stopped = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.stopped.set()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                target = head.split(b" ", 2)[1].decode()
                await self._reply(Connection(self, dict(parse_qsl(urlsplit(target).query)), writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is done
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _reply(self, connection: Connection) -> None:
        watch = connection.query.get("watch") == "true"
        verb = "watch" if watch else "list"
        turn = len(self.requests(verb))
        self.asked.append(Asked(verb, connection.query))
        if watch:
            await self.watches[min(turn, len(self.watches) - 1)](connection)
        else:
            body = self.lists[min(turn, len(self.lists) - 1)]
            await connection.answer(int(body.get("code", 200)), json.dumps(body).encode())
