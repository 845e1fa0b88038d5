"""What every Scheduler must do, as one pytest class; it runs against the model of Slurm and against real Slurm alike.

A subclass gives a world (``make_world``): the scheduler under test, and hands to break the cluster that it drives.
Every test wants twice ``width`` idle dynamic nodes with a free GPU each, and leaves them so.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from everstep.core.errors import Conflict, InvalidInput, NotFound, Refused
from everstep.core.slurm_text import version_tuple
from everstep.testing.slurm_training import JobSpec
from everstep.testing.slurm_world import (
    PREFIX,
    REASON,
    SlurmWorld,
    clean,
    idle_nodes,
    job_in,
    look,
    reason_of,
    revive,
    running,
    states_of,
    until,
    until_job,
)

Test = Callable[[SlurmWorld], Awaitable[None]]


class SchedulerContract(ABC):
    """Inherit, and override :meth:`make_world`."""

    @abstractmethod
    def make_world(self) -> AbstractAsyncContextManager[SlurmWorld]: ...

    def check(self, test: Test) -> None:
        async def whole() -> None:
            async with self.make_world() as world, clean(world):
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

    def test_a_released_job_starts_once_there_are_nodes(self) -> None:
        self.check(_a_released_job_starts_once_there_are_nodes)

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

    def test_a_cancelled_job_is_not_run_again_while_it_still_saves(self) -> None:
        self.check(_a_cancelled_job_is_not_run_again_while_it_still_saves)

    def test_clearing_what_is_not_stale_does_nothing(self) -> None:
        self.check(_clearing_what_is_not_stale_does_nothing)

    def test_forget_spares_busy_nodes(self) -> None:
        self.check(_forget_spares_busy_nodes)

    def test_unknown_things_are_told_apart(self) -> None:
        self.check(_unknown_things_are_told_apart)

    def test_a_running_job_can_be_told(self) -> None:
        self.check(_a_running_job_can_be_told)


async def _snapshot_shows_nodes_jobs_and_version(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(name="a|b, c=d e"))
    snapshot = await look(world)
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
    job = await running(world, JobSpec())
    node = job.nodes[0]
    for _ in range(2):
        await world.scheduler.drain(world.cluster, node, REASON)
    snapshot = await look(world)
    assert states_of(snapshot, node) >= {"DRAIN"}
    assert reason_of(snapshot, node) == REASON
    assert job_in(snapshot, job.id).state == "RUNNING"
    with pytest.raises(Refused):
        await world.scheduler.resume(world.cluster, node, "another tool:")
    for _ in range(2):
        await world.scheduler.resume(world.cluster, node, PREFIX)
    assert "DRAIN" not in states_of(await look(world), node)


async def _somebody_elses_drain_is_not_ours_to_resume(world: SlurmWorld) -> None:
    node = idle_nodes(await look(world))[0]
    await world.drain_by_hand(node, "disk swap: ask Ann")
    await world.scheduler.drain(world.cluster, node, REASON)
    assert reason_of(await look(world), node) == "disk swap: ask Ann"
    with pytest.raises(Refused):
        await world.scheduler.resume(world.cluster, node, PREFIX)
    await world.scheduler.resume(world.cluster, node, "disk swap:")


async def _requeue_waits_for_the_save_and_holds(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=3))
    asked_at = world.now()
    for _ in range(2):
        await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = job_in(await look(world), job.id)
    assert (seen.state, seen.restarts, seen.held) == ("COMPLETING", 1, True)
    seen = await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    assert 2.8 <= world.now() - asked_at <= 8, "not before the save, and soon after it"
    assert (seen.restarts, seen.nodes, seen.held) == (1, (), True)
    await world.pause(3)
    assert job_in(await look(world), job.id).waiting, "held until it is released"


async def _release_starts_the_same_job_on_healthy_nodes_soon(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=0.5))
    bad = job.nodes[0]
    await world.scheduler.drain(world.cluster, bad, REASON)
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    released_at = world.now()
    for _ in range(3):
        await world.scheduler.release(world.cluster, job.id, 1)
    again = await until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
    assert world.now() - released_at < 12
    assert again.restarts == 1
    assert bad not in again.nodes
    assert not again.held
    await world.pause(3)
    assert job_in(await look(world), job.id).state == "RUNNING", "a launch on revoked credentials ends at once"
    await world.scheduler.resume(world.cluster, bad, PREFIX)


async def _a_released_job_starts_once_there_are_nodes(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=0.2))
    everywhere = [node.name for node in (await look(world)).nodes]
    try:
        for node in everywhere:
            await world.scheduler.drain(world.cluster, node, REASON)
        await world.scheduler.requeue(world.cluster, job.id, 0)
        await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
        await world.scheduler.release(world.cluster, job.id, 1)
        await world.pause(3)
        seen = job_in(await look(world), job.id)
        assert (seen.waiting, seen.held) == (True, False), "there is no node for it"
    finally:
        for node in everywhere:
            await world.scheduler.resume(world.cluster, node, PREFIX)
    await world.scheduler.release(world.cluster, job.id, 1)  # now again means: look at your queue
    await until_job(world, job.id, lambda j: j.state == "RUNNING", 12, "to run again")


async def _the_guard_protects_the_next_run(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=0.2))
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    with pytest.raises(Conflict):
        await world.scheduler.release(world.cluster, job.id, 0)
    await world.scheduler.release(world.cluster, job.id, 1)
    await until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
    for operation in (world.scheduler.requeue, world.scheduler.hold, world.scheduler.clear_stale_allocation):
        with pytest.raises(Conflict):
            await operation(world.cluster, job.id, 0)
    seen = job_in(await look(world), job.id)
    assert (seen.state, seen.restarts, seen.held) == ("RUNNING", 1, False)


async def _a_job_that_forbids_requeue_is_requeued(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(requeue=False, save_seconds=0.2))
    assert not job.requeue
    await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    assert (seen.restarts, seen.held) == (1, True)


async def _a_deaf_job_is_killed_after_kill_wait(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(heeds_sigterm=False))
    asked_at = world.now()
    await world.scheduler.requeue(world.cluster, job.id, 0)
    await until_job(world, job.id, lambda j: j.waiting, world.kill_wait + 30, "to be back in the queue")
    # slurmd looks for the exit every second at first, and every ten seconds after eleven.
    assert world.kill_wait - 1.5 <= world.now() - asked_at <= world.kill_wait + 15


async def _a_dead_node_is_held_then_down(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=2))
    dead = job.nodes[0]
    await world.power_off(dead)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        assert job_in(await look(world), job.id).held
        for _ in range(2):
            await world.scheduler.down(world.cluster, dead, REASON)
        seen = await until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be requeued by Slurm")
        assert (seen.restarts, seen.held) == (1, True)
        assert "DRAIN" in states_of(await look(world), dead)
        await world.scheduler.release(world.cluster, job.id, 1)
        again = await until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert dead not in again.nodes
    finally:
        await revive(world, dead)


async def _all_nodes_dead_leaves_nothing_behind(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=2))
    for node in job.nodes:
        await world.power_off(node)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        for node in job.nodes:
            await world.scheduler.down(world.cluster, node, REASON)
        seen = await until_job(world, job.id, lambda j: j.waiting, 20, "to be requeued by Slurm")
        if seen.nodes:  # the bug of Slurm before 24.11.1
            with pytest.raises(Conflict):
                await world.scheduler.release(world.cluster, job.id, seen.restarts)
            for _ in range(2):
                await world.scheduler.clear_stale_allocation(world.cluster, job.id, seen.restarts)
            seen = await until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be clear")
        assert seen.held
        await world.scheduler.release(world.cluster, job.id, seen.restarts)
        again = await until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert not set(again.nodes) & set(job.nodes)
        await world.pause(3)
        snapshot = await look(world)
        assert job_in(snapshot, job.id).state == "RUNNING"
        used = [snapshot.node(node) for node in job.nodes]
        assert all(n is None or not n.gres_used.startswith("gpu:1") for n in used), "no GPU may stay counted as used"
    finally:
        for node in job.nodes:
            await revive(world, node)


async def _an_expedited_job_is_held_and_released_too(world: SlurmWorld) -> None:
    if version_tuple((await look(world)).version) < (26, 5):
        pytest.skip("expedited requeues exist since Slurm 26.05")
    try:
        job = await running(world, JobSpec(expedite=True, save_seconds=2))
    except Refused as error:
        pytest.skip(f"this Slurm does not expedite requeues: {error}")
    dead = job.nodes[0]
    await world.power_off(dead)
    try:
        await world.scheduler.hold(world.cluster, job.id, 0)
        await world.scheduler.down(world.cluster, dead, REASON)
        seen = await until_job(world, job.id, lambda j: j.waiting and not j.nodes, 20, "to be requeued by Slurm")
        assert (seen.restarts, seen.held) == (1, True)
        await world.scheduler.release(world.cluster, job.id, 1)
        again = await until_job(world, job.id, lambda j: j.state == "RUNNING", 15, "to run again")
        assert dead not in again.nodes
    finally:
        await revive(world, dead)


async def _a_job_that_ended_is_not_run_again(world: SlurmWorld) -> None:
    done = await running(world, JobSpec(total_steps=10), nodes=1)
    cancelled = await running(world, JobSpec(save_seconds=0), nodes=1)
    await world.cancel(cancelled.id)
    for job in (done.id, cancelled.id):
        await until_job(world, job, lambda j: j.state in {"COMPLETED", "CANCELLED"}, 20, "to end")
        with pytest.raises(Refused):
            await world.scheduler.requeue(world.cluster, job, 0)
        with pytest.raises(Conflict):
            await world.scheduler.release(world.cluster, job, 0)


async def _a_cancelled_job_is_not_run_again_while_it_still_saves(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=4))
    await world.cancel(job.id)
    await until_job(world, job.id, lambda j: j.state == "COMPLETING", 5, "to wind down")
    with pytest.raises(Conflict):
        await world.scheduler.requeue(world.cluster, job.id, 0)
    await until_job(world, job.id, lambda j: j.state == "CANCELLED", 20, "to be cancelled")


async def _clearing_what_is_not_stale_does_nothing(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=0.2))
    await world.scheduler.clear_stale_allocation(world.cluster, job.id, 0)
    assert job_in(await look(world), job.id) == job
    await world.scheduler.requeue(world.cluster, job.id, 0)
    seen = await until_job(world, job.id, lambda j: j.waiting, 15, "to be back in the queue")
    await world.scheduler.clear_stale_allocation(world.cluster, job.id, 1)
    assert job_in(await look(world), job.id).restarts == seen.restarts


async def _forget_spares_busy_nodes(world: SlurmWorld) -> None:
    job = await running(world, JobSpec(save_seconds=0.2))
    node = job.nodes[0]
    with pytest.raises(Conflict):
        await world.scheduler.forget(world.cluster, node)
    await world.cancel(job.id)
    await until(world, lambda s: node in idle_nodes(s), 30, "the node to be idle")
    for _ in range(2):
        await world.scheduler.forget(world.cluster, node)
    assert (await look(world)).node(node) is None
    await world.power_off(node)
    await world.power_on(node)
    await until(world, lambda s: node in idle_nodes(s), 30, "the node to register again")


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
    job = await running(world, JobSpec())
    await world.scheduler.tell(world.cluster, job.id, "everstep: node gpu-1 lost a GPU; your job saves and goes on")
    assert job_in(await look(world), job.id).state == "RUNNING"
