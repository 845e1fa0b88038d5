"""The few things that Everstep does to Slurm. Each reads again right before it acts, and each may be repeated.

The order of the steps was measured on Slurm 22.05, 24.11 and 26.05; see ``docs/adr`` for the recipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from everstep.adapters.slurm.cli import Commands
from everstep.core.errors import Conflict, NotFound, Refused, RetryLater
from everstep.core.scheduler_state import SlurmNode
from everstep.core.slurm_text import JobRecord, relaunch_needs_pause

# States that may be requeued while the restart count is still the expected one. A job that ended by itself
# (COMPLETED, CANCELLED, TIMEOUT, ...) is never run again: nobody asked for that. The same count and COMPLETING means
# that it is just doing so; how it ends is not known yet.
_REQUEUEABLE = frozenset(
    {"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING"}
    | {"FAILED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "LAUNCH_FAILED"}
)
# Slurm revokes credentials by the second: a start in the second of the kill fails on old versions.
RELAUNCH_PAUSE_SECONDS = 2.0
# A cancelled job is briefly COMPLETING, and refuses the requeue until it is not.
_CANCEL_TRIES = 20
_CANCEL_PAUSE_SECONDS = 0.25


class Reads(Protocol):
    """The reads that operations need (:class:`everstep.adapters.slurm.reads.SlurmReads`, or a model in tests)."""

    async def version(self) -> str: ...

    async def job(self, job_id: str) -> JobRecord: ...

    async def node(self, name: str) -> SlurmNode: ...


@dataclass(frozen=True, slots=True)
class SlurmOperations:
    """Typed operations on one Slurm cluster. Arguments are validated before (``everstep.core.slurm_names``).

    Every method raises RetryLater (Unreachable, Conflict) or FixTheRequest (NotFound, Refused).
    """

    commands: Commands
    reads: Reads
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def drain(self, node: str, reason: str) -> None:
        """No new work on the node. A node that somebody else drained keeps that reason: it is not ours to resume."""
        seen = await self.reads.node(node)
        if "DRAIN" in seen.states and (seen.reason == reason or not _same_origin(seen.reason, reason)):
            return
        await self._update_node(node, "DRAIN", reason)

    async def down(self, node: str, reason: str) -> None:
        """DRAIN, then DOWN: DOWN alone bounces back to IDLE while slurmd answers, DRAIN stays."""
        await self.drain(node, reason)
        seen = await self.reads.node(node)
        if "DOWN" not in seen.states:
            # The last reason wins in Slurm; a drain of somebody else's stays recognisable.
            await self._update_node(node, "DOWN", reason if _same_origin(seen.reason, reason) else seen.reason)

    async def resume(self, node: str, reason_prefix: str) -> None:
        """Back to service, only while the reason is ours; a node that is in service already is fine."""
        seen = await self.reads.node(node)
        if _in_service(seen):
            return
        if not seen.reason.startswith(reason_prefix):
            raise Refused(f"node {node} was taken out of service by somebody else: {seen.reason or 'no reason given'}")
        try:
            await self.commands.run("scontrol", "update", f"nodename={node}", "state=RESUME")
        except Conflict:  # "Invalid node state": somebody was faster, or it cannot be resumed now
            if not _in_service(await self.reads.node(node)):
                raise

    async def forget(self, node: str) -> None:
        """Deletes a dynamic node's record; a node that Slurm does not know is fine, a busy one is a Conflict."""
        with contextlib.suppress(NotFound):
            if "DYNAMIC_NORM" not in (await self.reads.node(node)).states:
                raise Refused(f"node {node} stands in slurm.conf; only dynamic nodes can be forgotten")
            await self.commands.run("scontrol", "delete", f"nodename={node}")

    async def requeue(self, job_id: str, restarts: int) -> None:
        """Requeues held. Every process gets SIGTERM at once, and SIGKILL after Slurm's KillWait."""
        record = await self.reads.job(job_id)
        job = record.job
        if job.restarts == restarts + 1 and (job.waiting or job.state == "COMPLETING"):
            return
        _guard(record, restarts)
        if job.waiting:
            raise Conflict(f"job {job_id} waits in the queue ({job.state}); there is nothing to requeue")
        if not job.batch:
            raise Refused(f"job {job_id} is interactive (salloc or srun); Slurm cannot requeue it")
        if job.state in {"COMPLETING", "STAGE_OUT"}:
            raise Conflict(f"job {job_id} is ending by itself")
        if job.state not in _REQUEUEABLE:
            raise Refused(f"job {job_id} has ended by itself ({job.state}); it is not run again")
        if not job.requeue and job.active:
            await self.commands.run("scontrol", "update", f"jobid={record.target}", "Requeue=1")
        await self._unless_already(
            self.commands.run("scontrol", "requeuehold", record.target),
            job_id,
            lambda r: r.job.restarts > restarts,
        )

    async def hold(self, job_id: str, restarts: int) -> None:
        """Holds a job while it runs or waits; it stays held when Slurm requeues it because a node went down."""
        record = await self.reads.job(job_id)
        _guard(record, restarts)
        if record.job.held:
            return
        if not (record.job.active or record.job.waiting):
            raise Conflict(f"job {job_id} has ended ({record.job.state})")
        if record.job.active and not record.job.requeue and record.job.batch:
            # Without this Slurm would end the job (NODE_FAIL) instead of requeueing it when its node goes down.
            await self.commands.run("scontrol", "update", f"jobid={record.target}", "Requeue=1")
        await self.commands.run("scontrol", "hold", record.target)

    async def clear_stale_allocation(self, job_id: str, restarts: int) -> None:
        """Hold, cancel, requeue a PENDING job that still has nodes: started like that it fails and leaks its GPUs."""
        record = await self.reads.job(job_id)
        if record.job.restarts == restarts + 1 and not record.job.nodes:
            return
        _guard(record, restarts)
        half_done = record.job.state == "CANCELLED" and record.priority == 0
        if not half_done:
            if not (record.job.waiting and record.job.nodes):
                return
            await self.commands.run("scontrol", "hold", record.target)
            await self.commands.run("scancel", record.target)
        await self._requeue_cancelled(record, restarts)

    async def _requeue_cancelled(self, record: JobRecord, restarts: int) -> None:
        job_id = record.job.id
        for _ in range(_CANCEL_TRIES):
            seen = await self.reads.job(job_id)
            if seen.job.restarts > restarts or (seen.job.waiting and not seen.job.nodes):
                return
            try:
                await self.commands.run("scontrol", "requeuehold", record.target)
            except Conflict:
                await self.sleep(_CANCEL_PAUSE_SECONDS)
        raise RetryLater(f"job {job_id} was cancelled to clear its stale allocation and is not requeued yet")

    async def release(self, job_id: str, restarts: int) -> None:
        """Takes the hold off and starts the job now instead of after Slurm's two minutes; once, not repeatedly.

        ``restarts`` is the count after the requeue. A job that runs already is fine.
        """
        record = await self.reads.job(job_id)
        _guard(record, restarts)
        if record.job.active and record.job.state != "COMPLETING":
            return
        if not record.job.waiting:
            raise Conflict(f"job {job_id} does not wait in the queue ({record.job.state})")
        if record.job.nodes:
            raise Conflict(f"job {job_id} waits with a stale allocation; clear it before the release")
        record = await self._past_relaunch_pause(record, restarts)
        if record.job.held:
            await self.commands.run("scontrol", "release", record.target)
        # Repeating StartTime=now on an eligible job would push it back each time.
        if record.job.held or record.waits_for_begin_time(self.now()):
            await self._unless_already(
                self.commands.run("scontrol", "update", f"jobid={record.target}", "StartTime=now"),
                job_id,
                lambda r: not r.job.waiting,
            )
        else:
            # It waits for nodes. A change that changes nothing makes Slurm look at its queue now, not at its next turn.
            await self.commands.run("scontrol", "update", f"jobid={record.target}", "Requeue=1")

    async def tell(self, job_id: str, message: str) -> None:
        """One line on the job's standard error; Refused when the job has no place for it."""
        record = await self.reads.job(job_id)
        await self.commands.run("scontrol", "notify", record.job.id, message)

    async def _past_relaunch_pause(self, record: JobRecord, restarts: int) -> JobRecord:
        """Slurm sets the submit time anew when a requeue completes, so it dates the kill."""
        if record.submitted_at is None or not relaunch_needs_pause(await self.reads.version()):
            return record
        pause = record.submitted_at + RELAUNCH_PAUSE_SECONDS - self.now()
        if not 0 < pause <= RELAUNCH_PAUSE_SECONDS:
            return record
        await self.sleep(pause)
        again = await self.reads.job(record.job.id)
        _guard(again, restarts)
        return again

    async def _update_node(self, node: str, state: str, reason: str) -> None:
        await self.commands.run("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}")

    async def _unless_already(self, command: Awaitable[str], job_id: str, done: Callable[[JobRecord], bool]) -> None:
        """Runs a command whose Conflict is fine when the job turns out to be where we wanted it."""
        try:
            await command
        except Conflict:
            if not done(await self.reads.job(job_id)):
                raise


def _guard(record: JobRecord, restarts: int) -> None:
    if record.job.restarts != restarts:
        raise Conflict(
            f"job {record.job.id} has {record.job.restarts} restarts, not {restarts}: look again before acting"
        )


def _in_service(node: SlurmNode) -> bool:
    return not node.states & {"DRAIN", "DOWN", "FAIL"}


def _same_origin(present: str, wanted: str) -> bool:
    """Whether both reasons come from the same tool: the word before the first colon, ``everstep:``."""
    return present.split(":", 1)[0] == wanted.split(":", 1)[0]
