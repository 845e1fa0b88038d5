"""The examples that the other tests do not run."""

from __future__ import annotations

import py_compile
import subprocess
from pathlib import Path

import pytest
from checkpoint_ranks import TRAIN

EXAMPLES = TRAIN.parent


def test_the_torch_example_compiles(tmp_path: Path) -> None:
    py_compile.compile(str(EXAMPLES / "train_torch_ddp.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)


@pytest.mark.parametrize("script", ["train.sbatch", "train-two-steps.sbatch"])
def test_batch_scripts_hold_what_the_platform_relies_on(script: str) -> None:
    text = (EXAMPLES / script).read_text()
    subprocess.run(["bash", "-n", str(EXAMPLES / script)], check=True)
    for needed in ("--requeue", "--open-mode=append", "--kill-on-bad-exit", "$SLURM_JOB_ID"):
        assert needed in text
