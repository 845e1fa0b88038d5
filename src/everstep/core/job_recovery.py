"""One job's way back to work: the tested Slurm recipe as a pure sub-machine.

R1 (node answers): drain seen -> requeue held -> it saves -> waits in the queue -> settle -> release -> runs -> proven.
R2 (node dead): hold -> DOWN, upon which Slurm itself signals the healthy ranks and requeues -> as above.
Every request is guarded by the restart count, so that repeating it never kills a later run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.core.actions import (
    Action,
    ClearStaleAllocation,
    HoldJob,
    ReleaseJob,
    RequeueJob,
    SlurmDown,
)
from everstep.core.job_proof import UNREADABLE_PATIENCE, proven, with_save
from everstep.core.policy import Policy
from everstep.core.remediation_status import JobPhase, JobRecord
from everstep.core.scheduler_state import JobProgress, SlurmJob

# A job that these took is the fault's victim; COMPLETED, CANCELLED and TIMEOUT are its own or its owner's doing.
VICTIM_STATES = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"})
# A held job that was seen neither held nor requeued after this is requeued by DOWN all the same: it then starts by
# itself after Slurm's own delay (121 s), which loses time but no work.
HOLD_PATIENCE = 3.0
LAUNCH_WINDOW = 30.0  # a job that fails this soon after its release, with no step done, failed to launch
MAX_LAUNCHES = 3
# A stopped job whose other node fails too is started once, after that node has left Slurm's service; the budget lets
# its incident begin as soon as this one's replacement serves. Past this the job runs rather than waits for a person.
PARTNER_PATIENCE = 60.0
NUDGE_EVERY = 15.0
BEGIN_TIME_PATIENCE = 5.0
CREDENTIALS_BY_SECOND_BEFORE = (24, 11)  # 0 of 20 launches failed on 24.11 and 26.05 without the pause, 5 of 8 on 22.05


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of one job in this pass.

    ``faulty`` is None where no node is forbidden: the machine is back repaired, or a person took the node back.

    Attributes:
        asked: False when its cluster could not be asked; then ``job`` means nothing.
        job: None when Slurm says that it does not know the job.
        version: of its Slurm, for example ``22.05.8``.
        progress: None when its record could not be read (yet).
        faulty: the node it must not run on.
        drained: the drain was seen in its cluster.
        node_dead, node_down: the faulty node does not answer; Slurm already counts it as DOWN.
        in_service_at: when the replacement came into service.
        failing: other nodes whose faults are known while Slurm may still place jobs on them.
    """

    asked: bool
    job: SlurmJob | None
    version: str
    progress: JobProgress | None
    faulty: str | None
    drained: bool
    node_dead: bool
    node_down: bool
    in_service_at: float | None = None
    failing: frozenset[str] = frozenset()


Result = tuple[JobRecord, tuple[Action, ...]]


def recover(now: float, record: JobRecord, sight: Sight, policy: Policy) -> Result:
    """The job's next record and what to ask of Slurm now."""
    if record.settled or not sight.asked:
        return record, ()
    job = sight.job
    if job is None:
        phase = JobPhase.FAILED if record.asked_at else JobPhase.FINISHED
        return _enter(now, record, phase, f"job {record.id} is no longer known to Slurm"), ()
    record = replace(record, restarts=max(record.restarts, job.restarts))
    if record.phase is not JobPhase.FOUND:
        record = with_save(now, record, sight.progress)
    match record.phase:
        case JobPhase.FOUND:
            return _found(now, record, job, sight)
        case JobPhase.UNREQUEUABLE:
            gone = not job.active or sight.faulty not in job.nodes
            return (
                (_enter(now, record, JobPhase.FINISHED, f"job {job.id} has left the node"), ())
                if gone
                else (record, ())
            )
        case JobPhase.STOPPING:
            return _stopping(now, record, job, sight)
        case JobPhase.SAVING:
            return _saving(now, record, job, sight, policy)
        case JobPhase.REQUEUED:
            return _requeued(now, record, job, sight, policy)
        case JobPhase.RELEASED:
            return _released(now, record, job, sight, policy)
        case _:
            return _running(now, record, job, sight, policy)


def _enter(now: float, record: JobRecord, phase: JobPhase, reason: str) -> JobRecord:
    return replace(record, phase=phase, phase_since=now, reason=reason)


