"""Tests that need torch, Lightning, transformers or an object server; `make test-torch` has an environment for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checkpoint_ranks import Launch

os.environ.setdefault("OMP_NUM_THREADS", "1")
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def launch() -> Iterator[Callable[..., Launch]]:
    """Start ranks of a program of this folder; whatever still runs at the end is killed."""
    started: list[Launch] = []

    def start(directory: Path, *args: str, size: int = 2, program: str | Path, **env: str) -> Launch:
        env = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | env
        argv = [str(PROGRAMS / program), "--dir", str(directory), *args]
        started.append(Launch(directory, argv, size, env))
        return started[-1]

    yield start
    for each in started:
        each.end()
