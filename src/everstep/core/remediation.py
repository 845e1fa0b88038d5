"""Every rule of a heal, in one pure function: what is known in, the next record and what to do out.

Three tracks run side by side, each level-triggered (what is observed decides, never what is remembered to be done):
the jobs' (``job_recovery``), the node's (``isolation``, then ``handover`` of its machine) and the ``replacement``'s.
``Stage`` only names what the whole incident waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from everstep.core.actions import Action, LetGo, TellJob, TellPeople
from everstep.core.closing import close
from everstep.core.draft import NODE_LOST, Draft
from everstep.core.durations import measure
from everstep.core.foreign import CONDITION, SLURM, foreign_faults, is_foreign
from everstep.core.handover import hand_over
from everstep.core.health import Verdict
from everstep.core.isolation import forget_in_slurm, isolate, notice_cancellation, vacate
from everstep.core.job_recovery import VICTIM_STATES, Sight, recover
from everstep.core.job_steps import record_job_steps
from everstep.core.observations import Observed
from everstep.core.policy import Mode, Policy
from everstep.core.remediation_status import JobPhase, JobRecord, Outcome, Remediation, Stage, Status, StepName
from everstep.core.replacement import replace_node
from everstep.core.scheduler_state import SlurmJob

QUICK = 0.1  # look again at once: an effect of ours should show
FAST = 0.5  # a job is on its way
SLOW = 1.0
PENDING_EVERY = 5.0
# A job that failed on the node from this long before the fault was seen counts as its victim: a kernel line and the
# error in the process come within a second or two. A lost node is called lost only after a long silence.
VICTIM_WINDOW = 5.0
VICTIM_SILENCE = 120.0
RECOVERY_SLACK = 60.0  # beyond grace and margin, before a job that will not leave its node is a person's business


@dataclass(frozen=True, slots=True)
class Decision:
    """What one pass decided.

    Attributes:
        status: persisted first, if it differs; only then the actions run.
        requeue_after: seconds until the next pass; None when nothing is left to do.
        reason: one plain sentence, the same for log, event, condition and CLI.
    """

    status: Status
    actions: tuple[Action, ...]
    requeue_after: float | None
    reason: str


def decide(now: float, remediation: Remediation, seen: Observed, policy: Policy) -> Decision:
    """One pass over one incident. Pure: the same arguments give the same decision."""
    status = remediation.status
    if status.resolved:
        return _after_the_end(remediation, seen)
    draft = Draft(now, remediation, seen, policy, status)
    _begin(draft)
    match status.stage:
        case Stage.PENDING:
            return _pending(draft)
        case Stage.ADMITTED:
            return _admitted(draft)
        case _:
            return _active(draft)


def _after_the_end(remediation: Remediation, seen: Observed) -> Decision:
    """The last notice is repeated until its delivery is on record; then a deleted record may go."""
    status = remediation.status
    told = dict(status.told)
    if "resolved" in told:
        return Decision(status, (LetGo(),) if remediation.deleting else (), None, status.reason)
    if "resolved" in seen.delivered:
        status = replace(status, told=(*status.told, ("resolved", seen.delivered["resolved"])))
        return Decision(status, (), 0.0, status.reason)
    said = {Outcome.SUCCEEDED: "was replaced", Outcome.ESCALATED: "needs a person"}
    how = said.get(status.outcome, status.outcome.value) if status.outcome else "resolved"
    notice = TellPeople("resolved", f"Node {remediation.spec.node} {how}", status.reason)
    return Decision(status, (notice,), SLOW, status.reason)


def _begin(draft: Draft) -> None:
    """What every pass notes first: the detection, notices that went out, further faults."""
    fault = draft.spec.faults[0]
    draft.status = draft.status.with_step(
        StepName.DETECTED, min(fault.first_seen or draft.now, draft.now), fault.reason
    )
    told = dict(draft.status.told)
    fresh = tuple((key, error) for key, error in draft.seen.delivered.items() if key not in told)
    known = {f.key for f in draft.spec.faults} | set(draft.status.merged_faults)
    report = draft.seen.report
    further = tuple(
        f.key for f in (report.faults if report else ()) if f.key not in known and f.boot_id == draft.spec.boot_id
    )
    draft.status = replace(
        draft.status,
        told=(*draft.status.told, *fresh),
        merged_faults=(*draft.status.merged_faults, *further),
    )


def _pending(draft: Draft) -> Decision:
    status, node = draft.status, draft.spec.node
    if draft.remediation.deleting:
        return _resolve(draft, Outcome.CANCELLED, "a person deleted the record before anything was done")
    if duplicate := draft.seen.admission.duplicate_of:
        return _resolve(draft, Outcome.CANCELLED, f"the incident is part of {duplicate}")
    if gone := _fault_gone(draft):
        return _resolve(draft, Outcome.CANCELLED, gone)
    if draft.policy.mode is Mode.DRY_RUN:
        return _dry_run(draft)
    if not draft.seen.admission.granted:
        _tell_people_once(draft)
        return _decided(draft, f"node {node} waits for its turn: {draft.seen.admission.reason}", PENDING_EVERY)
    draft.status = replace(status, stage=Stage.ADMITTED, since=draft.now, admitted_at=draft.now)
    return _decided(draft, f"node {node} is about to be healed: {draft.seen.admission.reason}", 0.0)


def _fault_gone(draft: Draft) -> str:
    """Why nothing needs to be done any more, seen before anything was done; "" otherwise."""
    node, report = draft.seen.node, draft.seen.report
    if gone := _foreign_gone(draft):
        return gone
    if node is None or node.ready is not True or report is None or report.verdict is not Verdict.HEALTHY:
        return ""
    if report.boot_id != node.boot_id:
        return ""  # the agent's word is older than the node's boot
    if node.boot_id != draft.spec.boot_id or (draft.spec.faults[0].kind, draft.spec.faults[0].code) == NODE_LOST:
        return f"node {node.name} came back healthy before anything was done"
    return ""


def _foreign_gone(draft: Draft) -> str:
    """Others have taken their word back: the condition has cleared, or the node was resumed in Slurm."""
    fault, node = draft.spec.faults[0], draft.seen.node
    if fault.kind == CONDITION and node is not None:
        standing = {each.key for each in foreign_faults(draft.now, node, draft.policy)}
        return "" if fault.key in standing else f"condition {fault.code} of node {node.name} has cleared"
    if fault.kind == SLURM and draft.seen.slurm is not None:
        drained = any(is_foreign(each) for _, each in draft.seen.slurm_nodes(draft.spec.node))
        return "" if drained else f"node {draft.spec.node} is in service in Slurm again"
    return ""


def _dry_run(draft: Draft) -> Decision:
    if draft.seen.slurm is None and draft.now - draft.remediation.created < draft.policy.isolate_deadline:
        return _decided(draft, f"dry run: waits for Slurm ({draft.seen.slurm_error}) to say which jobs run there", SLOW)
    jobs = ", ".join(f"job {job.id} of {job.user}" for _, job in draft.seen.jobs_on(draft.spec.node)) or "no job"
    text = f"dry run: would drain node {draft.spec.node}, requeue {jobs}, and replace the node; nothing was touched"
    return _resolve(draft, Outcome.DRY_RUN, text)


def _admitted(draft: Draft) -> Decision:
    admission = draft.seen.admission
    if admission.duplicate_of:
        return _resolve(draft, Outcome.CANCELLED, f"the incident is part of {admission.duplicate_of}")
    if admission.give_way:
        draft.status = replace(draft.status, stage=Stage.PENDING, since=draft.now, admitted_at=None)
        return _decided(draft, f"node {draft.spec.node} waits for its turn: {admission.reason}", PENDING_EVERY)
    if not admission.granted:
        return _decided(draft, f"node {draft.spec.node} waits: {admission.reason}", FAST)
    draft.status = replace(draft.status, stage=Stage.ISOLATING, since=draft.now)
    return _active(draft)


def _active(draft: Draft) -> Decision:
    notice_cancellation(draft)
    _find_jobs(draft)  # first: a job that holds the node is known before anything is done to the node
    isolate(draft)
    _recover_jobs(draft)
    _tell(draft)
    vacate(draft)
    replace_node(draft)
    hand_over(draft)
    forget_in_slurm(draft)
    record_job_steps(draft)
    _advance(draft)
    ending = close(draft)
    if ending is not None:
        return _resolve(draft, *ending)
    return _decided(draft, _sentence(draft), _pace(draft))


def _find_jobs(draft: Draft) -> None:
    if draft.handed_over or draft.status.cancelled:
        return
    known = {(j.cluster, j.id) for j in draft.status.jobs}
    touched = (*draft.seen.jobs_on(draft.spec.node), *_victims(draft))
    fresh = (_found(draft, c, j) for c, j in touched if (c, j.id) not in known)
    draft.status = replace(draft.status, jobs=(*draft.status.jobs, *fresh))


def _victims(draft: Draft) -> tuple[tuple[str, SlurmJob], ...]:
    """Jobs that crashed on the node because of the fault, before anybody could ask them to save."""
    fault = draft.spec.faults[0]
    lost = (fault.kind, fault.code) == NODE_LOST
    since = fault.first_seen - (VICTIM_SILENCE if lost else VICTIM_WINDOW)
    ended = draft.seen.jobs_ended_on(draft.spec.node, since)
    return tuple((cluster, job) for cluster, job in ended if job.state in VICTIM_STATES and job.batch)


def _recover_jobs(draft: Draft) -> None:
    if draft.seen.slurm is None:
        return
    moved: list[JobRecord] = []
    for record in draft.status.jobs:
        after, actions = recover(draft.now, record, _sight(draft, record), draft.policy)
        if draft.status.cancelled and after.phase in (JobPhase.FOUND, JobPhase.STOPPING) and record.asked_at is None:
            after, actions = record, ()  # the node is taken back: a job that nobody stopped runs on
        moved.append(after)
        draft.act(*actions)
    draft.status = replace(draft.status, jobs=tuple(moved))


def _found(draft: Draft, cluster: str, job: SlurmJob) -> JobRecord:
    return JobRecord(
        id=job.id,
        cluster=cluster,
        user=job.user,
        name=job.name,
        restarts_before=job.restarts,
        restarts=job.restarts,
        guard=job.restarts,
        nodes=job.nodes,
        gpus=job.gpus,
        phase_since=draft.now,
        reason=f"job {job.id} of {job.user} was found on the node",
    )


def _sight(draft: Draft, record: JobRecord) -> Sight:
    seen, taken = draft.seen, draft.status.replacement
    snapshot = next((s for s in seen.slurm or () if s.cluster == record.cluster), None)
    node = snapshot.node(draft.spec.node) if snapshot else None
    silent = node is not None and bool(node.states & {"NOT_RESPONDING", "DOWN"})
    return Sight(
        asked=snapshot is not None,
        job=snapshot.job(record.id) if snapshot else None,
        version=snapshot.version if snapshot else "",
        progress=seen.progress.get((record.cluster, record.id)),
        faulty=None if draft.machine_is_back or draft.status.cancelled else draft.spec.node,
        drained=draft.has(StepName.ISOLATED) and node is not None and node.drained_for_good,
        node_dead=draft.node_dead or silent,
        node_down=node is None or "DOWN" in node.states,
        in_service_at=taken.in_service_at if taken else None,
        failing=seen.failing,
    )


def _tell(draft: Draft) -> None:
    """Owners in their job's output, people by notice; `notified` when every try has ended, well or not."""
    _tell_people_once(draft)
    told = dict(draft.status.told)
    keys = ["opened"]
    for job in draft.status.jobs:
        text = _to_the_owner(draft, job)
        owner, terminal = f"owner/{job.cluster}/{job.id}", f"job/{job.cluster}/{job.id}"
        keys += [owner, terminal]
        if terminal not in told:
            draft.act(TellJob(terminal, job.cluster, job.id, text))
        if owner not in told:
            draft.act(TellPeople(owner, f"Job {job.id}: {draft.spec.node} failed", text, job.user, job.id))
    if draft.seen.slurm is None or not all(key in told for key in keys):
        return
    failed = "; ".join(f"{key}: {told[key]}" for key in keys if told[key])
    who = ", ".join(f"{j.user} (job {j.id})" for j in draft.status.jobs) or "the operators; no job ran there"
    ending = ", ".join(f"job {j.id}" for j in draft.status.jobs if _interactive(draft, j))
    asked = f"{ending} cannot be requeued, save and end it" if ending else "nothing is asked of them"
    draft.step(StepName.NOTIFIED, f"told {who}; {asked}" + (f" (not delivered: {failed})" if failed else ""))


