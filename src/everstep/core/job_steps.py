"""The steps of the promise that the jobs' records show, with the times of the jobs' own records where they exist."""

from __future__ import annotations

from everstep.core.draft import Draft
from everstep.core.job_proof import saved_in_grace
from everstep.core.remediation_status import JobPhase, JobRecord, StepName

OWN_WORD = 2.0
_WAITED = (JobPhase.REQUEUED, JobPhase.RELEASED, JobPhase.RUNNING, JobPhase.RESUMED)


def record_job_steps(draft: Draft) -> None:
    """With several jobs: signalled by the first, checkpointed, requeued and resumed by the last."""
    jobs = [job for job in draft.status.jobs if job.asked_at is not None]
    _record_signal(draft, jobs)
    through = [job for job in jobs if job.phase in _WAITED]
    expected = any(job.signalled_at is not None for job in jobs)
    if not through or any(draft.blocks(job) for job in draft.status.jobs):
        return
    if expected and not draft.has(StepName.SIGNALLED):
        return
    if not all(_told(draft, job) for job in through):
        return  # what it saved is not known yet; the steps keep their own times
    names = ", ".join(f"job {job.id}" for job in through)
    draft.step(StepName.CHECKPOINTED, "; ".join(_saved(job) for job in through), max(_saved_at(j) for j in through))
    stopped = max(job.stopped_at or draft.now for job in through)
    draft.step(StepName.REQUEUED, f"{names} waits in Slurm's queue under its own id", stopped)
    resumed = [job for job in jobs if job.phase is JobPhase.RESUMED]
    if resumed and all(job.settled for job in draft.status.jobs):
        at = max(job.resumed_at or draft.now for job in resumed)
        draft.step(StepName.RESUMED, "; ".join(job.reason for job in resumed), at)


def _record_signal(draft: Draft, jobs: list[JobRecord]) -> None:
    """Waits a moment for the job's own word on when the signal came; our request comes some 0.1 s before it."""
    signalled = [job for job in jobs if job.signalled_at is not None]
    if not signalled:
        return
    own_word = any(job.signalled_at != job.asked_at for job in signalled)
    patience = max(draft.now - (job.asked_at or 0.0) for job in signalled)
    if own_word or patience > OWN_WORD or any(job.phase in _WAITED for job in signalled):
        at = min(job.signalled_at or draft.now for job in signalled)
        names = ", ".join(f"job {job.id}" for job in signalled)
        draft.step(StepName.SIGNALLED, f"every process of {names} got SIGTERM and may save", at)


def _saved_at(job: JobRecord) -> float:
    """When the checkpoint was there; for a job that saved nothing in its grace, when its time was over."""
    if saved_in_grace(job) and job.saved_at is not None:
        return min(job.saved_at, job.stopped_at or job.saved_at)
    return job.stopped_at or job.phase_since


def _told(draft: Draft, job: JobRecord) -> bool:
    """Its record was read, or will not be any more."""
    read = (job.cluster, job.id) in draft.seen.progress
    return read or job.saved_step is not None or job.settled


def _saved(job: JobRecord) -> str:
    if saved_in_grace(job):
        size = f", {job.saved_bytes} bytes" if job.saved_bytes is not None else ""
        took = f" in {job.save_seconds:.1f} s" if job.save_seconds is not None else ""
        return f"job {job.id} saved step {job.saved_step}{size}{took}"
    if job.signalled_at is None:
        last = "it left no checkpoint" if job.saved_step is None else f"its last checkpoint is step {job.saved_step}"
        return f"job {job.id} crashed before it could be asked to save; {last}"
    if job.saved_step is not None:
        return f"job {job.id} did not save after the signal; its last checkpoint is step {job.saved_step}"
    return f"job {job.id} put no checkpoint on record"
