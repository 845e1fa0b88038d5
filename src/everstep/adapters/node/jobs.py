"""Which job a process of the host belongs to, as far as anybody may look: its user and its control group.

The process's environment would name the job, too, but holds whatever else the user keeps there; it is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from everstep.core.correlation.sighting import Job
from everstep.core.health import NAME_LIMIT, Evidence
from everstep.core.plain_text import plain

FIRST_USER = 1000  # UID_MIN of login.defs: below it are the system's own processes, such as monitors of the GPUs
HOST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel: the first pid namespace, in which the log counts
_COMM = 15  # characters that the kernel keeps of a process's name
_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)  # Slurm's proctrack/cgroup, v1 and v2


class JobsOfProcesses:
    """Finds the job of the process that a line names.

    Two jobs are related when one user owns them: requeued, resubmitted and array jobs run the same code, and the name
    of a job is not to be had here. So only jobs of two users ever accuse a GPU together.

    Args:
        proc: the host's ``/proc``, seen from the host's pid namespace.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def __call__(self, evidence: Evidence) -> Sequence[Job]:
        """The job, or nothing where it is not certain: a process that has ended, or that is not the one named."""
        if not evidence.pid or not evidence.process or not self._sees_the_host():
            return ()
        folder = self._proc / str(evidence.pid)
        try:
            name = (folder / "comm").read_text(errors="replace").rstrip("\n")
            user = _user((folder / "status").read_text(errors="replace"))
            groups = (folder / "cgroup").read_text(errors="replace")
        except OSError:
            return ()
        if plain(name, NAME_LIMIT) != evidence.process[:_COMM] or user is None or user < FIRST_USER:
            return ()
        job = _SLURM_JOB.search(groups)
        return (Job(job[1] if job else "", f"uid {user}"),)

    def _sees_the_host(self) -> bool:
        """Numbers of another pid namespace are other processes."""
        try:
            return os.readlink(self._proc / "self/ns/pid") == HOST_PIDS
        except OSError:
            return False


def _user(status: str) -> int | None:
    """The real user of ``/proc/PID/status``."""
    found = re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    return int(found[1]) if found else None
