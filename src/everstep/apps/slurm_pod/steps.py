"""Which processes on this node belong to steps of jobs."""

from __future__ import annotations

import contextlib
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """A slurmstepd, or a process that one started directly: a task, or a batch script."""

    MANAGER = "manager"
    TASK = "task"


def step_processes(proc: Path = Path("/proc")) -> dict[int, Kind]:
    """pid -> kind, of every process that is not a zombie."""
    parents: dict[int, int] = {}
    managers: set[int] = set()
    for folder in proc.iterdir():
        if folder.name.isdigit():
            # A process may end while it is looked at.
            with contextlib.suppress(OSError, IndexError, ValueError):
                # "PID (NAME) STATE PPID ...", where NAME may hold spaces and brackets.
                before, _, after = (folder / "stat").read_text().rpartition(") ")
                state, parent = after.split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
                    if before.partition(" (")[2] == "slurmstepd":
                        managers.add(int(folder.name))
    return {
        pid: Kind.MANAGER if pid in managers else Kind.TASK
        for pid, parent in parents.items()
        if pid in managers or parent in managers
    }
