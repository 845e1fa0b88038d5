"""The Scheduler contract on the modelled Slurm, for every release whose behaviour differs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from everstep.testing.model_world import ModelWorld
from everstep.testing.scheduler_contract import SchedulerContract
from everstep.testing.slurm_world import SlurmWorld


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
class TestModelledSlurm(SchedulerContract):
    version: str

    @pytest.fixture(autouse=True)
    def _version(self, version: str) -> None:
        self.version = version

    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[SlurmWorld]:
        yield ModelWorld(self.version)
