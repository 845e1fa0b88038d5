"""The agent in the lab's pods: seen in time, small, without rights, and none the worse for being killed.

Application-class XIDs only: they are noted and nobody heals, so the lab stays as it is for the other tests.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from everstep.lab.cluster import Lab

pytestmark = pytest.mark.lab
NODE = "gpu-2"
POD = ("-n", "everstep-system", "-l", "app.kubernetes.io/component=agent", f"--field-selector=spec.nodeName={NODE}")
_codes = itertools.cycle((31, 13, 43))


def until(what: str, check: Callable[[], Any], seconds: float = 30.0) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < give_up, f"not {what} within {seconds} s"
        time.sleep(0.05)
    return found


def noted(lab: Lab, code: int) -> int:
    """How often NodeHealth counts an XID of GPU 1."""
    faults = lab.get("nodehealth", NODE)["status"].get("faults", [])
    return sum(fault.get("count", 1) for fault in faults if fault["code"] == str(code) and fault["gpuIndex"] == 1)


def agent_pod(lab: Lab) -> dict[str, Any]:
    pods = json.loads(lab.kubectl("get", "pods", *POD, "-o", "json"))["items"]
    (alive,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return dict(alive)


def test_a_line_of_the_kernel_is_seen_within_a_second(lab: Lab) -> None:
    code = next(_codes)
    before = noted(lab, code)
    lab.inject(NODE, code, 1)
    started = time.monotonic()
    until("noted", lambda: noted(lab, code) == before + 1)
    assert time.monotonic() - started < 1.0
    assert lab.get("nodehealth", NODE)["status"]["verdict"] == "Healthy"


def test_a_killed_agent_comes_back_and_has_missed_nothing(lab: Lab) -> None:
    code = next(_codes)
    before, pod = noted(lab, code), agent_pod(lab)["metadata"]["name"]
    lab.kubectl("delete", "pod", "-n", "everstep-system", pod, "--grace-period=0", "--force", "--wait=false")
    for _ in range(3):
        lab.inject(NODE, code, 1)
    until("a new agent", lambda: agent_pod(lab)["metadata"]["name"] != pod)
    until("all noted", lambda: noted(lab, code) >= before + 3)
    assert noted(lab, code) == before + 3


def test_the_agent_runs_without_rights_and_within_its_memory(lab: Lab) -> None:
    (status,) = lab.execute(NODE, "pgrep", "-f", "python3 -m everstep.apps.agent").split()
    memory = lab.execute(NODE, "grep", "-E", "^(VmHWM|CapEff)", f"/proc/{status}/status")
    fields = dict(line.split(":\t") for line in memory.strip().splitlines())
    assert int(fields["CapEff"], 16) == 0
    assert int(fields["VmHWM"].split()[0]) < 60 * 1024


def test_every_gpu_node_has_a_heartbeat(lab: Lab) -> None:
    leases = json.loads(lab.kubectl("get", "leases", "-n", "everstep-node-lease", "-o", "json"))["items"]
    assert {lease["metadata"]["name"] for lease in leases} >= set(lab.config.gpu_nodes)
