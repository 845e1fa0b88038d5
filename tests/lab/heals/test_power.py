"""A node that dies without a word."""

from __future__ import annotations

import pytest

from tests.lab.heals.ward import Ward

pytestmark = pytest.mark.lab


def test_a_machine_that_loses_its_power_is_replaced(ward: Ward) -> None:
    """Nobody signals its rank; the job resumes from its last periodic checkpoint. Kubernetes takes its time."""
    patient = ward.train("--save-every-steps", "10")
    ward.cut_power(patient)
    evidence = ward.assert_healed(patient)
    resumed_from = evidence.job.attempts[-1].resumed_from or 0
    assert resumed_from % 10 == 0, f"it resumed from step {resumed_from}, which is none of its periodic saves"
