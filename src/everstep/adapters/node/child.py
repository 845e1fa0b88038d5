"""A child process whose output is taken line by line, and that never outlives its owner's interest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from everstep.core.errors import Unreachable

_LINE_LIMIT = 1 << 20  # a kernel record is 8 KiB at most, and JSON makes six bytes of one
_LAST_WORDS = 400
_STDOUT, _STDERR = 1, 2


class Child(asyncio.SubprocessProtocol):
    """Runs from :func:`start` until it ends or is closed.

    Args:
        name: of the command, for people.
        take: called with whole lines, newline not included.
        ended: called once, when there is nothing more to take.
    """

    def __init__(self, name: str, take: Callable[[Sequence[bytes]], None], ended: Callable[[], None]) -> None:
        self._name = name
        self._take = take
        self._ended = ended
        self._transport: asyncio.SubprocessTransport | None = None
        self._partial = b""
        self._last_words = b""
        self._open = {_STDOUT, _STDERR}
        self._done = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:  # taken too, so that a child that complains a lot does not stand still
            self._last_words = (self._last_words + data)[-_LAST_WORDS:]
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > _LINE_LIMIT:
            self._partial = b""
        self._take(lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._finish()

    def process_exited(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self._open and self._code() is not None and not self._done.is_set():
            self._done.set()
            self._ended()

    def _code(self) -> int | None:
        return self._transport.get_returncode() if self._transport else None

    @property
    def reason(self) -> str:
        """Why there is nothing more, in a few words."""
        if not self._code():
            return f"{self._name} ended"
        words = self._last_words.decode(errors="replace").strip() or "it said nothing"
        return f"{self._name} failed with {self._code()}: {words}"

    async def finished(self) -> None:
        """Waits until everything is taken. Unreachable when the child failed."""
        await self._done.wait()
        if self._code():
            raise Unreachable(self.reason)

    def pause(self) -> None:
        """Takes nothing more for now; the child waits once its pipe is full."""
        self._stdout().pause_reading()

    def resume(self) -> None:
        if _STDOUT in self._open:
            self._stdout().resume_reading()

    def _stdout(self) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast("asyncio.ReadTransport", self._transport.get_pipe_transport(_STDOUT))

    def close(self) -> None:
        """Kills the child if it still runs."""
        if self._transport is not None:
            self._transport.close()


async def start(
    command: Sequence[str], take: Callable[[Sequence[bytes]], None], ended: Callable[[], None] = lambda: None
) -> Child:
    """Starts a command. Unreachable when it cannot be started."""
    child = Child(command[0], take, ended)
    loop = asyncio.get_running_loop()
    try:
        await loop.subprocess_exec(lambda: child, *command, stdin=asyncio.subprocess.DEVNULL)
    except OSError as why:
        raise Unreachable(f"cannot run {command[0]}: {why.strerror}") from why
    return child
