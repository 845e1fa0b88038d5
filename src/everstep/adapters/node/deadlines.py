"""Asking what may never answer: a thread of its own for each source, and a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from everstep.core.errors import EverstepError, Unreachable
from everstep.core.health import Evidence

DEADLINE = 8.0  # seconds; a busy machine is slow, so one that takes 2 s is no sign of anything

_T = TypeVar("_T")


class Asking(Generic[_T]):
    """One question in a thread that nobody has to wait for.

    A read of sysfs or of a dead file server can sleep in the kernel for ever, and no signal ends that. So the thread is
    a daemon, outside every pool: it neither holds up the event loop nor the end of the process.
    """

    def __init__(self, ask: Callable[[], _T], name: str) -> None:
        self.begun = time.monotonic()
        self.done = threading.Event()
        self._ask = ask
        self._answer: _T | None = None
        self._error: Exception | None = None
        self._listener: Callable[[], object] | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as why:  # whatever it is, it belongs to the one who asked
            self._error = why
        with self._lock:
            self.done.set()
            if self._listener is not None:
                self._listener()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Calls ``listener`` from the thread at the end, or at once when it has ended."""
        with self._lock:
            self._listener = listener
            if self.done.is_set():
                listener()

    async def ended(self) -> None:
        """Waits until it is done, on the event loop."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        self.when_done(wake)
        await done.wait()

    def answer(self) -> _T:
        """What came out, once it is done; raises what the question raised."""
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer


class PolledSource:
    """A :class:`everstep.ports.StateSource` over a plain function that reads files.

    A question that hangs is not asked a second time: while its thread still waits, the source is Unreachable.

    Args:
        look: one complete reading. It runs in a thread, one at a time; OSError means that it could not be had.
    """

    def __init__(
        self, name: str, period: float, look: Callable[[], Sequence[Evidence]], deadline: float = DEADLINE
    ) -> None:
        self.name = name
        self.period = period
        self._look = look
        self._deadline = deadline
        self._asking: Asking[Sequence[Evidence]] | None = None

    async def read(self) -> Sequence[Evidence]:
        """Everything that is wrong now. Unreachable when it cannot be asked or does not answer in time."""
        if self._asking is None or self._asking.done.is_set():
            self._asking = Asking(self._look, f"everstep {self.name}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._deadline):
                    await self._asking.ended()
        asking = self._asking
        if not asking.done.is_set():
            # Always the same words: what changes with time would be written anew with every question, from every node.
            raise Unreachable(f"no answer within {self._deadline:.3g} s: a read hangs in the kernel")
        try:
            return asking.answer()
        except EverstepError:
            raise
        except OSError as why:
            raise Unreachable(f"cannot read {why.filename or 'it'}: {why.strerror or why}") from why
        except Exception as why:
            raise Unreachable(f"a reading failed: {type(why).__name__}: {why}") from why
