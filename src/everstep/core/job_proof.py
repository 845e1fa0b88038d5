"""What a job's own record proves: when it was signalled, what it saved, where it resumed, how many steps it lost.

The record is the job's word (untrusted): it decides nothing but the story and the end of the wait.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.core.remediation_status import JobPhase, JobRecord
from everstep.core.scheduler_state import AttemptProgress, JobProgress

STABLE = 3.0  # a job that writes no record counts as resumed after running this long (launch failures show within 2 s)
UNREADABLE_PATIENCE = 60.0  # a record that cannot be read for this long counts as not written


def with_save(now: float, record: JobRecord, progress: JobProgress | None) -> JobRecord:
    """Adds what the attempts before the restart say about the signal and the last checkpoint.

    A time that has not come yet is not believed until it has: the job's clock is ahead, or its record lies.
    """
    before = [a for a in (progress.attempts if progress else ()) if a.attempt <= record.restarts_before]
    if not before:
        return record
    asked = before[-1].stop_asked_at
    if asked is not None and record.asked_at is not None and record.asked_at <= asked <= now:
        record = replace(record, signalled_at=asked)
    saved = next((a for a in reversed(before) if a.saved_step is not None), None)
    if saved is None:
        return record
    return replace(
        record,
        saved_step=saved.saved_step,
        saved_bytes=saved.saved_bytes,
        save_seconds=saved.save_seconds,
        saved_at=saved.saved_at if saved.saved_at is not None and saved.saved_at <= now else None,
    )


def saved_in_grace(record: JobRecord) -> bool:
    """Whether the checkpoint was committed after the signal."""
    return record.saved_at is not None and record.asked_at is not None and record.saved_at >= record.asked_at


def proven(
    now: float, record: JobRecord, progress: JobProgress | None, *, ended: bool, deadline: float
) -> JobRecord | None:
    """The RESUMED (or, past ``deadline``, FAILED) record; None while there is no proof yet."""
    since = now - record.phase_since
    if progress is None and since < UNREADABLE_PATIENCE:
        return None
    if progress is None or not progress.attempts:
        if ended or since < STABLE:
            return None
        why = "writes no progress record" if progress else "has a progress record that cannot be read"
        return _resumed(now, record, record.started_at or now, f"job {record.id} runs; it {why}: steps lost unknown")
    new = progress.attempt(record.restarts)
    if new is not None and new.first_step_at is None and new.outcome == "finished" and new.resumed_from is not None:
        return _with_nothing_left(now, record, progress, new)
    if new is None or new.first_step_at is None:
        if since < deadline or ended:
            return None
        reason = f"job {record.id} has been running for {since:.0f} s without a new step"
        return replace(record, phase=JobPhase.FAILED, phase_since=now, reason=reason)
    record = replace(record, resumed_from=new.resumed_from, load_seconds=new.load_seconds)
    lost, said = _lost(progress, new)
    where = f"step {new.resumed_from}" if new.resumed_from is not None else "its beginning (no checkpoint was loaded)"
    reason = f"job {record.id} resumed from {where}, {said} steps lost"
    return _resumed(now, replace(record, steps_lost=lost), new.first_step_at, reason)


def _with_nothing_left(now: float, record: JobRecord, progress: JobProgress, new: AttemptProgress) -> JobRecord:
    """It had made its last step when the signal came: the next attempt loads that and ends."""
    lost, said = _lost(progress, new)
    record = replace(record, resumed_from=new.resumed_from, load_seconds=new.load_seconds, steps_lost=lost)
    reason = f"job {record.id} resumed from step {new.resumed_from}, the last: nothing was left to do; {said} lost"
    return _resumed(now, record, new.started_at or now, reason)


def _lost(progress: JobProgress, new: AttemptProgress) -> tuple[int | None, str]:
    """Steps that are computed twice, as a number and in words. What was killed may have gone on since it last wrote."""
    before = [(a.highest_step, a) for a in progress.attempts if a.attempt < new.attempt and a.highest_step is not None]
    if not before:
        return None, "an unknown number of"
    highest, attempt = max(before, key=lambda pair: pair[0])
    lost = max(0, highest - (new.resumed_from or 0))
    return lost, str(lost) if attempt.outcome else f"at least {lost}"


def _resumed(now: float, record: JobRecord, at: float, reason: str) -> JobRecord:
    at = min(max(at, record.stopped_at or at), now)  # clocks of other machines may be off
    lost = None
    stopped = record.signalled_at or record.asked_at
    if record.gpus is not None and stopped is not None:
        lost = round(record.gpus * (at - stopped), 3)
    return replace(record, phase=JobPhase.RESUMED, phase_since=now, resumed_at=at, gpu_seconds_lost=lost, reason=reason)
