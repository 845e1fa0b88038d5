"""The legs of a heal, measured from the record alone."""

from __future__ import annotations

from everstep.core.job_proof import saved_in_grace
from everstep.core.remediation_status import Durations, JobPhase, JobRecord, Status, StepName


def measure(status: Status) -> Durations:
    """Every leg that both ends of which are known."""
    at = {step.name: step.at for step in status.steps}

    def leg(start: StepName, end: StepName) -> float | None:
        return round(at[end] - at[start], 3) if start in at and end in at else None

    # The spare serves from here on; the step `replaced` waits for the faulty node to be empty as well.
    served = status.replacement.in_service_at if status.replacement else None

    def to_service(start: StepName) -> float | None:
        return round(served - at[start], 3) if served is not None and start in at else None

    return Durations(
        isolate_s=leg(StepName.DETECTED, StepName.ISOLATED),
        checkpoint_s=leg(StepName.SIGNALLED, StepName.CHECKPOINTED),
        requeue_s=leg(StepName.CHECKPOINTED, StepName.REQUEUED),
        replace_s=to_service(StepName.CORDONED),
        healthy_node_s=to_service(StepName.DETECTED),
        resumed_s=leg(StepName.DETECTED, StepName.RESUMED),
        overhead_s=_overhead(status, leg(StepName.DETECTED, StepName.RESUMED)),
    )


def _overhead(status: Status, resumed: float | None) -> float | None:
    """``resumed_s`` less the slowest job's own save and load and Slurm's wait between release and start.

    A job that was killed because it did not stop took its whole grace for itself.
    """
    jobs = [job for job in status.jobs if job.phase is JobPhase.RESUMED and job.resumed_at is not None]
    if resumed is None or not jobs:
        return None
    job = max(jobs, key=lambda j: j.resumed_at or 0.0)
    own = _saving(job) + (job.load_seconds or 0.0)
    queued = 0.0
    if job.started_at is not None and job.released_at is not None:
        queued = max(0.0, job.started_at - job.released_at)
    return round(max(0.0, resumed - own - queued), 3)


def _saving(job: JobRecord) -> float:
    """From the signal to the checkpoint that it resumed from; without one, to its end."""
    if job.signalled_at is None:
        return 0.0
    saved = job.saved_at if saved_in_grace(job) and job.saved_at is not None else job.stopped_at
    return max(0.0, (saved or job.signalled_at) - job.signalled_at)
