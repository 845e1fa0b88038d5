"""SIGTERM, SIGUSR1 and SIGUSR2 as bytes on a socket: a thread sees them while the main thread sits in a collective.

A Python signal handler only runs between two bytecodes of the main thread; with a peer hung in a collective that can be
seconds or never. The interpreter's C handler writes to the wake-up descriptor at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger("everstep_checkpoint")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_active: StopSignals | None = None
_hooked = False


def _nothing(number: int, frame: FrameType | None) -> None:
    """The handler: there must be one, or the signal ends the process; the wake-up descriptor carries the news.

    Unless it was taken from us: asyncio's add_signal_handler sets one of its own. Then the news is late, not lost.
    """
    if _active is not None:
        _active.tell(number)


class StopSignals:
    """Installs itself in the main thread; `fileno()` becomes readable on a signal, `received()` names it.

    Forked children get the handlers back that were there before, and never write to this process's descriptor.
    """

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._previous_fd = -1
        self._others: socket.socket | None = None  # who else reads a wake-up descriptor, such as asyncio
        self._kept: set[int] = set()  # what they are to hear of once the checkpoint is there

    def install(self) -> None:
        """Take the stop signals over. Outside the main thread this is impossible: logs a warning and does nothing."""
        global _active, _hooked  # noqa: PLW0603 - signals are a property of the process, not of an object
        if threading.current_thread() is not threading.main_thread():
            log.warning("Run was entered outside the main thread: stop signals are not seen by it")
            return
        self._previous_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._others = _duplicate(self._previous_fd)
        for number in STOP_SIGNALS:
            previous = signal.signal(number, _nothing)
            # Ours may still be there from a Run that was stopped in this process: see restore().
            self._previous[number] = signal.SIG_DFL if previous in (None, _nothing) else previous
        _active = self
        if not _hooked:
            os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
            _hooked = True

    def take_back(self) -> None:
        """Put our handlers back in place of those that a framework has set meanwhile."""
        if self._previous and threading.current_thread() is threading.main_thread():
            taken = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            if taken not in (self._write.fileno(), self._previous_fd):
                self._previous_fd, self._others = taken, _duplicate(taken)
            for number in STOP_SIGNALS:
                signal.signal(number, _nothing)

    def fileno(self) -> int:
        return self._read.fileno()

    def received(self) -> signal.Signals | None:
        """Read what arrived; the first stop signal among it, or None."""
        try:
            data = self._read.recv(4096)
        except BlockingIOError:
            return None
        self._kept.update(byte for byte in data if byte in STOP_SIGNALS)
        self._pass_on(bytes(byte for byte in data if byte not in STOP_SIGNALS))
        return next((signal.Signals(byte) for byte in data if byte in STOP_SIGNALS), None)

    def tell(self, number: int) -> None:
        """As the interpreter's C handler does; told twice is told once."""
        with contextlib.suppress(OSError):
            self._write.send(bytes([number]))

    def _pass_on(self, data: bytes) -> None:
        if self._others is not None and data:
            with contextlib.suppress(OSError):
                self._others.send(data)

    def previous_handler(self, name: str | None) -> Callable[[int, FrameType | None], Any] | None:
        """The program's own handler of that signal, which gets its turn once the checkpoint is there; None if none."""
        found = self._previous.get(signal.Signals[name]) if name is not None else None
        return found if callable(found) else None

    def restore(self, stopped: bool) -> None:
        """Put the previous handlers back, and pass on what came too late to be heard here.

        After a stop, signals whose default would end the process stay harmless: schedulers send SIGTERM twice, and the
        second must not cut off the lines that the program runs after the save.
        """
        global _active  # noqa: PLW0603
        late = None
        if self._previous:
            for number, handler in self._previous.items():
                if not (stopped and handler == signal.SIG_DFL):
                    signal.signal(number, handler)
            current = signal.set_wakeup_fd(-1)
            # If it is not ours any more somebody took it meanwhile, and it is theirs.
            _set_wakeup_fd(self._previous_fd if current == self._write.fileno() else current)
            late = self.received()
            self._previous = {}
            _active = self if stopped else None
        self._pass_on(bytes(self._kept))
        if self._others is not None:
            self._others.close()
        self._read.close()
        self._write.close()
        if late is not None and not stopped:
            signal.raise_signal(late)  # it came after the last look, and is for the program now

    def forget_in_child(self) -> None:
        """Make this forked child deaf to the parent's business."""
        signal.set_wakeup_fd(-1)
        for number in STOP_SIGNALS:
            signal.signal(number, self._previous.get(number, signal.SIG_DFL))


def _set_wakeup_fd(fd: int) -> None:
    try:
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    except (OSError, ValueError):
        signal.set_wakeup_fd(-1)  # whose it was has closed it


def _duplicate(fd: int) -> socket.socket | None:
    """Our own descriptor of the same socket: the number may be closed, and come to mean a file, while we use it."""
    if fd < 0:
        return None
    try:
        return socket.socket(fileno=os.dup(fd))
    except OSError:
        return None  # not a socket: nothing that Python's own libraries use


class _Held(threading.local):
    """The signals that this thread held back before it began to fork; several threads may fork at once."""

    mask: set[int] | None = None


_held = _Held()


def _before_fork() -> None:
    """Hold the signals back over the fork: a child must not write to the descriptor it still shares."""
    if _active is not None:
        _held.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS))


def _after_fork() -> None:
    if _held.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)
        _held.mask = None


def _in_child() -> None:
    global _active  # noqa: PLW0603
    if _active is not None and threading.current_thread() is threading.main_thread():
        _active.forget_in_child()
        _active = None
    _after_fork()
