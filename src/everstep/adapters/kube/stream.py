"""Drives a reflection over HTTP: the only place where list and watch meet a socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, TypeVar

import httpx2
import structlog

from everstep.adapters.kube.reflect import Change, FetchPage, HasMeta, OpenWatch, Pause, Reflection

PAGE_SIZE = 500
SERVER_TIMEOUT = 290  # seconds the server is asked to keep one watch open
READ_TIMEOUT = 90.0  # seconds without a byte; the API server sends a bookmark about every minute
LIST_TIMEOUT = httpx2.Timeout(10.0, read=30.0)

log = structlog.get_logger(__name__)

V = TypeVar("V", bound=HasMeta)


class Sink(Protocol[V]):
    """Where changes go; :class:`everstep.adapters.kube.store.Store` is one."""

    def take(self, change: Change[V]) -> None: ...

    def connected(self) -> None:
        """A watch is open: from now on silence means that nothing changed."""
        ...

    def disconnected(self, why: str) -> None:
        """No watch is open, and changes may be missed; called again at every failure."""
        ...


async def follow(
    http: httpx2.AsyncClient,
    path: str,
    view: type[V],
    sink: Sink[V],
    params: Mapping[str, str] | None = None,
    server_timeout: int = SERVER_TIMEOUT,
    read_timeout: float = READ_TIMEOUT,
) -> None:
    """Keeps ``sink`` equal to what the API server has at ``path``, until cancelled. Raises nothing else.

    Args:
        path: collection, for example ``/api/v1/nodes``.
        params: selectors for list and watch alike.
        server_timeout: seconds, ``timeoutSeconds`` of each watch.
        read_timeout: seconds without a byte after which a watch is given up for dead.
    """
    reflection = Reflection(view, jitter=lambda: random.uniform(0.8, 1.2))  # noqa: S311  # spreads load, hides nothing
    selectors = dict(params or {})
    watch_timeout = httpx2.Timeout(10.0, read=read_timeout)
    while True:
        try:
            match reflection.next():
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case FetchPage(token):
                    query = {**selectors, "limit": str(PAGE_SIZE), **({"continue": token} if token else {})}
                    reply = await http.get(path, params=query, timeout=LIST_TIMEOUT)
                    if reply.status_code == 200:
                        _feed(sink, reflection.page(reply.content))
                    else:
                        _refused(reflection, sink, path, reply)
                case OpenWatch(version):
                    query = {
                        **selectors,
                        "watch": "true",
                        "allowWatchBookmarks": "true",
                        "resourceVersion": version,
                        "timeoutSeconds": str(server_timeout),
                    }
                    async with http.stream("GET", path, params=query, timeout=watch_timeout) as reply:
                        await _watch(reflection, sink, path, reply)
        except (httpx2.HTTPError, OSError) as why:  # OSError: the token file is gone for a moment, no route, ...
            reflection.broken()
            _lost(sink, path, f"{type(why).__name__}: {why}")


async def _watch(reflection: Reflection[V], sink: Sink[V], path: str, reply: httpx2.Response) -> None:
    if reply.status_code != 200:
        await reply.aread()
        _refused(reflection, sink, path, reply)
        return
    loop = asyncio.get_running_loop()
    opened = loop.time()
    sink.connected()
    async for line in _lines(reply):
        _feed(sink, reflection.line(line))
        if reflection.over:
            _lost(sink, path, "the server ended the watch with an error")
            return
    sink.disconnected("the watch ended")
    reflection.ended(loop.time() - opened)


async def _lines(reply: httpx2.Response) -> AsyncIterator[bytes]:
    """Whole lines; what follows the last newline is a cut-off object and is dropped."""
    rest = b""
    async for chunk in reply.aiter_bytes():
        rest += chunk
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _feed(sink: Sink[V], changes: list[Change[V]]) -> None:
    for change in changes:
        sink.take(change)


def _refused(reflection: Reflection[V], sink: Sink[V], path: str, reply: httpx2.Response) -> None:
    reflection.refused(reply.status_code, _retry_after(reply.headers.get("Retry-After")))
    _lost(sink, path, f"HTTP {reply.status_code}: {reply.text[:200]}")


def _lost(sink: Sink[V], path: str, why: str) -> None:
    log.info("watch interrupted", path=path, why=why)
    sink.disconnected(why)


def _retry_after(header: str | None) -> float | None:
    """Seconds; None where the header is absent or a date (Kubernetes sends seconds)."""
    try:
        return min(float(header), 60.0) if header else None
    except ValueError:
        return None
