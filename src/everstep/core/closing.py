"""When an incident is over, and how it ended. A job of ours is never left held, whatever else went wrong."""

from __future__ import annotations

from everstep.core.actions import ReleaseSpare, SlurmResume, Uncordon
from everstep.core.draft import OUR_PREFIX, Draft
from everstep.core.remediation_status import JobPhase, JobRecord, Outcome, StepName

QUEUE_PROOF = 5.0  # a job left to wait in the queue is seen there, not held, for this long


def close(draft: Draft) -> tuple[Outcome, str] | None:
    """The outcome and its sentence; None while something is still to be done."""
    status = draft.status
    if not draft.halted:
        return _success(draft)
    given_back = _spare_given_back(draft) and (not status.cancelled or _node_given_back(draft))
    safe = all(_safe(draft, job) for job in status.jobs)
    told = status.problem or status.cancelled or (draft.has(StepName.ISOLATED) and draft.has(StepName.NOTIFIED))
    if not (given_back and safe and told) and not _hopeless(draft):
        return None
    jobs = "".join(f"; {job.reason}" for job in status.jobs)
    if status.cancelled:
        return Outcome.CANCELLED, f"{status.cancelled}: the node is given back{jobs}"
    if status.problem:
        return Outcome.ESCALATED, f"a person is needed: {status.problem}{jobs}"
    return Outcome.LEFT_ALONE, f"{status.left_alone}{jobs}"


def _success(draft: Draft) -> tuple[Outcome, str] | None:
    status = draft.status
    if not (draft.has(StepName.REPLACED) and draft.handed_over):
        return None
    if not all(job.settled or _outwaited(draft, job) for job in status.jobs):
        return None
    for job in status.jobs:
        if job.phase is JobPhase.FAILED:
            draft.stuck(job.reason)
            return None
    taken = status.replacement
    assert taken is not None
    jobs = "".join(f"; {job.reason}" for job in status.jobs)
    return Outcome.SUCCEEDED, f"node {draft.spec.node} was replaced by {taken.node}{jobs}"


def _outwaited(draft: Draft, job: JobRecord) -> bool:
    return job.phase is JobPhase.UNREQUEUABLE and not draft.blocks(job)


def _safe(draft: Draft, job: JobRecord) -> bool:
    """Settled, left running because a person took the node back, or waiting in the queue without our hold."""
    if job.settled or _outwaited(draft, job):
        return True
    if job.asked_at is None:
        return bool(draft.status.cancelled)
    if job.phase is not JobPhase.RELEASED:
        return False
    seen = draft.seen.slurm_job(job.cluster, job.id)
    return seen is not None and not seen.held and draft.now - job.phase_since >= QUEUE_PROOF


def _hopeless(draft: Draft) -> bool:
    """So long that the record must say so rather than wait for ever: Slurm is silent, or it cannot end the job."""
    silent = draft.seen.slurm is None and draft.age > draft.policy.isolate_deadline
    return silent or draft.age > draft.policy.resume_deadline


def _spare_given_back(draft: Draft) -> bool:
    """A spare that was claimed but is not in the pool is freed; one already in the pool stays there."""
    taken = draft.status.replacement
    spare = draft.seen.spares.get(taken.node) if taken else None
    if spare is None or spare.node.claimed_by != draft.remediation.name:
        return True
    draft.act(ReleaseSpare(spare.node.name))
    return False


def _node_given_back(draft: Draft) -> bool:
    """A person took the node back: our cordon and our drain are lifted, theirs are not."""
    node = draft.seen.node
    if node is not None and draft.node_is_ours and node.unschedulable and draft.has(StepName.OPT_OUT_CHECKED):
        draft.act(Uncordon(node.name))
        return False
    if draft.seen.slurm is None:
        return False
    ours = [
        (cluster, node)
        for cluster, node in draft.seen.slurm_nodes(draft.spec.node)
        if node.drained_for_good and node.reason.startswith(OUR_PREFIX)
    ]
    draft.act(*(SlurmResume(cluster, node.name) for cluster, node in ours))
    return not ours
