"""What every Scheduler must do, as one pytest class; it runs against the model of Slurm and against real Slurm alike.

A subclass gives a world (``make_world``): the scheduler under test, and hands to break the cluster that it drives.
Every test wants twice ``width`` idle dynamic nodes with a free GPU each, and leaves them so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import pytest

from everstep.core.errors import Conflict, InvalidInput, NotFound, Refused
from everstep.core.scheduler_state import SchedulerSnapshot, SlurmJob
from everstep.core.slurm_text import version_tuple
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


Test = Callable[[SlurmWorld], Awaitable[None]]


class SchedulerContract:
    """Inherit, and override :meth:`make_world`."""

    def make_world(self) -> AbstractAsyncContextManager[SlurmWorld]:
        raise NotImplementedError

    def check(self, test: Test) -> None:
        async def whole() -> None:
            async with self.make_world() as world, _clean(world):
                await test(world)

        asyncio.run(whole())

    def test_snapshot_shows_nodes_jobs_and_version(self) -> None:
        self.check(_snapshot_shows_nodes_jobs_and_version)

    def test_drain_leaves_the_job_alone_and_resume_needs_our_reason(self) -> None:
        self.check(_drain_leaves_the_job_alone_and_resume_needs_our_reason)

    def test_somebody_elses_drain_is_not_ours_to_resume(self) -> None:
        self.check(_somebody_elses_drain_is_not_ours_to_resume)

    def test_requeue_waits_for_the_save_and_holds(self) -> None:
        self.check(_requeue_waits_for_the_save_and_holds)

    def test_release_starts_the_same_job_on_healthy_nodes_soon(self) -> None:
        self.check(_release_starts_the_same_job_on_healthy_nodes_soon)

    def test_the_guard_protects_the_next_run(self) -> None:
        self.check(_the_guard_protects_the_next_run)

    def test_a_job_that_forbids_requeue_is_requeued(self) -> None:
        self.check(_a_job_that_forbids_requeue_is_requeued)

    def test_a_deaf_job_is_killed_after_kill_wait(self) -> None:
        self.check(_a_deaf_job_is_killed_after_kill_wait)

    def test_a_dead_node_is_held_then_down(self) -> None:
        self.check(_a_dead_node_is_held_then_down)

    def test_all_nodes_dead_leaves_nothing_behind(self) -> None:
        self.check(_all_nodes_dead_leaves_nothing_behind)

    def test_an_expedited_job_is_held_and_released_too(self) -> None:
        self.check(_an_expedited_job_is_held_and_released_too)

    def test_a_job_that_ended_is_not_run_again(self) -> None:
        self.check(_a_job_that_ended_is_not_run_again)

    def test_clearing_what_is_not_stale_does_nothing(self) -> None:
        self.check(_clearing_what_is_not_stale_does_nothing)

    def test_forget_spares_busy_nodes(self) -> None:
        self.check(_forget_spares_busy_nodes)

    def test_unknown_things_are_told_apart(self) -> None:
        self.check(_unknown_things_are_told_apart)

    def test_a_running_job_can_be_told(self) -> None:
        self.check(_a_running_job_can_be_told)


@asynccontextmanager
async def _clean(world: SlurmWorld) -> AsyncIterator[None]:
    """Starts from idle nodes, and ends every job that the test left."""
    await _cancel_all(world)
    await _until(world, lambda s: len(_idle(s)) >= 2 * world.width, 60, "idle nodes")
    try:
        yield
    finally:
        await world.pause(0.6)  # a snapshot may be half a second old
        await _cancel_all(world)


async def _cancel_all(world: SlurmWorld) -> None:
    for job in (await _look(world)).jobs:
        if job.active or job.waiting:
            await world.cancel(job.id)


async def _snapshot_shows_nodes_jobs_and_version(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(name="a|b, c=d e"))
    snapshot = await _look(world)
    assert version_tuple(snapshot.version) >= (22, 5)
    assert snapshot.cluster == world.cluster
    found = snapshot.job(job.id)
    assert found is not None
    assert (found.name, found.state, found.restarts) == ("a|b, c=d e", "RUNNING", 0)
    assert found.num_nodes == found.gpus == len(found.nodes) == world.width
    assert found.requeue
    assert found.batch
    assert not found.held
    assert found.start_time is not None
    assert abs(found.start_time - world.now()) < 60
    for name in found.nodes:
        node = snapshot.node(name)
        assert node is not None
        assert node.responding
        assert not node.drained_for_good
        assert node.gres.startswith("gpu")
        assert snapshot.jobs_on(name) == (found,)


async def _drain_leaves_the_job_alone_and_resume_needs_our_reason(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec())
    node = job.nodes[0]
    for _ in range(2):
        await world.scheduler.drain(world.cluster, node, REASON)
    snapshot = await _look(world)
    assert _node_states(snapshot, node) >= {"DRAIN"}
    assert _reason(snapshot, node) == REASON
    assert _job(snapshot, job.id).state == "RUNNING"
    with pytest.raises(Refused):
        await world.scheduler.resume(world.cluster, node, "another tool:")
    for _ in range(2):
        await world.scheduler.resume(world.cluster, node, PREFIX)
    assert "DRAIN" not in _node_states(await _look(world), node)


async def _somebody_elses_drain_is_not_ours_to_resume(world: SlurmWorld) -> None:
    node = _idle(await _look(world))[0]
    await world.drain_by_hand(node, "disk swap: ask Ann")
    await world.scheduler.drain(world.cluster, node, REASON)
    assert _reason(await _look(world), node) == "disk swap: ask Ann"
    with pytest.raises(Refused):
        await world.scheduler.resume(world.cluster, node, PREFIX)
    await world.scheduler.resume(world.cluster, node, "disk swap:")


async def _requeue_waits_for_the_save_and_holds(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=3))
    asked_at = world.now()
    for _ in range(2):
        await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = _job(await _look(world), job.id)
    assert (seen.state, seen.restarts, seen.held) == ("COMPLETING", 1, True)
    seen = await _until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    assert 2.8 <= world.now() - asked_at <= 8, "not before the save, and soon after it"
    assert (seen.restarts, seen.nodes, seen.held) == (1, (), True)
    await world.pause(3)
    assert _job(await _look(world), job.id).waiting, "held until it is released"


async def _release_starts_the_same_job_on_healthy_nodes_soon(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=0.5))
    bad = job.nodes[0]
    await world.scheduler.drain(world.cluster, bad, REASON)
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await _until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    released_at = world.now()
    for _ in range(3):
        await world.scheduler.release(world.cluster, job.id, 1)
    again = await _until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
    assert world.now() - released_at < 12
    assert again.restarts == 1
    assert bad not in again.nodes
    assert not again.held
    await world.pause(3)
    assert _job(await _look(world), job.id).state == "RUNNING", "a launch on revoked credentials ends at once"
    await world.scheduler.resume(world.cluster, bad, PREFIX)


async def _the_guard_protects_the_next_run(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=0.2))
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await _until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    with pytest.raises(Conflict):
        await world.scheduler.release(world.cluster, job.id, 0)
    await world.scheduler.release(world.cluster, job.id, 1)
    await _until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
    for operation in (world.scheduler.requeue, world.scheduler.hold, world.scheduler.clear_stale_allocation):
        with pytest.raises(Conflict):
            await operation(world.cluster, job.id, 0)
    seen = _job(await _look(world), job.id)
    assert (seen.state, seen.restarts, seen.held) == ("RUNNING", 1, False)


async def _a_job_that_forbids_requeue_is_requeued(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(requeue=False, save_seconds=0.2))
    assert not job.requeue
    await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = await _until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    assert (seen.restarts, seen.held) == (1, True)


async def _a_deaf_job_is_killed_after_kill_wait(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(heeds_sigterm=False))
    asked_at = world.now()
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await _until_job(world, job.id, lambda j: j.waiting, world.kill_wait + 30, "to be back in the queue")
    # slurmd looks for the exit every second at first, and every ten seconds after eleven.
    assert world.kill_wait - 1.5 <= world.now() - asked_at <= world.kill_wait + 15


async def _a_dead_node_is_held_then_down(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=2))
    dead = job.nodes[0]
    await world.power_off(dead)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        assert _job(await _look(world), job.id).held
        for _ in range(2):
            await world.scheduler.down(world.cluster, dead, REASON)
        seen = await _until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be requeued by Slurm")
        assert (seen.restarts, seen.held) == (1, True)
        assert "DRAIN" in _node_states(await _look(world), dead)
        await world.scheduler.release(world.cluster, job.id, 1)
        again = await _until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert dead not in again.nodes
    finally:
        await _revive(world, dead)


async def _all_nodes_dead_leaves_nothing_behind(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=2))
    for node in job.nodes:
        await world.power_off(node)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        for node in job.nodes:
            await world.scheduler.down(world.cluster, node, REASON)
        seen = await _until_job(world, job.id, lambda j: j.waiting, 20, "to be requeued by Slurm")
        if seen.nodes:  # the bug of Slurm before 24.11.1
            with pytest.raises(Conflict):
                await world.scheduler.release(world.cluster, job.id, seen.restarts)
            for _ in range(2):
                await world.scheduler.clear_stale_allocation(world.cluster, job.id, seen.restarts)
            seen = await _until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be clear")
        assert seen.held
        await world.scheduler.release(world.cluster, job.id, seen.restarts)
        again = await _until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert not set(again.nodes) & set(job.nodes)
        await world.pause(3)
        snapshot = await _look(world)
        assert _job(snapshot, job.id).state == "RUNNING"
        used = [snapshot.node(node) for node in job.nodes]
        assert all(n is None or not n.gres_used.startswith("gpu:1") for n in used), "no GPU may stay counted as used"
    finally:
        for node in job.nodes:
            await _revive(world, node)


async def _an_expedited_job_is_held_and_released_too(world: SlurmWorld) -> None:
    try:
        job = await _running(world, JobSpec(expedite=True, save_seconds=2))
    except Refused as error:
        pytest.skip(f"this Slurm does not expedite requeues: {error}")
    dead = job.nodes[0]
    await world.power_off(dead)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        await world.scheduler.down(world.cluster, dead, REASON)
        seen = await _until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be requeued by Slurm")
        assert (seen.restarts, seen.held) == (1, True)
        await world.scheduler.release(world.cluster, job.id, 1)
        again = await _until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert dead not in again.nodes
    finally:
        await _revive(world, dead)


async def _a_job_that_ended_is_not_run_again(world: SlurmWorld) -> None:
    done = await _running(world, JobSpec(total_steps=10), nodes=1)
    cancelled = await _running(world, JobSpec(save_seconds=0), nodes=1)
    await world.cancel(cancelled.id)
    for job in (done.id, cancelled.id):
        await _until_job(world, job, lambda j: j.state in {"COMPLETED", "CANCELLED"}, 20, "to end")
        with pytest.raises(Refused):
            await world.scheduler.requeue(world.cluster, job, 0)
        with pytest.raises(Conflict):
            await world.scheduler.release(world.cluster, job, 0)


async def _clearing_what_is_not_stale_does_nothing(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=0.2))
    await world.scheduler.clear_stale_allocation(world.cluster, job.id, 0)
    assert _job(await _look(world), job.id) == job
    await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = await _until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    await world.scheduler.clear_stale_allocation(world.cluster, job.id, 1)
    assert _job(await _look(world), job.id).restarts == seen.restarts


async def _forget_spares_busy_nodes(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec(save_seconds=0.2))
    node = job.nodes[0]
    with pytest.raises(Conflict):
        await world.scheduler.forget(world.cluster, node)
    await world.cancel(job.id)
    await _until(world, lambda s: node in _idle(s), 30, "the node to be idle")
    for _ in range(2):
        await world.scheduler.forget(world.cluster, node)
    assert (await _look(world)).node(node) is None
    await world.power_off(node)
    await world.power_on(node)
    await _until(world, lambda s: node in _idle(s), 30, "the node to register again")


async def _unknown_things_are_told_apart(world: SlurmWorld) -> None:
    port, cluster = world.scheduler, world.cluster
    for operation in (port.requeue, port.hold, port.release, port.clear_stale_allocation):
        with pytest.raises(NotFound):
            await operation(cluster, "99999", 0)
    with pytest.raises(NotFound):
        await port.tell(cluster, "99999", "hello")
    for on_node in (port.drain, port.down, port.resume):
        with pytest.raises(NotFound):
            await on_node(cluster, "no-such-node", REASON)
        with pytest.raises(InvalidInput):
            await on_node(cluster, "gpu-[1-9]", REASON)
        with pytest.raises(InvalidInput):
            await on_node(cluster, "no-such-node", "two\nlines")
    await port.forget(cluster, "no-such-node")
    with pytest.raises(NotFound):
        await port.drain("no/such", "gpu-1", REASON)
    assert (await port.progress(cluster, "99999", "root")).attempts == ()


async def _a_running_job_can_be_told(world: SlurmWorld) -> None:
    job = await _running(world, JobSpec())
    await world.scheduler.tell(world.cluster, job.id, "everstep: node gpu-1 lost a GPU; your job saves and goes on")
    assert _job(await _look(world), job.id).state == "RUNNING"


async def _running(world: SlurmWorld, spec: JobSpec, nodes: int | None = None) -> SlurmJob:
    job = await world.submit(replace(spec, nodes=nodes or world.width))
    await _until_job(world, job, lambda j: j.state == "RUNNING", 20, "to run")
    await world.pause(1)  # a task that has not set its trap yet would die of the first signal
    return _job(await _look(world), job)


async def _revive(world: SlurmWorld, node: str) -> None:
    await world.power_on(node)
    await _until(world, lambda s: _answers(s, node), 60, f"{node} to boot")
    await world.scheduler.resume(world.cluster, node, PREFIX)
    await _until(world, lambda s: node in _idle(s), 60, f"{node} to be idle again")


def _answers(snapshot: SchedulerSnapshot, node: str) -> bool:
    """Registered again, in service or not."""
    states = _node_states(snapshot, node)
    return "DOWN" in states or "NOT_RESPONDING" not in states


async def _look(world: SlurmWorld) -> SchedulerSnapshot:
    return next(s for s in await world.scheduler.snapshots() if s.cluster == world.cluster)


async def _until(
    world: SlurmWorld, condition: Callable[[SchedulerSnapshot], bool], within: float, what: str
) -> SchedulerSnapshot:
    deadline = world.now() + within
    while True:
        snapshot = await _look(world)
        if condition(snapshot):
            return snapshot
        assert world.now() < deadline, f"waited {within:g} s for {what}: {snapshot}"
        await world.pause(0.25)


async def _until_job(
    world: SlurmWorld, job: str, condition: Callable[[SlurmJob], bool], within: float, what: str
) -> SlurmJob:
    def met(snapshot: SchedulerSnapshot) -> bool:
        found = snapshot.job(job)  # a snapshot may be half a second old, and the job younger
        return found is not None and condition(found)

    snapshot = await _until(world, met, within, f"job {job} {what}")
    return _job(snapshot, job)


def _job(snapshot: SchedulerSnapshot, job: str) -> SlurmJob:
    found = snapshot.job(job)
    assert found is not None, f"Slurm forgot job {job}"
    return found


def _node_states(snapshot: SchedulerSnapshot, node: str) -> frozenset[str]:
    found = snapshot.node(node)
    assert found is not None, f"Slurm forgot node {node}"
    return found.states


def _reason(snapshot: SchedulerSnapshot, node: str) -> str:
    found = snapshot.node(node)
    return found.reason if found else ""


def _idle(snapshot: SchedulerSnapshot) -> list[str]:
    busy = {"DRAIN", "DOWN", "NOT_RESPONDING", "COMPLETING"}
    return [n.name for n in snapshot.nodes if "IDLE" in n.states and not n.states & busy]
