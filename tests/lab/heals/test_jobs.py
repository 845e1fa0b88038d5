"""Whatever a job does when it is told to stop, it goes on elsewhere under its own id."""

from __future__ import annotations

import pytest

from tests.lab.heals.ward import Ward

pytestmark = pytest.mark.lab


def test_several_jobs_of_one_node_are_healed_together(ward: Ward) -> None:
    """One exits 0 at SIGTERM and saves nothing, which must not count as its end; one has two steps."""
    # Steps enough that it still runs when the other one has begun, however long that takes.
    quitter = ward.train("--quit-on-sigterm", "--save-every-steps", "10", steps=150)
    stepper = ward.train(script="train-two-steps.sbatch", before=10)
    fault = ward.break_gpu(quitter)
    stepper.fault = fault
    ward.assert_healed(stepper)
    evidence = ward.assert_healed(quitter, but=["steps lost"])
    resumed_from = evidence.job.attempts[-1].resumed_from or 0
    assert resumed_from > 0
    assert resumed_from % 10 == 0, f"the quitter resumed from step {resumed_from}, which is none of its saves"
    ward.assert_retired_once(fault)
