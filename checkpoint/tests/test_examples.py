"""The examples that the other tests do not run."""

from __future__ import annotations

import importlib.util
import py_compile
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_ranks import TRAIN, Launch, records, trajectory

EXAMPLES = TRAIN.parent


def test_the_torch_example_compiles(tmp_path: Path) -> None:
    py_compile.compile(str(EXAMPLES / "train_torch_ddp.py"), cfile=str(tmp_path / "x.pyc"), doraise=True)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is an extra of more than 5 GB and not installed here; its example is compiled above",
)
def test_the_torch_example_resumes_to_the_same_losses(tmp_path: Path, launch: Callable[..., Launch]) -> None:
    program, args = EXAMPLES / "train_torch_ddp.py", ("--steps", "60", "--step-time", "0.02")
    env = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    assert launch(tmp_path / "reference", *args, program=program, **env).wait() == [0, 0]
    first = launch(tmp_path / "run", *args, program=program, **env).at_step(20)
    first.signal(signal.SIGTERM, 1)
    assert first.wait() == [0, 0]
    assert launch(tmp_path / "run", *args, program=program, **env).wait() == [0, 0]
    assert records(tmp_path / "run")[1][0]["resumed_from"] >= 20
    assert trajectory(tmp_path / "run") == trajectory(tmp_path / "reference")


@pytest.mark.parametrize("script", ["train.sbatch", "train-two-steps.sbatch"])
def test_batch_scripts_hold_what_the_platform_relies_on(script: str) -> None:
    text = (EXAMPLES / script).read_text()
    subprocess.run(["bash", "-n", str(EXAMPLES / script)], check=True)
    for needed in ("--requeue", "--open-mode=append", "--kill-on-bad-exit", "$SLURM_JOB_ID"):
        assert needed in text
