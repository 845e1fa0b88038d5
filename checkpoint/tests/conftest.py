"""Fixtures of the SDK's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by path: their shared module is found here

from checkpoint_ranks import TRAIN, Launch


@pytest.fixture
def launch() -> Iterator[Callable[..., Launch]]:
    """Start ranks of a program (default: the numpy example); whatever still runs at the end is killed."""
    started: list[Launch] = []

    def start(directory: Path, *args: str, size: int = 2, program: Path = TRAIN, **env: str) -> Launch:
        argv = [str(program), "--dir", str(directory), *args]
        started.append(Launch(directory, argv, size, env))
        return started[-1]

    yield start
    for each in started:
        each.end()
