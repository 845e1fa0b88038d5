"""Whatever part of the platform dies in the middle of a heal, the heal goes on and nothing happens twice."""

from __future__ import annotations

import pytest

from tests.lab.heals.ward import EVERSTEP, Ward

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    "moments",
    [
        ("detected", "signalled"),  # the fault has just happened; then the job saves, for two seconds
        ("isolated", "replaced"),
    ],
    ids="-and-".join,
)
def test_a_controller_that_is_killed_is_not_missed(ward: Ward, moments: tuple[str, str]) -> None:
    """Twice in one heal: its process by ``kill -9``, later its whole pod."""
    patient = ward.train("--save-seconds", "2")
    fault = ward.break_gpu(patient)
    if moments[0] != "detected":
        ward.until_step(fault, moments[0])
    ward.kill("everstep.apps.controller")
    ward.until_step(fault, moments[1])
    ward.delete_at_once(ward.controller(), EVERSTEP)
    ward.assert_healed(patient)
    ward.assert_retired_once(fault)


def test_a_slurm_controller_that_dies_after_the_drain_is_told_again(ward: Ward) -> None:
    patient = ward.train("--save-seconds", "2")
    ward.until_saved(patient)
    fault = ward.break_gpu(patient)
    ward.until_step(fault, "isolated")
    ward.kill("slurmctld -D")
    ward.assert_healed(patient)
    ward.assert_retired_once(fault)


def test_two_faults_are_healed_one_after_the_other_while_gateway_and_operator_die(ward: Ward) -> None:
    """The budget is one node at a time; the second waits for the first one's replacement, its job is stopped once."""
    patient = ward.train("--save-seconds", "2")
    first = ward.break_gpu(patient, patient.nodes[0])
    second = ward.break_gpu(patient, patient.nodes[1])
    ward.until_step(first, "isolated")
    ward.delete_at_once(ward.pod("everstep.io/slurm-role=gateway"))
    ward.delete_at_once(ward.pod("app.kubernetes.io/component=slurm-operator", EVERSTEP), EVERSTEP)
    records = [ward.until_resolved(first), ward.until_resolved(second)]
    told = "\n".join(map(ward.tell, (first, second)))
    assert [str(r.status and r.status.outcome) for r in records] == ["Succeeded", "Succeeded"], told
    spans = sorted(ward.span_of_budget(record) for record in records)
    assert spans[0][1] <= spans[1][0], f"two nodes were out of service at once: {spans}\n{told}"
    ward.until_state(patient, "COMPLETED")
    assert ward.scene.login.job(patient.job)["RestartCnt"] == "1", told
    (*_, stopped, resumed) = ward.attempts(patient)
    assert resumed.resumed_from == stopped.saved_step == stopped.highest_step, told
    for fault in (first, second):
        ward.assert_retired_once(fault)
