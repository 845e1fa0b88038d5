"""What a job says about itself is its word: it fills the story and can never spoil it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.core.job_proof import proven, saved_in_grace, with_save
from everstep.core.remediation_status import JobPhase, JobRecord
from everstep.core.scheduler_state import AttemptProgress, JobProgress

RECORD = JobRecord(
    id="7", cluster="slurm/crew", user="ada", name="train", restarts_before=0, restarts=0, guard=0,
    phase=JobPhase.SAVING, asked_at=100.0,
)  # fmt: skip


def said(stop: float | None, saved: float | None) -> JobProgress:
    return JobProgress("7", (AttemptProgress(0, stop_asked_at=stop, saved_step=5, saved_at=saved, save_seconds=1.0),))


def test_the_jobs_own_times_are_taken() -> None:
    record = with_save(110.0, RECORD, said(101.0, 103.0))
    assert (record.signalled_at, record.saved_step, record.saved_at) == (101.0, 5, 103.0)
    assert saved_in_grace(record)


@pytest.mark.parametrize("ahead", [0.2, 3600.0, 2.5e11])
def test_a_time_that_has_not_come_is_not_believed(ahead: float) -> None:
    """A step of the record would bear it, and no step would come after it in order."""
    progress = said(110.0 + ahead, 110.0 + ahead)
    record = with_save(110.0, RECORD, progress)
    assert (record.signalled_at, record.saved_at, record.saved_step) == (None, None, 5)
    assert not saved_in_grace(record)
    later = with_save(111.0 + ahead, record, progress)
    assert later.signalled_at == later.saved_at == 110.0 + ahead


def test_a_signal_that_was_not_ours_is_not_taken_for_it() -> None:
    assert with_save(110.0, replace(RECORD, asked_at=105.0), said(101.0, 103.0)).signalled_at is None


def test_a_job_that_had_made_its_last_step_resumes_with_nothing_left_to_do() -> None:
    record = replace(RECORD, phase=JobPhase.RUNNING, phase_since=120.0, restarts=1, stopped_at=104.0, started_at=119.0)
    before = AttemptProgress(0, highest_step=60, saved_step=60, saved_at=103.0, outcome="stopped")
    last = AttemptProgress(1, started_at=121.0, resumed_from=60, load_seconds=0.1, outcome="finished")
    done = proven(125.0, record, JobProgress("7", (before, last)), ended=True, deadline=300.0)
    assert done is not None
    assert (done.phase, done.resumed_from, done.steps_lost, done.resumed_at) == (JobPhase.RESUMED, 60, 0, 121.0)
    assert "nothing was left to do" in done.reason


def test_a_job_that_ended_without_a_step_and_without_a_checkpoint_is_not_called_resumed() -> None:
    record = replace(RECORD, phase=JobPhase.RUNNING, phase_since=120.0, restarts=1, stopped_at=104.0, started_at=119.0)
    for last in (
        AttemptProgress(1, started_at=121.0, outcome="finished"),
        AttemptProgress(1, started_at=121.0, resumed_from=60, outcome="failed"),
    ):
        assert proven(125.0, record, JobProgress("7", (last,)), ended=True, deadline=300.0) is None
