"""A Slurm cluster that cannot be asked: it stops the heals of the nodes that it may hold, and of no others."""

from __future__ import annotations

import asyncio

from everstep.core.cluster_state import POOL_LABEL, SLURM_CLUSTER_LABEL
from everstep.core.remediation_status import Outcome
from everstep.testing.slurm_model import SlurmModel

from .test_heals import SHORT, broken, heal


def test_a_silent_slurm_stops_the_heals_of_the_nodes_that_it_may_hold_and_of_no_others() -> None:
    scenario = broken(policy=SHORT)
    other = SlurmModel(scenario.clock.now, "slurm/other")
    other.reachable = False
    scenario.scheduler.add(other, {POOL_LABEL: "inference"})
    assert heal(scenario).status.outcome is Outcome.SUCCEEDED
    shared = broken(policy=SHORT)
    shared.scheduler.add(other, {POOL_LABEL: "inference"}, {POOL_LABEL: "train"})
    record = heal(shared)
    assert record.status.outcome is Outcome.ESCALATED
    assert not shared.fleet.operations


def test_a_silent_slurm_stops_the_heal_of_a_node_that_it_had_whatever_its_labels_say() -> None:
    scenario = broken(policy=SHORT)
    other = SlurmModel(scenario.clock.now, "slurm/other")
    scenario.scheduler.add(other, {POOL_LABEL: "inference"})
    other.add_nodes("gpu-1")
    asyncio.run(scenario.scheduler.snapshots())
    other.reachable = False
    assert heal(scenario).status.outcome is Outcome.ESCALATED


def test_a_silent_slurm_whose_pod_is_on_the_node_stops_its_heal() -> None:
    scenario = broken(policy=SHORT)
    other = SlurmModel(scenario.clock.now, "default/other")
    other.reachable = False
    scenario.scheduler.add(other, {POOL_LABEL: "inference"})
    scenario.fleet.add_pod("other-slurmd", "gpu-1", labels={SLURM_CLUSTER_LABEL: "other"})
    assert heal(scenario).status.outcome is Outcome.ESCALATED
