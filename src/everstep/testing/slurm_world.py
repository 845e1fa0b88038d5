"""A Slurm cluster in the hands of a test, and how a test waits for what it wants to see there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from everstep.core.scheduler_state import SchedulerSnapshot, SlurmJob
from everstep.ports import Scheduler
from everstep.testing.slurm_training import JobSpec

REASON = "everstep: contract test"
PREFIX = "everstep:"


class SlurmWorld(Protocol):
    """A Slurm cluster in the hands of a test."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def cluster(self) -> str:
        """``namespace/name``."""
        ...

    @property
    def kill_wait(self) -> float:
        """Slurm's KillWait, seconds."""
        ...

    @property
    def width(self) -> int:
        """Nodes of each job; with one, the tests of a dead node and of all nodes dead are the same."""
        ...

    def now(self) -> float:
        """Seconds of the world's clock."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def submit(self, spec: JobSpec) -> str:
        """The job's id. Raises Refused for a job that this Slurm does not know how to run."""
        ...

    async def cancel(self, job: str) -> None: ...

    async def power_off(self, node: str) -> None:
        """The node dies at once, without a word to anybody."""
        ...

    async def power_on(self, node: str) -> None:
        """The node comes back and registers."""
        ...

    async def drain_by_hand(self, node: str, reason: str) -> None:
        """What an administrator does."""
        ...


@asynccontextmanager
async def clean(world: SlurmWorld) -> AsyncIterator[None]:
    """Starts from idle nodes, and ends every job that the test left."""
    await cancel_all(world)
    await until(world, lambda s: len(idle_nodes(s)) >= 2 * world.width, 60, "idle nodes")
    try:
        yield
    finally:
        await world.pause(0.6)  # a snapshot may be half a second old
        await cancel_all(world)


async def cancel_all(world: SlurmWorld) -> None:
    for job in (await look(world)).jobs:
        if job.active or job.waiting:
            await world.cancel(job.id)


async def running(world: SlurmWorld, spec: JobSpec, nodes: int | None = None) -> SlurmJob:
    """Submits a job of the world's width (or of ``nodes``), and returns once its task has set its trap."""
    job = await world.submit(replace(spec, nodes=nodes or world.width))
    await until_job(world, job, lambda j: j.state == "RUNNING", 20, "to run")
    await world.pause(1)  # a task that has not set its trap yet would die of the first signal
    return job_in(await look(world), job)


async def revive(world: SlurmWorld, node: str) -> None:
    """Gives a node its power back, and waits until it is idle and in service."""
    await world.power_on(node)
    await until(world, lambda s: answers(s, node), 60, f"{node} to boot")
    await world.scheduler.resume(world.cluster, node, PREFIX)
    await until(world, lambda s: node in idle_nodes(s), 60, f"{node} to be idle again")


def answers(snapshot: SchedulerSnapshot, node: str) -> bool:
    """Registered again, in service or not."""
    states = states_of(snapshot, node)
    return "DOWN" in states or "NOT_RESPONDING" not in states


async def look(world: SlurmWorld) -> SchedulerSnapshot:
    """What the scheduler under test shows now."""
    look = await world.scheduler.snapshots()
    assert not look.silent, f"Slurm cannot be asked: {look.silent}"
    return next(s for s in look.answered if s.cluster == world.cluster)


async def until(
    world: SlurmWorld, condition: Callable[[SchedulerSnapshot], bool], within: float, what: str
) -> SchedulerSnapshot:
    """Looks until the condition holds; fails after ``within`` seconds of the world's clock."""
    deadline = world.now() + within
    while True:
        snapshot = await look(world)
        if condition(snapshot):
            return snapshot
        assert world.now() < deadline, f"waited {within:g} s for {what}: {snapshot}"
        await world.pause(0.25)


async def until_job(
    world: SlurmWorld, job: str, condition: Callable[[SlurmJob], bool], within: float, what: str
) -> SlurmJob:
    """Looks until the job meets the condition."""

    def met(snapshot: SchedulerSnapshot) -> bool:
        found = snapshot.job(job)  # a snapshot may be half a second old, and the job younger
        return found is not None and condition(found)

    snapshot = await until(world, met, within, f"job {job} {what}")
    return job_in(snapshot, job)


def job_in(snapshot: SchedulerSnapshot, job: str) -> SlurmJob:
    """The job, which must be there."""
    found = snapshot.job(job)
    assert found is not None, f"Slurm forgot job {job}"
    return found


def states_of(snapshot: SchedulerSnapshot, node: str) -> frozenset[str]:
    """States of a node, which must be there."""
    found = snapshot.node(node)
    assert found is not None, f"Slurm forgot node {node}"
    return found.states


def reason_of(snapshot: SchedulerSnapshot, node: str) -> str:
    found = snapshot.node(node)
    return found.reason if found else ""


def idle_nodes(snapshot: SchedulerSnapshot) -> list[str]:
    """Names of the nodes that could start work now."""
    busy = {"DRAIN", "DOWN", "NOT_RESPONDING", "COMPLETING"}
    return [n.name for n in snapshot.nodes if "IDLE" in n.states and not n.states & busy]
