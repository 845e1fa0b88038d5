"""DataLoader workers that outlive a signal to the whole process group, so that the training can save.

torchrun, and Slurm at some sites, signal every process of a rank. A worker that dies of it makes the main process raise
before it can save. A shielded worker only heeds its own parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Shield:
    """A worker_init_fn that calls the program's own one; picklable, so that it works with spawned workers too."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self.inner = inner

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        threading.Thread(target=_heed_parent, args=(os.getppid(),), name="everstep-shield", daemon=True).start()
        if self.inner is not None:
            self.inner(worker)


def _heed_parent(parent: int) -> None:
    """End on a SIGTERM of the parent, as DataLoader sends one to a worker that does not finish; ignore all others."""
    while True:
        got = signal.sigwaitinfo(_SIGNALS)
        if got.si_signo == signal.SIGTERM and got.si_pid in (parent, os.getpid()):
            os._exit(128 + signal.SIGTERM)


@contextmanager
def _held_back() -> Iterator[None]:
    """This thread, and whatever it starts meanwhile, gets no stop signal; the other threads still do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shield_data_loaders() -> None:
    """Shield the workers of every torch DataLoader of this program from now on; nothing without torch."""
    loaders = sys.modules.get("torch.utils.data")
    kind: Any = getattr(loaders, "DataLoader", None)
    plain = getattr(kind, "_get_iterator", None)
    if plain is None or getattr(plain, "shields", False):
        return

    def shielded(self: Any) -> Any:
        if not getattr(self, "num_workers", 0):
            return plain(self)
        if not isinstance(self.worker_init_fn, Shield):
            self.worker_init_fn = Shield(self.worker_init_fn)
        with _held_back():  # a worker begins as we are, and torch works for a while before it calls worker_init_fn
            return plain(self)

    shielded.shields = True  # type: ignore[attr-defined]
    kind._get_iterator = shielded
