"""Judges the evidence: a list of claims, each proven or not, and the numbers of the heal. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from everstep.lab.demo.evidence import Attempt, Evidence

# Every step that the record of a heal must hold (the promise, in the order in which it is made).
PROMISED_STEPS = (
    "detected",
    "notified",
    "isolated",
    "signalled",
    "checkpointed",
    "requeued",
    "optOutChecked",
    "cordoned",
    "drained",
    "replaced",
    "validated",
    "resumed",
)
# A machine without power can neither signal its rank nor save: these two have no evidence there.
NOT_WITHOUT_POWER = frozenset({"signalled", "checkpointed"})


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that must be true; ``says`` is the sentence shown when it is, or what went wrong when it is not."""

    name: str
    proven: bool
    says: str


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds; None where the record lacks one of the two ends.

    ``healthy_node_s``: fault to a replacement that is validated and in service. ``replace_s``: cordon to the same.
    ``resumed_s``: fault to the first new training step.
    ``overhead_s``: ``resumed_s`` less the job's own save and load and Slurm's own scheduling wait, which is the time
    from the moment the job was released and its nodes were there to the moment Slurm started it.
    """

    detect_s: float | None
    isolate_s: float | None
    checkpoint_s: float | None
    requeue_s: float | None
    replace_s: float | None
    healthy_node_s: float | None
    resumed_s: float | None
    overhead_s: float | None


def steps_lost(evidence: Evidence) -> int | None:
    """Sum over restarts of (highest step of an attempt - step the next one resumed from); None when unknown."""
    attempts = evidence.job.attempts
    lost = 0
    for before, after in pairwise(attempts):
        if before.highest_step is None:
            continue
        lost += max(0, before.highest_step - (after.resumed_from or 0))
    return lost if len(attempts) > 1 else None


def trajectory(attempts: tuple[Attempt, ...]) -> dict[int, str]:
    """Loss by step; a step that was run twice counts as its last run did."""
    merged: dict[int, str] = {}
    for attempt in attempts:
        merged.update(attempt.losses)
    return merged


def first_difference(evidence: Evidence) -> str | None:
    """None when every step of every attempt has the bits of the reference run; else one sentence about the first."""
    reference, job = evidence.job.reference, evidence.job
    if len(reference) < job.steps_wanted:
        return f"the reference run has {len(reference)} of {job.steps_wanted} steps"
    merged = trajectory(job.attempts)
    if missing := sorted(set(reference) - set(merged)):
        return f"step {missing[0]} has no loss"
    for attempt in job.attempts:
        for step in sorted(attempt.losses):
            if attempt.losses[step] != reference.get(step):
                return (
                    f"step {step} of attempt {attempt.number} has loss {attempt.losses[step]}, "
                    f"the reference {reference.get(step)}"
                )
    return None


def durations(evidence: Evidence) -> Durations:
    """Every leg of the heal, from the record and the job's own account."""
    record, job, fault_at = evidence.record, evidence.job, evidence.fault.at
    last = job.attempts[-1] if job.attempts else None
    resumed_at = last.first_step_at if last and len(job.attempts) > 1 else None
    resumed_s = _between(fault_at, resumed_at)
    overhead = None
    if resumed_s is not None and last is not None:
        before = job.attempts[-2]
        ready_at = max((t for t in (record.released_at, _needed_spare_at(evidence)) if t is not None), default=None)
        wait = max(0.0, _between(ready_at, job.started_after) or 0.0)
        overhead = round(resumed_s - (before.save_seconds or 0.0) - (last.load_seconds or 0.0) - wait, 3)
    return Durations(
        detect_s=_between(fault_at, record.at("detected")),
        isolate_s=_between(record.at("detected"), record.at("isolated")),
        checkpoint_s=_between(record.at("signalled"), record.at("checkpointed")),
        requeue_s=_between(record.at("checkpointed") or record.at("isolated"), record.at("requeued")),
        replace_s=_between(record.at("cordoned"), record.in_service_at),
        healthy_node_s=_between(fault_at, _later(record.at("validated"), record.in_service_at)),
        resumed_s=resumed_s,
        overhead_s=overhead,
    )


def _needed_spare_at(evidence: Evidence) -> float | None:
    record = evidence.record
    return record.in_service_at if record.replacement in evidence.job.nodes_after else None


