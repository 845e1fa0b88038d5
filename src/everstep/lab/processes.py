"""Runs other programs: argument lists, never a shell, and one clear line when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.lab.errors import LabError


def _failure(argv: Sequence[str], code: int | str, output: bytes) -> LabError:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "it printed nothing"
    return LabError(f"`{shlex.join(argv)[:200]}` failed ({code}): {_shortened(said)}")


def _shortened(text: str) -> str:
    """The cause of a Go program's error stands at its end: "...: no space left on device"."""
    return text if len(text) <= 400 else f"{text[:150]} ... {text[-250:]}"


async def run(
    *argv: str, text: str | None = None, seconds: float = 60, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a program to its end and returns what it printed on stdout.

    `text` is its stdin, it may take `seconds`, `environment` is added to ours. Raises LabError on any failure.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if text is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment} if environment else None,
        )
    except FileNotFoundError as error:
        raise LabError(f"`{argv[0]}` is not installed: run `everstep lab setup`") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(text.encode() if text is not None else None), seconds)
    except TimeoutError as error:
        raise _failure(argv, f"no end after {seconds:g} s", b"") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if process.returncode:
        raise _failure(argv, process.returncode, err or out)
    return out.decode(errors="replace")


def run_now(*argv: str, text: str | None = None, seconds: float = 60, check: bool = True) -> str:
    """The same without an event loop; with `check` off a failure is an empty answer."""
    try:
        done = subprocess.run(
            argv, input=text.encode() if text is not None else b"", capture_output=True, timeout=seconds, check=False
        )
    except FileNotFoundError as error:
        raise LabError(f"`{argv[0]}` is not installed: run `everstep lab setup`") from error
    except subprocess.TimeoutExpired as error:
        raise _failure(argv, f"no end after {seconds:g} s", b"") from error
    if done.returncode and check:
        raise _failure(argv, done.returncode, done.stderr or done.stdout)
    return done.stdout.decode(errors="replace") if not done.returncode else ""


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none (or only its zombie).

    A pid with its start time names one process for ever; a pid alone may be somebody else's by tomorrow.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def kill(pid: int, started: int | None = None) -> None:
    """SIGKILL, only if it still is the process that started then."""
    if started is None or alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def first_child(pid: int) -> int | None:
    """The one child of a process like `unshare --fork`."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None
