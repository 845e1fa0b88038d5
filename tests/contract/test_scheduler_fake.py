"""The Scheduler contract on the modelled Slurm, for every release whose behaviour differs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from everstep.testing.scheduler import FakeScheduler
from everstep.testing.scheduler_contract import SchedulerContract, SlurmWorld
from everstep.testing.slurm_model import SlurmModel
from everstep.testing.slurm_training import JobSpec


class ModelWorld:
    """A modelled cluster of five nodes; pausing moves its clock, and costs no time."""

    cluster = "slurm/main"
    kill_wait = 120.0

    def __init__(self, version: str) -> None:
        self.time = 1_800_000_000.0
        self.model = SlurmModel(self.now, self.cluster, version=version, kill_wait=self.kill_wait)
        self.model.add_nodes("n1", "n2", "n3", "n4", "n5")
        self.scheduler = FakeScheduler(self.model, sleep=self.pause)

    def now(self) -> float:
        return self.time

    async def pause(self, seconds: float) -> None:
        self.time += seconds

    async def submit(self, spec: JobSpec) -> str:
        return self.model.submit(spec)

    async def cancel(self, job: str) -> None:
        self.model.cancel(job)

    async def power_off(self, node: str) -> None:
        self.model.power_off(node)

    async def power_on(self, node: str) -> None:
        self.model.power_on(node)

    async def drain_by_hand(self, node: str, reason: str) -> None:
        self.model.update_node(node, "DRAIN", reason)


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
class TestModelledSlurm(SchedulerContract):
    version: str

    @pytest.fixture(autouse=True)
    def _version(self, version: str) -> None:
        self.version = version

    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[SlurmWorld]:
        yield ModelWorld(self.version)
