"""Real ranks as real processes, for tests that interrupt them."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
PROGRAMS = Path(__file__).parent / "programs"


def until(condition: Callable[[], Any], what: str, timeout: float = 30.0) -> Any:
    """Poll until `condition` holds; returns what it returned."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.005)
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records(directory: Path) -> list[list[dict[str, Any]]]:
    """The record of every attempt, in order."""
    return [lines(path) for path in sorted((directory / "records").glob("attempt-*.jsonl"))]


def trajectory(directory: Path) -> dict[int, str]:
    """Step -> loss as float hex; where attempts overlap the later one counts."""
    found: dict[int, str] = {}
    for path in sorted((directory / "losses").glob("attempt-*.jsonl")):
        found |= {row["step"]: row["loss"] for row in lines(path)}
    return found


class Launch:
    """The ranks of one attempt."""

    def __init__(self, directory: Path, argv: list[str], size: int, env: dict[str, str] | None = None) -> None:
        self.directory = directory
        base = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "EVERSTEP_"))}
        port = str(20000 + secrets.randbelow(40000))  # only names the launch, as the launcher's would
        self.processes = [
            subprocess.Popen(
                [sys.executable, *argv],
                env=base | {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": port} | (env or {}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for rank in range(size)
        ]

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].send_signal(number)

    def wait(self, timeout: float = 60.0) -> list[int]:
        """Exit codes of all ranks; the test fails with their output if one hangs."""
        for process in self.processes:
            try:
                process.communicate(timeout=timeout) if process.stdout and not process.stdout.closed else None
            except subprocess.TimeoutExpired:
                pytest.fail(f"rank hangs: {process.args}")
        return [process.wait() for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def steps_done(self) -> int:
        return max(trajectory(self.directory), default=0)

    def at_step(self, step: int) -> Launch:
        """Wait until `step` steps are done."""
        until(lambda: self.steps_done() >= step or self.processes[0].poll() is not None, f"step {step} is done")
        assert self.processes[0].poll() is None, self.processes[0].communicate()[0]
        return self