def _found(now: float, record: JobRecord, job: SlurmJob, sight: Sight) -> Result:
    if job.restarts > record.guard:
        return _enter(now, record, JobPhase.SAVING, f"job {job.id} was requeued by somebody else"), ()
    if job.waiting:
        return _enter(now, record, JobPhase.FINISHED, f"job {job.id} went back to the queue by itself"), ()
    if not job.active:
        return _ended_by_itself(now, record, job, sight)
    if job.state == "COMPLETING":
        return replace(record, reason=f"job {job.id} is ending by itself"), ()
    if not job.batch:
        reason = f"job {job.id} is interactive, which Slurm cannot requeue; {job.user} was asked to save and end it"
        return _enter(now, record, JobPhase.UNREQUEUABLE, reason), ()
    if not sight.drained:
        return replace(record, reason=f"job {job.id} runs on until the drain is seen in Slurm"), ()
    return _stopping(now, _ask(now, record, f"Slurm is asked to requeue job {job.id}"), job, sight)


def _ask(now: float, record: JobRecord, reason: str) -> JobRecord:
    return replace(_enter(now, record, JobPhase.STOPPING, reason), asked_at=record.asked_at or now)


def _ended_by_itself(now: float, record: JobRecord, job: SlurmJob, sight: Sight) -> Result:
    if job.state in VICTIM_STATES and job.batch:
        reason = f"job {job.id} ended as {job.state} on the faulty node and is requeued"
        if not sight.drained:
            return replace(record, reason=f"{reason} once the drain is seen in Slurm"), ()
        record = replace(_enter(now, record, JobPhase.SAVING, reason), asked_at=record.asked_at or now)
        return record, (RequeueJob(record.cluster, job.id, record.guard),)
    return _enter(now, record, JobPhase.FINISHED, f"job {job.id} ended by itself as {job.state} and is left alone"), ()


def _stopping(now: float, record: JobRecord, job: SlurmJob, sight: Sight) -> Result:
    if job.restarts > record.guard or job.waiting:
        record = _enter(now, record, JobPhase.SAVING, f"job {job.id} got its signal and may save")
        return replace(record, signalled_at=record.signalled_at or record.asked_at), ()
    if not job.active:
        return _ended_by_itself(now, record, job, sight)
    if job.state == "COMPLETING":
        return replace(record, reason=f"job {job.id} is ending by itself"), ()
    if not sight.node_dead:
        return record, (RequeueJob(record.cluster, job.id, record.guard),)
    if not job.held and now - record.phase_since < HOLD_PATIENCE:
        return replace(record, reason=f"job {job.id} is held before its dead node is set DOWN"), (
            HoldJob(record.cluster, job.id, record.guard),
        )
    return replace(record, reason=f"the dead node is set DOWN, so that Slurm requeues job {job.id}"), _down(
        record, sight
    )


def _down(record: JobRecord, sight: Sight) -> tuple[Action, ...]:
    if sight.node_down or sight.faulty is None:
        return ()
    return (SlurmDown(record.cluster, sight.faulty, "everstep: node does not answer"),)


