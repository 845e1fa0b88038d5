"""Who is told at the start that Slurm's signals may not reach the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everstep_checkpoint.launched import ancestors, deaf

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2"}
BATCH = {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("env", "names", "says"),
    [
        (STEP, ["slurmstepd", "slurmd"], None),
        (STEP, ["bash", "slurmstepd", "slurmd"], "a shell (bash)"),
        (STEP, ["python3", "sh", "slurmstepd", "bash"], "a shell (sh)"),
        (STEP, ["torchrun", "python3", "slurmstepd", "bash"], None),
        (STEP, ["tini"], None),
        (STEP, ["bash"], None),
        (BATCH, ["bash", "slurmstepd"], "put srun before it"),
        (BATCH, ["bash", "sshd"], None),
        ({}, ["bash", "slurmstepd"], None),
    ],
    ids=[
        "srun python", "srun bash -c", "exec in a script", "srun torchrun", "a container of its own",
        "nobody can know", "no srun", "salloc", "no Slurm",
    ],
)  # fmt: skip
def test_who_is_warned(env: dict[str, str], names: list[str], says: str | None) -> None:
    found = deaf(env, names)
    assert (found is None) if says is None else (says in str(found))


def test_a_shell_in_between_is_seen(tmp_path: Path) -> None:
    """With a process that has the name of Slurm's own, and a shell under it that does not end in exec."""
    step = tmp_path / "slurmstepd"
    step.symlink_to(str(shutil.which("sh")))
    ask = f"{sys.executable} -c 'from everstep_checkpoint.launched import ancestors; print(ancestors())'"
    shell = f'bash -c "{ask}; true"; true'
    seen = subprocess.run([step, "-c", shell], capture_output=True, text=True, check=True).stdout
    assert seen.startswith("['bash', 'slurmstepd', ")
    assert ancestors()[0] == Path(f"/proc/{os.getppid()}/comm").read_text().strip()
