"""slurmd as a child that is started again where it would sleep over a configuration that it did not get.

slurmd fetches its configuration from slurmctld when it starts. If that one connection breaks it sleeps for 10 s
("failed to load configs. Retrying in 10 seconds": 22.05, 24.11 and 26.05 alike), and a job that waits for the node
waits with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path

log = logging.getLogger(__name__)
CONFIGURATION = Path("/var/spool/slurmd/conf-cache/slurm.conf")  # written by slurmd once it has it
# Seconds that a slurmd has for the fetch, which takes about 0.03. The one after the last is left to its own retries:
# the network is slow then, or slurmctld refuses, and starting again mends neither.
_PATIENCE = (1.0, 2.0, 4.0, 8.0)
_PAUSE = 0.05
# What slurmd acts on, and what a container's end is announced by.
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}


class Slurmd:
    """One slurmd, from its first start to its end.

    Args:
        argv: the program and its arguments.
        controller_listens: returns once slurmctld accepts connections.
        configuration: the file that appears when the configuration has come.
    """

    def __init__(
        self, argv: list[str], controller_listens: Callable[[], Awaitable[None]], configuration: Path = CONFIGURATION
    ) -> None:
        self._argv = argv
        self._controller_listens = controller_listens
        self._configuration = configuration
        self._child: Process | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._ended_by: signal.Signals | None = None

    async def run(self) -> int:
        """Returns the exit status when slurmd has ended: its own, or 128 + the signal. Signals are passed on to it."""
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.add_signal_handler(number, self._pass_on, number)
        for seconds in _PATIENCE:
            child = await self._start()
            if await self._configured_or_ended(child, seconds):
                break
            log.warning("slurmd got no configuration within %.0f s; it is started again", seconds)
            await self._kill(child)
            await self._until_controller_listens()
            if self._ended_by is not None:
                return 128 + self._ended_by
        else:
            child = await self._start()
        status = await child.wait()
        return status if status >= 0 else 128 - status

    def _pass_on(self, number: signal.Signals) -> None:
        if number in _ENDING:
            self._ended_by = number
            if self._waiting is not None:
                self._waiting.cancel()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    async def _start(self) -> Process:
        # A cache that an earlier slurmd of this pod left says nothing about this one.
        self._configuration.unlink(missing_ok=True)
        self._child = await asyncio.create_subprocess_exec(*self._argv)
        if self._ended_by is not None:  # it came while there was no child yet
            self._child.send_signal(self._ended_by)
        return self._child

    async def _configured_or_ended(self, child: Process, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while child.returncode is None and self._ended_by is None and not self._configuration.exists():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def _kill(self, child: Process) -> None:
        """Without its configuration slurmd has no jobs, and nothing to put in order."""
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        self._child = None

    async def _until_controller_listens(self) -> None:
        if self._ended_by is not None:
            return
        self._waiting = asyncio.ensure_future(self._controller_listens())
        with contextlib.suppress(asyncio.CancelledError):
            await self._waiting
        self._waiting = None
