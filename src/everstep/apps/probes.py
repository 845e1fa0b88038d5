"""``/healthz`` and ``/readyz`` for the kubelet, in the few lines of HTTP that it takes: a web framework costs 20 MB."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

_DEADLINE = 5.0  # seconds for a client to send its request


async def serve_probes(port: int, ready: Callable[[], bool]) -> asyncio.Server:
    """Listens on all addresses of the pod. ``/readyz`` is 200 once ``ready()``; ``/healthz`` while the loop turns."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, ValueError):
            async with asyncio.timeout(_DEADLINE):
                request = (await reader.readline()).split()
                path = request[1] if len(request) > 1 else b""
                status = b"404 Not Found"
                if path == b"/healthz" or (path == b"/readyz" and ready()):
                    status = b"200 OK"
                elif path == b"/readyz":
                    status = b"503 Service Unavailable"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, port=port)
