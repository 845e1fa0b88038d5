"""A job that will not stop gets its 120 s and no more; meanwhile there is no spare for anybody else.

One job is stubborn while the tests of this module run: it was told to stop, ignores that, and keeps its two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everstep.lab.demo.proof import steps_lost, trajectory
from tests.lab.heals.ward import Patient, Ward

pytestmark = pytest.mark.lab
GRACE = 120.0
SAVES_EVERY, STEP = 40, 0.53  # 120 s are 226 steps: the kill comes between two saves, never just after one


@pytest.fixture(scope="module")
def stubborn(whole_ward: Ward) -> Iterator[Patient]:
    """A job that ignores SIGTERM, just after its node's fault; the only spare has taken the faulty node's place."""
    whole_ward.until_whole()
    patient = whole_ward.train(
        "--ignore-sigterm", "--save-every-steps", str(SAVES_EVERY), steps=260, step_time=STEP, before=4
    )
    fault = whole_ward.break_gpu(patient)
    whole_ward.until_replaced(fault)
    yield patient
    whole_ward.cancel(patient)


def test_without_a_spare_a_job_waits_and_starts_when_a_node_comes_back(whole_ward: Ward, stubborn: Patient) -> None:
    ward = whole_ward
    assert stubborn.fault is not None
    spare = ward.until_replaced(stubborn.fault)
    patient = ward.train(nodes=1, on=spare)
    fault = ward.break_gpu(patient)
    ward.until_reason(fault, f"no healthy spare of pool {ward.lab.config.pool} is free")
    assert ward.state(stubborn) == "COMPLETING", f"the stubborn job is {ward.state(stubborn)}: the test came too late"
    ward.until_resolved(fault)
    assert ward.until_replaced(fault) == spare, f"only {spare} itself can have come back\n{ward.tell(fault)}"
    ward.until_state(patient, "COMPLETED")
    seen = ward.scene.login.job(patient.job)
    assert seen["RestartCnt"] == "1", ward.tell(fault)
    first, second = ward.attempts(patient)
    assert second.resumed_from == first.saved_step == first.highest_step, ward.tell(fault)


def test_a_job_that_ignores_sigterm_is_killed_and_goes_on_from_its_last_save(
    whole_ward: Ward, stubborn: Patient
) -> None:
    evidence = whole_ward.assert_healed(stubborn, but=["steps lost"])
    told = whole_ward.tell(evidence.fault)
    signalled, requeued = evidence.record.at("signalled"), evidence.record.at("requeued")
    assert signalled is not None
    assert requeued is not None
    assert GRACE - 1 <= requeued - signalled <= GRACE + 20, f"the job had {requeued - signalled:.1f} s\n{told}"
    killed, resumed = evidence.job.attempts
    reached, start = max(killed.losses), resumed.resumed_from or 0
    assert start > 0
    assert start % SAVES_EVERY == 0, f"it resumed from step {start}, which is none of its periodic saves\n{told}"
    lost, recorded = steps_lost(evidence), whole_ward.job_record(evidence.fault, stubborn).steps_lost
    assert recorded == lost, f"the record says {recorded} steps lost, the job's own account {lost}\n{told}"
    # The job writes its position once a second: what it did after that is all that the account may miss.
    assert recorded is not None
    assert 0 < recorded <= reached - start <= recorded + 1 + 1.5 / STEP, f"{reached - start} steps were lost\n{told}"
    # The rank that is killed last may still note that it lost its peer: then the number is exact, and is told as such.
    said = f"{recorded} steps lost" if killed.outcome else f"at least {recorded} steps lost"
    assert f"from step {start}, {said}" in whole_ward.job_record(evidence.fault, stubborn).reason
    assert len(trajectory(evidence.job.attempts)) == stubborn.options.wanted_steps
