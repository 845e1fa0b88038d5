"""Before a worker's pod stops: no new work, its jobs requeued, every task told by SIGTERM and waited for.

Runs as the pod's preStop hook. slurmd itself would end at once and take its tasks with it, unsaved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable

from everstep.adapters.slurm.operations import SlurmOperations
from everstep.adapters.slurm.reads import SlurmReads
from everstep.apps.slurm_pod.layout import WorkerPod
from everstep.apps.slurm_pod.steps import Kind, step_processes
from everstep.apps.slurm_pod.worker import slurm
from everstep.core.errors import EverstepError, NotFound, Refused, RetryLater
from everstep.core.scheduler_state import SlurmJob
from everstep.core.slurm_conf import KILL_WAIT_SECONDS
from everstep.core.slurm_worker import STOPPING

log = logging.getLogger(__name__)
_ASK_SECONDS = 15.0  # then the tasks are told by this process itself
_ASK_SECONDS_IDLE = 3.0  # with nothing to save, a cluster that is being deleted as a whole need not be waited for
_REPORT_SECONDS = 10.0
_START_SECONDS = 15.0  # of the pod's grace, after the tasks have ended
_PAUSE = 0.25


def run() -> None:
    """Returns once no task runs here any more, or after the grace that Slurm gives too."""
    asyncio.run(_leave(WorkerPod.from_environment().node))


async def _leave(node: str) -> None:
    deadline = time.monotonic() + KILL_WAIT_SECONDS
    try:
        async with asyncio.timeout(_ASK_SECONDS if step_processes() else _ASK_SECONDS_IDLE):
            requeued = await _requeue_all(node)
    except (EverstepError, TimeoutError) as why:
        log.warning("Slurm could not be asked to requeue the jobs (%s); their tasks are told to stop", why)
        requeued = []
        _signal_tasks()
    await _until(deadline, lambda: not any(kind is Kind.TASK for kind in step_processes().values()))
    # What is left only reports the end; with the controller gone too, nobody would ever take the report.
    await _until(min(deadline, time.monotonic() + _REPORT_SECONDS), lambda: not step_processes())
    for job in requeued:
        if not job.held:  # somebody wants it to wait
            await _start_soon(job)


async def _requeue_all(node: str) -> list[SlurmJob]:
    commands = slurm()
    reads = SlurmReads(commands)
    while True:
        try:
            with contextlib.suppress(NotFound):
                # A drain that is there already, also one of healing, must not end with the next pod's start.
                if "DRAIN" not in (await reads.node(node)).states:
                    await SlurmOperations(commands, reads).drain(node, STOPPING)
            snapshot = await reads.snapshot("here/here")
            break
        except RetryLater as why:
            log.warning("Slurm does not answer yet: %s", why)
            await asyncio.sleep(_PAUSE)
    # What completes already has been told to stop, by somebody who knows why.
    jobs = [job for job in snapshot.jobs_on(node) if job.state != "COMPLETING"]
    for job in jobs:
        await _requeue(job)
    return jobs


async def _requeue(job: SlurmJob) -> None:
    commands = slurm()
    try:
        if job.batch and not job.requeue:
            await commands.run("scontrol", "update", f"jobid={job.id}", "Requeue=1")
        # An interactive job cannot be requeued; scancel gives it the same SIGTERM and the same grace.
        await commands.run(*(("scontrol", "requeue", job.id) if job.batch else ("scancel", job.id)))
        log.info("job %s leaves this node", job.id)
    except (NotFound, Refused, RetryLater) as why:
        log.warning("job %s: %s", job.id, why)


async def _start_soon(job: SlurmJob) -> None:
    """Slurm would hold a requeued job back for two minutes; elsewhere it can start now."""
    commands = slurm()
    operations = SlurmOperations(commands, SlurmReads(commands))
    with contextlib.suppress(EverstepError, TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while True:
                try:
                    await operations.release(job.id, job.restarts + 1)
                    return
                except RetryLater:  # still completing on another node
                    await asyncio.sleep(_PAUSE)


async def _until(deadline: float, done: Callable[[], bool]) -> None:
    while not done() and time.monotonic() < deadline:  # noqa: ASYNC110 - processes send no event
        await asyncio.sleep(_PAUSE)


def _signal_tasks() -> None:
    for pid, kind in step_processes().items():
        if kind is Kind.TASK:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
