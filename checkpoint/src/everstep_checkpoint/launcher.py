"""`everstep-checkpoint exec`: a thin parent of torchrun and its like, which lets them save and keeps the outcome.

torchrun kills its workers 30 s after it was told to stop, dies of SIGUSR1 and SIGUSR2, and exits with 1 even when every
worker has saved. This parent sets the longer timeout, turns every stop signal into SIGTERM, and takes the exit code
from what the training says itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .outcome import VARIABLE, Outcome, read_outcome

STOPPED = 143  # 128 + SIGTERM: the training was stopped and has saved; it is not finished
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
_LAUNCHER_MARGIN = 5.0  # seconds that torchrun keeps for itself, out of the grace


def launch(program: Sequence[str], grace: float) -> int:
    """Run `program` to its end; returns the exit code.

    0 when the training finished, 143 when it was stopped and saved, 1 when it failed with 0 from the launcher, else
    what the program returned. 127 when it cannot be started.
    """
    with _folder() as folder:
        if folder is None:
            return _exit_code(_run(program, dict(os.environ)), None)
        file = Path(folder) / "outcome"
        timeout = str(max(1, round(grace - min(_LAUNCHER_MARGIN, grace / 4))))
        env = os.environ | {VARIABLE: str(file)}
        env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", timeout)
        code = _run(program, env)
        found = read_outcome(file)
    return _exit_code(code, found)


@contextmanager
def _folder() -> Iterator[str | None]:
    """For the outcome; None, and the training is not kept from running, where nothing can be written."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="everstep-", ignore_cleanup_errors=True)
    except OSError as error:
        print(f"everstep-checkpoint: the outcome will not be known: {error}", file=sys.stderr)
        yield None
        return
    with folder as name:
        yield name


def _run(program: Sequence[str], env: dict[str, str]) -> int:
    process: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        early.append(number)
        for child in process:
            child.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    old = {number: signal.signal(number, forward) for number in _SIGNALS}
    try:
        try:
            process.append(subprocess.Popen(program, env=env))
        except OSError as error:
            print(f"everstep-checkpoint: cannot start {program[0]}: {error.strerror}", file=sys.stderr)
            return 127
        if early:
            process[0].send_signal(signal.SIGTERM)  # it came before there was anybody to tell
        return process[0].wait()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _exit_code(code: int, found: Outcome | None) -> int:
    plain = code if code >= 0 else 128 - code
    if found is None:
        return plain
    step = f", newest checkpoint: step {found.saved_step}" if found.saved_step is not None else ", no checkpoint"
    print(f"everstep-checkpoint: the training has {found.outcome}{step}", file=sys.stderr)
    match found.outcome:
        case "finished":
            return 0
        case "stopped":
            return STOPPED
        case _:
            return plain or 1
