"""Waiting until a file changes: inotify where the kernel grants it, a short poll where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

_IN_MODIFY, _IN_ATTRIB, _IN_MOVE_SELF, _IN_DELETE_SELF = 0x2, 0x4, 0x800, 0x400  # <sys/inotify.h>
_POLL = 0.05  # seconds; inotify instances are few per user (128 by default), so there may be none left


class FileEvents:
    """Changes of one file. Belongs to one event loop; ``close`` it."""

    def __init__(self, path: Path) -> None:
        self._fd = _inotify(path)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    async def wait(self, seconds: float) -> None:
        """Returns when the file changed since the last wait, or after ``seconds`` at the latest."""
        if self._fd is None:
            await asyncio.sleep(min(seconds, _POLL))
            return
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        loop.add_reader(self._fd, changed.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
        finally:
            loop.remove_reader(self._fd)
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 65536)


def _inotify(path: Path) -> int | None:
    """An inotify descriptor that watches ``path``; None where the kernel refuses one."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        return None
    mask = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF
    if libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)) < 0:
        os.close(fd)
        return None
    return fd
