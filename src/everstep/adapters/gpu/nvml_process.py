"""A child process that answers questions, and is killed when it does not answer in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everstep.core.errors import Unreachable

_LONGEST_ANSWER = 1 << 20  # bytes; sixteen GPUs take about 12 kB
_DEATH = 1.0  # seconds that a killed process may take to end


class Hung(Unreachable):
    """The question was asked, and no answer came in time."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds.

    Attributes:
        answer: for an answer. A busy node is slow, so this is long.
        start: for the first answer of a child, which has to wake the GPUs where nothing keeps them awake.
        first_pause, longest_pause: before a child is started again, after the second failure in a row and at most.
    """

    answer: float = 10.0
    start: float = 20.0
    first_pause: float = 2.0
    longest_pause: float = 60.0


class Child:
    """Starts the program when it is first asked, and again after it ended or was killed.

    The program is given this process's id as its last argument, to die with it.

    Attributes:
        hangs: questions in a row that got no answer in time.
        restarts: how often a child was started after the first one.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], patience: Patience) -> None:
        self._argv = tuple(argv)
        self._environment = dict(environment)
        self._patience = patience
        self._process: Process | None = None
        self._killed: Process | None = None  # until it is really dead
        self._starts = 0
        self._failures = 0  # in a row
        self._not_before = 0.0
        self._why: Unreachable = Unreachable("not asked yet")
        self.hangs = 0

    @property
    def restarts(self) -> int:
        return max(0, self._starts - 1)

    async def ask(self) -> bytes:
        """One question, one answer; never two at a time.

        Raises:
            Hung: no answer in time, or the pause after that is not over.
            Unreachable: the child could not be started, or ended, or the pause after that is not over.
        """
        if time.monotonic() < self._not_before:
            raise self._why
        if not await self._buried():
            # A second one would get stuck beside it, and another one after that, until the node is full of them.
            self.hangs += 1
            raise self._failed(Hung("the process that asked hangs inside the driver and cannot be killed"))
        if self._process is not None and self._process.returncode is not None:
            self._process = None  # it was killed while nobody asked: nothing is wrong with the driver
        seconds = self._patience.answer if self._process else self._patience.start
        try:
            process = self._process or await self._start()
            async with asyncio.timeout(seconds):
                answer = await self._exchange(process)
        except TimeoutError:
            self.hangs += 1
            self._kill()
            raise self._failed(Hung(f"no answer within {seconds:g} s")) from None
        except OSError as why:
            self._kill()
            raise self._failed(Unreachable(f"cannot be asked: {why}")) from why
        except BaseException:
            self._kill()  # cancelled: its answer would be taken for that of the next question
            raise
        self.hangs = self._failures = 0
        return answer

    async def close(self) -> None:
        """Ends the child."""
        self._kill()
        await self._buried()

    async def _buried(self) -> bool:
        """Whether the child that was killed last is gone; one inside an ioctl of the driver stays until that ends."""
        if self._killed is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DEATH):
                    await self._killed.wait()
                    self._killed = None
        return self._killed is None

    async def _start(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, str(os.getpid()), stdin=PIPE, stdout=PIPE, env=self._environment, limit=_LONGEST_ANSWER
        )
        self._starts += 1
        return self._process

    async def _exchange(self, process: Process) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"ask\n")
        with contextlib.suppress(ConnectionError):  # it has ended; the next line says how
            await process.stdin.drain()
        try:
            answer = await process.stdout.readline()
        except ValueError as why:
            raise OSError("it answers without an end") from why
        if not answer.endswith(b"\n"):
            code = await process.wait()
            raise OSError(f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}")
        return answer

    def _kill(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        self._killed, self._process = self._process, None

    def _failed(self, why: Unreachable) -> Unreachable:
        """Notes a failure. The first one is tried again at once, so that two in a row are known soon."""
        self._failures += 1
        pause = 0.0
        if self._failures > 1:
            pause = min(self._patience.first_pause * 2 ** (self._failures - 2), self._patience.longest_pause)
        self._not_before, self._why = time.monotonic() + pause, why
        return why