def _interactive(draft: Draft, job: JobRecord) -> bool:
    seen = _sight(draft, job).job
    return job.phase is JobPhase.UNREQUEUABLE or (seen is not None and not seen.batch)


def _to_the_owner(draft: Draft, job: JobRecord) -> str:
    failed = f"node {draft.spec.node} failed ({draft.spec.faults[0].reason})."
    if _interactive(draft, job):
        return (
            f"{failed} Slurm cannot requeue an interactive job: please save your work and end it within "
            f"{draft.policy.grace:.0f} seconds; then it may be ended."
        )
    return (
        f"{failed} Your job is asked to save, is requeued under its own id and starts again on healthy nodes. "
        "You need not do anything."
    )


def _tell_people_once(draft: Draft) -> None:
    fault = draft.spec.faults[0]
    told = dict(draft.status.told)
    if "opened" not in told:
        draft.act(TellPeople("opened", f"Node {draft.spec.node} failed", f"{fault.reason} on node {draft.spec.node}."))
    if draft.status.problem and "problem" not in told:
        draft.act(TellPeople("problem", f"Node {draft.spec.node} needs a person", draft.status.problem))


def _advance(draft: Draft) -> None:
    """Names what is waited for, and calls a person when a stage takes too long."""
    stage = _stage(draft)
    if stage is not draft.status.stage:
        draft.status = replace(draft.status, stage=stage, since=draft.now)
        return
    policy = draft.policy
    limits = {
        Stage.ISOLATING: policy.isolate_deadline,
        Stage.RECOVERING: policy.grace + policy.grace_margin + RECOVERY_SLACK,
        Stage.VACATING: policy.vacate_deadline,
        Stage.REPLACING: policy.spare_deadline + policy.validate_deadline + policy.retire_deadline,
        Stage.RESUMING: policy.resume_deadline,
    }
    limit = limits.get(stage)
    if limit is not None and draft.age > limit and not draft.halted:
        draft.stuck(f"stage {stage.value} took longer than {limit:.0f} s: {_sentence(draft)}")


