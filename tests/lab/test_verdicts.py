"""What the nodes of a real cluster show of their health: the agent's verdict, and evidence of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.lab.cluster import Lab
from everstep.lab.demo.login import until

pytestmark = pytest.mark.lab
NODE = "gpu-2"


def condition(lab: Lab, node: str, type_: str = "EverstepHealthy") -> dict[str, str]:
    conditions = lab.get("node", node)["status"]["conditions"]
    return next((dict(each) for each in conditions if each["type"] == type_), {})


def set_condition(lab: Lab, status: str) -> None:
    """What node-problem-detector would write."""
    entry = {"type": "GpuHealthy", "status": status, "reason": "EccLimit", "message": "512 rows are remapped"}
    patch = json.dumps({"status": {"conditions": [{**entry, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    lab.kubectl("patch", "node", NODE, "--subresource=status", "--type=strategic", "-p", patch)


def set_rules(lab: Lab, rules: list[dict[str, Any]]) -> None:
    patch = json.dumps({"spec": {"nodeConditions": rules}})
    lab.kubectl("patch", "remediationpolicy", "default", "--type=merge", "-p", patch)


def test_every_gpu_node_shows_its_agents_verdict_and_no_other_does(lab: Lab) -> None:
    for node in lab.config.gpu_nodes:
        until(f"{node} is healthy", 30, lambda node=node: condition(lab, node).get("status") == "True")  # type: ignore[misc]
        assert "GPUs answer" in condition(lab, node)["message"]
    assert condition(lab, "sys-1") == {}


def test_a_condition_of_somebody_else_counts_while_the_policy_names_it(lab: Lab) -> None:
    set_condition(lab, "False")
    try:
        assert condition(lab, NODE)["status"] == "True", "nobody has named it"
        set_rules(lab, [{"type": "GpuHealthy", "status": "False", "action": "None", "forSeconds": 0}])
        until("the node shows it", 15, lambda: condition(lab, NODE)["status"] == "False")
        shown = condition(lab, NODE)
        assert shown["reason"] == "ConditionGpuHealthy"
        assert "EccLimit: 512 rows are remapped" in shown["message"]
        assert not [r for r in lab.get("remediations")["items"] if r["spec"]["faults"][0]["kind"] == "condition"]
        set_condition(lab, "True")
        until("it is over with the condition", 15, lambda: condition(lab, NODE)["status"] == "True")
    finally:
        set_rules(lab, [])
        set_condition(lab, "True")