def _later(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 3)


def prove(evidence: Evidence) -> list[Claim]:
    """Every claim of the promise; the heal is proven when all are."""
    return [*_job_claims(evidence), *_node_claims(evidence), *_record_claims(evidence)]


def _claim(name: str, proven: bool, good: str, bad: str) -> Claim:
    return Claim(name, proven, good if proven else bad)


def _job_claims(evidence: Evidence) -> Iterator[Claim]:
    job, fault = evidence.job, evidence.fault
    yield _claim(
        "same job",
        job.id == job.submitted_id and job.state == "COMPLETED",
        f"job {job.id} completed under the id it was submitted with",
        f"job {job.submitted_id} is {job.state or 'gone'} (seen as job {job.id or 'none'})",
    )
    yield _claim(
        "restarted once",
        job.restarts == 1,
        "Slurm restarted the job once",
        f"Slurm restarted the job {job.restarts} times",
    )
    yield _claim(
        "healthy nodes",
        bool(job.nodes_after) and fault.node not in job.nodes_after and fault.node in job.nodes_before,
        f"it moved from {', '.join(job.nodes_before)} to {', '.join(job.nodes_after)}",
        f"it ran on {', '.join(job.nodes_before) or 'nothing'} and then on {', '.join(job.nodes_after) or 'nothing'}; "
        f"the faulty node is {fault.node}",
    )
    yield from _progress_claims(evidence)


def _progress_claims(evidence: Evidence) -> Iterator[Claim]:
    job = evidence.job
    lost, graceful = steps_lost(evidence), evidence.fault.kind != "power"
    resumed = job.attempts[-1].resumed_from if len(job.attempts) > 1 else None
    yield _claim(
        "resumed",
        resumed is not None and resumed > 0,
        f"it resumed from step {resumed}",
        "the second attempt did not resume from a checkpoint",
    )
    yield _claim(
        "steps lost",
        lost is not None and (lost == 0 or not graceful),
        f"{lost} steps lost" + ("" if graceful else " (the machine died without warning)"),
        f"{'an unknown number of' if lost is None else lost} steps lost",
    )
    difference = first_difference(evidence)
    yield _claim(
        "same trajectory",
        difference is None,
        f"the loss of all {job.steps_wanted} steps equals the uninterrupted run bit by bit",
        f"the loss trajectory differs: {difference}",
    )


def _node_claims(evidence: Evidence) -> Iterator[Claim]:
    failed = evidence.nodes.get(evidence.fault.node)
    yield _claim(
        "faulty node out",
        failed is None or failed.pool is None,
        f"{evidence.fault.node} left the pool",
        f"{evidence.fault.node} is still in pool {failed.pool if failed else '?'}",
    )
    name = evidence.record.replacement
    spare = evidence.nodes.get(name) if name else None
    in_service = (
        spare is not None
        and spare.pool is not None
        and spare.schedulable
        and spare.ready
        and spare.verdict == "Healthy"
        and bool(spare.slurm_states & {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
        and not spare.slurm_states & {"DRAIN", "DOWN", "NOT_RESPONDING"}
    )
    yield _claim(
        "spare in service",
        in_service,
        f"{name} took its place: validated, in the pool, usable in Slurm",
        f"the replacement {name or '(none)'} is not in service: {spare}",
    )
    yield _claim(
        "owner notified",
        bool(evidence.notices),
        f"the owner was told ({'; '.join(evidence.notices)})",
        "the owner was not told",
    )


def _record_claims(evidence: Evidence) -> Iterator[Claim]:
    record = evidence.record
    skip = NOT_WITHOUT_POWER if evidence.fault.kind == "power" else frozenset[str]()
    missing = [name for name in PROMISED_STEPS if name not in skip and record.at(name) is None]
    yield _claim(
        "record complete",
        not missing and record.outcome == "Succeeded",
        f"the record {record.name} holds every step and its outcome is {record.outcome}",
        f"the record {record.name or '(none)'} has outcome {record.outcome or 'none'}"
        + (f" and lacks {', '.join(missing)}" if missing else ""),
    )
    yield _claim(
        "record in order",
        not evidence.order_violations,
        "its steps are in order",
        f"its steps are out of order: {'; '.join(evidence.order_violations)}",
    )
