"""The examples that the other tests do not run."""

from __future__ import annotations

import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_ranks import TRAIN

EXAMPLES = TRAIN.parent
TUTORIAL = EXAMPLES.parent / "docs" / "tutorial" / "checkpoint.md"


def test_the_torch_example_compiles(tmp_path: Path) -> None:
    py_compile.compile(str(EXAMPLES / "train_torch_ddp.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)


@pytest.mark.parametrize("script", ["train.sbatch", "train-two-steps.sbatch", "train-torch.sbatch"])
def test_batch_scripts_hold_what_the_platform_relies_on(script: str) -> None:
    text = (EXAMPLES / script).read_text()
    subprocess.run(["bash", "-n", str(EXAMPLES / script)], check=True)
    for needed in ("--requeue", "--open-mode=append", "--kill-on-bad-exit", "$SLURM_JOB_ID"):
        assert needed in text


def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    """As written, in one shell; only the installation is this environment instead of one from PyPI."""
    install, *blocks = re.findall(r"^```sh\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert "pip install ./checkpoint numpy" in install
    assert len(blocks) == 5, "is the form of the page another now?"
    (tmp_path / "venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "".join(blocks)], cwd=tmp_path, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "EVERSTEP_", "RANK"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    stopped = re.search(r"^stopped after step (\d+)$", done.stdout, re.MULTILINE)
    assert stopped, done.stdout
    assert f"attempt 1: 2 ranks, from step {stopped[1]} to 100" in done.stdout
    assert "the same weights, to the last bit" in done.stdout
    assert done.stdout.count(f"step_{int(stopped[1]):08d}") == 2, "ls and verify show the checkpoint of the stop"
