"""The modelled Slurm in the hands of a contract test: pausing moves its clock, and costs no time."""

from __future__ import annotations

from everstep.core.errors import Refused
from everstep.core.slurm_text import version_tuple
from everstep.ports import Scheduler
from everstep.testing.scheduler import FakeScheduler
from everstep.testing.slurm_model import SlurmModel
from everstep.testing.slurm_training import JobSpec


class ModelWorld:
    """Implements :class:`everstep.testing.slurm_world.SlurmWorld` with five nodes of one GPU."""

    cluster = "slurm/main"
    kill_wait = 120.0
    width = 2

    def __init__(self, version: str = "24.11.5") -> None:
        self.time = 1_800_000_000.0
        self.model = SlurmModel(self.now, self.cluster, version=version, kill_wait=self.kill_wait)
        self.model.add_nodes("n1", "n2", "n3", "n4", "n5")
        self.scheduler: Scheduler = FakeScheduler(self.model, sleep=self.pause)

    def now(self) -> float:
        return self.time

    async def pause(self, seconds: float) -> None:
        self.time += seconds

    async def submit(self, spec: JobSpec) -> str:
        if spec.expedite and version_tuple(self.model.version) < (26, 5):
            raise Refused("sbatch: unrecognized option '--requeue=expedite'")
        return self.model.submit(spec)

    async def cancel(self, job: str) -> None:
        self.model.cancel(job)

    async def power_off(self, node: str) -> None:
        self.model.power_off(node)

    async def power_on(self, node: str) -> None:
        self.model.power_on(node)

    async def drain_by_hand(self, node: str, reason: str) -> None:
        self.model.update_node(node, "DRAIN", reason)