def _saving(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    if job.waiting:
        return _waiting_again(now, record, job)
    if job.state == "COMPLETING":
        late = now - (record.asked_at or record.phase_since) > policy.grace + policy.grace_margin
        if sight.node_dead or late:
            return record, _down(record, sight)
        return record, ()
    if job.state in VICTIM_STATES and job.restarts == record.guard:  # it crashed before it could be signalled
        return record, (RequeueJob(record.cluster, job.id, record.guard),)
    return _started(now, record, job, sight, policy)


def _waiting_again(now: float, record: JobRecord, job: SlurmJob) -> Result:
    if job.nodes:
        reason = f"job {job.id} waits with a stale allocation (a Slurm bug before 24.11.1), which is cleared first"
        return replace(record, reason=reason), (ClearStaleAllocation(record.cluster, job.id, job.restarts),)
    record = _enter(now, record, JobPhase.REQUEUED, f"job {job.id} waits in the queue under its own id")
    return replace(record, stopped_at=record.stopped_at or now), ()


def _requeued(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    if not job.waiting:
        return _started(now, record, job, sight, policy)
    if job.nodes:
        return _waiting_again(now, record, job)
    settle = policy.settle if release_number(sight.version) < CREDENTIALS_BY_SECOND_BEFORE else 0.0
    if now - record.phase_since < settle:
        return record, ()
    partners = sorted(sight.failing & set(record.nodes))
    if partners and now - record.phase_since < PARTNER_PATIENCE:
        reason = f"job {job.id} waits until {', '.join(partners)}, which fails too, is out of Slurm's service"
        return replace(record, reason=reason), ()
    record = _enter(now, record, JobPhase.RELEASED, f"job {job.id} is released and waits for nodes")
    return replace(record, released_at=now), (ReleaseJob(record.cluster, job.id, job.restarts),)


def release_number(version: str) -> tuple[int, int]:
    """(24, 11) of ``24.11.5``; (0, 0) when unknown, which gets the careful treatment."""
    head = version.split(".")[:2]
    return (int(head[0]), int(head[1])) if len(head) == 2 and all(h.isdigit() for h in head) else (0, 0)


def _released(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    if not job.waiting:
        return _started(now, record, job, sight, policy)
    if job.nodes:
        return _waiting_again(now, record, job)
    release = ReleaseJob(record.cluster, job.id, job.restarts)
    if job.held:
        return record, (release,)
    why = f" (Slurm says: {job.reason})" if job.reason and job.reason != "None" else ""
    record = replace(record, reason=f"job {job.id} waits in Slurm's queue{why}")
    last = max(record.released_at or 0.0, record.nudged_at or 0.0)
    stuck = job.reason == "BeginTime" and now - last >= (NUDGE_EVERY if record.nudged_at else BEGIN_TIME_PATIENCE)
    served = sight.in_service_at
    new_node = served is not None and last < served <= now - 3
    if stuck or new_node:
        return replace(record, nudged_at=now), (release,)
    return record, ()


def _started(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    if not job.active:
        return _ended_after_signal(now, record, job, sight, policy)
    if job.state != "RUNNING":  # CONFIGURING will run; COMPLETING will show how it ended
        return record, ()
    record = _enter(now, record, JobPhase.RUNNING, f"job {job.id} runs again on {', '.join(job.nodes)}")
    return replace(record, stopped_at=record.stopped_at or now, started_at=job.start_time or now), ()


def _running(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    if job.waiting:
        return _enter(now, record, JobPhase.RELEASED, f"job {job.id} waits in Slurm's queue again"), ()
    if sight.faulty in job.nodes and job.state == "RUNNING":
        if record.launches >= MAX_LAUNCHES:
            return _enter(
                now, record, JobPhase.FAILED, f"Slurm starts job {job.id} on the faulty node again and again"
            ), ()
        record = replace(record, guard=job.restarts, launches=record.launches + 1)
        return _ask(now, record, f"job {job.id} was started on the faulty node again and is requeued"), (
            RequeueJob(record.cluster, job.id, job.restarts),
        )
    done = proven(now, record, sight.progress, ended=not job.active, deadline=policy.resume_deadline)
    if done is not None:
        return done, ()
    if job.active:
        return record, ()
    return _ended_after_signal(now, record, job, sight, policy)


def _ended_after_signal(now: float, record: JobRecord, job: SlurmJob, sight: Sight, policy: Policy) -> Result:
    """The job reached a final state after we had asked for its requeue."""
    if job.state not in VICTIM_STATES:
        if job.restarts > record.restarts_before:  # it ran again, however short: that it resumed is told all the same
            ran = replace(record, started_at=record.started_at or job.start_time)
            done = proven(now, ran, sight.progress, ended=True, deadline=policy.resume_deadline)
            if done is not None:
                return done, ()
            if sight.progress is None and now - record.phase_since < UNREADABLE_PATIENCE:
                return replace(ran, reason=f"job {job.id} ended as {job.state}; its own record cannot be read yet"), ()
        return _enter(now, record, JobPhase.FINISHED, f"job {job.id} ended as {job.state}"), ()
    soon = record.released_at is None or now - record.released_at < LAUNCH_WINDOW
    if soon and record.launches < MAX_LAUNCHES:
        record = replace(record, guard=job.restarts, launches=record.launches + 1)
        reason = f"job {job.id} failed to launch (attempt {record.launches} of {MAX_LAUNCHES}) and is requeued"
        return _ask(now, record, reason), (RequeueJob(record.cluster, job.id, job.restarts),)
    return _enter(now, record, JobPhase.FAILED, f"job {job.id} ended as {job.state} after its restart"), ()
