"""The fakes of the Kubernetes ports, held to the same contract as the real adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from everstep.core.cluster_state import SPARE_LABEL
from everstep.core.health import NodeReport
from everstep.core.policy import Policy
from everstep.testing.cluster import FakeCluster
from everstep.testing.cluster_contract import KubernetesContract
from everstep.testing.fleet import Fleet
from everstep.testing.kubernetes_world import KubernetesWorld
from everstep.testing.slurm_model import SlurmModel
from everstep.testing.storage import FakeLease, FakeRemediations
from everstep.testing.virtual_clock import VirtualClock


@dataclass
class FakeWorld:
    """Satisfies :class:`everstep.testing.kubernetes_world.KubernetesWorld`; its time is virtual."""

    clock: VirtualClock
    fleet: Fleet
    cluster: FakeCluster
    remediations: FakeRemediations
    the_lease: FakeLease
    prefix: str = "fake-"

    def lease(self, name: str) -> FakeLease:
        return self.the_lease

    async def pause(self, seconds: float) -> None:
        self.clock.move_to(self.clock.time + seconds)

    async def add_node(self, name: str, labels: Mapping[str, str], taints: tuple[str, ...] = ()) -> None:
        node = self.fleet.add_node(name, spare=SPARE_LABEL in labels)
        node.labels, node.taints = dict(labels), taints

    async def add_pod(self, node: str, name: str) -> None:
        self.fleet.add_pod(name, node)

    async def report(self, report: NodeReport) -> None:
        node = self.fleet.nodes[report.node]
        node.boot, node.faults = report.boot_id, report.faults


class TestFakes(KubernetesContract):
    @asynccontextmanager
    async def make_world(self) -> AsyncIterator[KubernetesWorld]:
        clock = VirtualClock()
        fleet = Fleet(clock, SlurmModel(clock.now))
        remediations = FakeRemediations(clock.now, Policy())
        yield FakeWorld(clock, fleet, FakeCluster(fleet), remediations, FakeLease(clock.now))
