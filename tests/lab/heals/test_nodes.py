"""Nodes that die without a word, or that nobody may replace."""

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
    ward.until_repaired(evidence.fault)


def test_a_node_that_may_not_be_replaced_is_left_alone_until_it_may(ward: Ward) -> None:
    patient = ward.train(nodes=1)
    (node,) = patient.nodes
    worker = ward.worker(node)
    ward.lab.kubectl("label", "pod", "-n", "slurm", worker, "everstep.io/do-not-replace=true")
    fault = ward.break_gpu(patient)
    record = ward.until_resolved(fault)
    told = ward.tell(fault)
    assert record.status is not None
    assert record.status.outcome == "LeftAlone", told
    assert f"pod slurm/{worker} carries the label everstep.io/do-not-replace=true" in record.status.reason, told
    seen = ward.lab.get("node", node)
    assert not seen["spec"].get("unschedulable"), f"{node} was cordoned\n{told}"
    assert seen["metadata"]["labels"].get("everstep.io/pool") == ward.lab.config.pool, f"{node} left its pool\n{told}"
    assert "DRAIN" in ward.slurm_states(node), f"{node} is {ward.slurm_states(node)} in Slurm\n{told}"
    ward.until_state(patient, "COMPLETED")
    seen_job = ward.scene.login.job(patient.job)
    assert (seen_job["NodeList"] != node, seen_job["RestartCnt"]) == (True, "1"), f"{seen_job}\n{told}"
    # Who takes the label off and deletes the record gets the node healed.
    ward.lab.kubectl("label", "pod", "-n", "slurm", worker, "everstep.io/do-not-replace-")
    ward.lab.kubectl("delete", "remediation", record.metadata.name, "--timeout=30s")
    record = ward.until_resolved(fault)
    assert record.status is not None
    assert record.status.outcome == "Succeeded", ward.tell(fault)
