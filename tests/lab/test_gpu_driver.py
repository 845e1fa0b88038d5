"""What only the GPUs' driver tells, on the way from the node to NodeHealth, with NVIDIA's binding in the agent's pod.

On the spare: only nodes in service are healed, so the lab stays as it is for the other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from everstep.lab.cluster import Lab
from tests.lab.test_agent import until

pytestmark = pytest.mark.lab


@pytest.fixture
def spare(lab: Lab) -> Iterator[str]:
    """A warm spare that is well; its GPUs are well again afterwards."""
    node = str(lab.get("nodes", "-l", "everstep.io/spare-for")["items"][0]["metadata"]["name"])
    until(f"{node} healthy", lambda: status(lab, node).get("verdict") == "Healthy")
    try:
        yield node
    finally:
        for gpu in range(lab.config.gpus):
            lab.set_gpu_state(node, "well", gpu)
        until(f"{node} healthy again", lambda: status(lab, node).get("verdict") == "Healthy", 60)


def status(lab: Lab, node: str) -> dict[str, Any]:
    return dict(lab.get("nodehealth", node).get("status", {}))


def test_the_agent_and_the_process_that_asks_take_less_than_60_mb(lab: Lab, spare: str) -> None:
    processes = lab.execute(spare, "pgrep", "-f", "python3 -m everstep.apps.agent|nvml_child.py").split()
    assert len(processes) == 2
    files = [f"/proc/{process}/smaps_rollup" for process in processes]
    lines = lab.execute(spare, "grep", "-h", "^Pss:", *files).splitlines()
    assert sum(int(line.split()[1]) for line in lines) < 60 * 1024  # kB


def test_a_row_that_could_not_be_remapped_is_a_fault_of_its_gpu(lab: Lab, spare: str) -> None:
    serial = status(lab, spare)["gpus"][1]["serial"]
    lab.set_gpu_state(spare, "remap-failed", 1)
    until("Faulty", lambda: status(lab, spare)["verdict"] == "Faulty")
    (fault,) = [each for each in status(lab, spare)["faults"] if each["code"] == "gpu_remap_failed"]
    assert (fault["gpuIndex"], fault["gpuSerial"], fault["action"]) == (1, serial, "replaceNode")


def test_a_driver_that_hangs_leaves_the_node_unknown_until_it_answers(lab: Lab, spare: str) -> None:
    lab.set_gpu_state(spare, "hang", 0)
    until("Unknown", lambda: status(lab, spare)["verdict"] == "Unknown")
    assert "no answer" in status(lab, spare)["reason"]
