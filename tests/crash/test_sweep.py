"""Every heal, with the controller killed before and after every I/O call, and frozen with a request under way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from everstep.core import handover, job_recovery
from everstep.core.remediation_status import JobRecord
from everstep.testing.crashes import Side
from tests.crash.sweeping import HEALS, Heal, faults_of, run


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def sweep(heal: Heal, sides: dict[Side, float]) -> tuple[int, list[str]]:
    """How many points were tried, and what went wrong at which."""
    undisturbed = run(heal)
    found = [f"undisturbed: {fault}" for fault in faults_of(undisturbed, heal)]
    points = 0
    for at, call in enumerate(undisturbed.plan.calls, start=1):
        for side, delay in sides.items():
            points += 1
            disturbed = run(heal, at, side, delay)
            faults = faults_of(disturbed, heal)
            if disturbed.crashes != 1:
                faults.append(f"it was to die once and died {disturbed.crashes} times")
            found += [f"killed {side} call {at} ({call}): {fault}" for fault in faults]
    return points, found


@pytest.mark.parametrize("name", HEALS)
def test_killed_before_and_after_every_call(name: str) -> None:
    points, found = sweep(HEALS[name], {Side.BEFORE: 0.0, Side.AFTER: 0.0})
    assert points >= 40
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("name", [name for name in HEALS if name != "no spare"])
def test_an_old_leader_wakes_up_with_a_request_on_the_wire(name: str) -> None:
    """It was frozen for longer than its Lease: its successor is at work when the old request lands."""
    points, found = sweep(HEALS[name], {Side.LATE: 8.0})
    assert points >= 20
    assert not found, "\n".join(found[:10])


def test_the_sweep_finds_a_mark_that_is_taken_for_the_deed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep itself must be able to fail: here the mark counts as acknowledged before anybody was asked."""

    def trusting(draft: handover.Draft) -> None:
        original(draft)
        mark = draft.status.operation
        if mark is not None and mark.acknowledged_at is None:
            draft.status = replace(draft.status, operation=replace(mark, acknowledged_at=draft.now))
            draft.act(handover.RetireMachine(mark.id, mark.machine))

    original = handover.hand_over
    monkeypatch.setattr("everstep.core.remediation.hand_over", trusting)
    assert not faults_of(run(HEALS["gpu dies"]), HEALS["gpu dies"]), "undisturbed, nobody notices"
    _, found = sweep(HEALS["gpu dies"], {Side.BEFORE: 0.0})
    assert any("handed over 0 times" in fault for fault in found)


def test_the_sweep_finds_a_job_that_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(now: float, record: JobRecord, *rest: object) -> job_recovery.Result:
        after, actions = original(now, record, *rest)  # type: ignore[arg-type]
        # remembers that it released instead of looking whether the job is still held
        again = record.released_at is not None
        return after, tuple(a for a in actions if not (again and isinstance(a, job_recovery.ReleaseJob)))

    original = job_recovery.recover
    monkeypatch.setattr("everstep.core.remediation.recover", impatient)
    _, found = sweep(HEALS["opt-out"], {Side.BEFORE: 0.0})
    assert any("left held" in fault or "ended as" in fault for fault in found)