def _stage(draft: Draft) -> Stage:
    halted = draft.halted
    isolated = draft.has(StepName.ISOLATED) and draft.has(StepName.OPT_OUT_CHECKED)
    if not halted and not (isolated and draft.has(StepName.CORDONED)):
        return Stage.ISOLATING
    if any(draft.blocks(job) for job in draft.status.jobs):
        return Stage.RECOVERING
    if halted:
        return Stage.RESUMING
    if not draft.has(StepName.DRAINED):
        return Stage.VACATING
    if not (draft.has(StepName.REPLACED) and draft.handed_over):
        return Stage.REPLACING
    return Stage.RESUMING


def _sentence(draft: Draft) -> str:
    """The first unfinished thing: what the node waits for, then what its jobs wait for."""
    jobs = [job.reason for job in draft.status.jobs if not job.settled]
    if draft.status.stage in (Stage.RECOVERING, Stage.RESUMING):
        parts = [*jobs[:1], *draft.waits[:1]]
    else:
        parts = [*draft.waits[:1], *jobs[:1]]
    halted = draft.status.problem or draft.status.cancelled or draft.status.left_alone
    if draft.seen.refusal:
        parts.append(f"the last request failed: {draft.seen.refusal}")
    return "; ".join(p for p in (halted, *parts) if p) or f"node {draft.spec.node} is being healed"


def _pace(draft: Draft) -> float:
    if draft.seen.refusal:
        return SLOW  # a PodDisruptionBudget, say, is asked once a second, not ten times
    if draft.actions or draft.status.steps != draft.remediation.status.steps:
        return QUICK
    return FAST if any(not job.settled for job in draft.status.jobs) else SLOW


def _decided(draft: Draft, reason: str, requeue_after: float) -> Decision:
    status = replace(draft.status, reason=reason, durations=measure(draft.status))
    return Decision(status, tuple(draft.actions), requeue_after, reason)


def _resolve(draft: Draft, outcome: Outcome, reason: str) -> Decision:
    draft.status = replace(draft.status, stage=Stage.RESOLVED, since=draft.now, resolved_at=draft.now, outcome=outcome)
    return _decided(draft, reason, 0.0)
