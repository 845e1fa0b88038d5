"""Evidence of others: kept word for word, shown, acted on only where the policy says so, and never undone by us."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.foreign import DRAINED, decided_by_a_person, foreign_faults, is_foreign
from everstep.core.health import FaultClass, NodeReport, Verdict
from everstep.core.node_verdict import verdict_condition
from everstep.core.policy import ConditionRule, DrainRule, Policy
from everstep.core.remediation_status import Outcome, Stage
from everstep.core.scheduler_state import SlurmNode
from everstep.engine.verdicts import PAUSE, Verdicts
from everstep.testing.scenario import Scenario

BY_HAND = "bad cable, ask Ada"
RULES = (DrainRule("^NHC: .*GPU", True), DrainRule("GPU", False), DrainRule("ECC", True))
LOST = ConditionRule("GpuHealthy", "False", FaultClass.HARDWARE, True)
POLICY = Policy(slurm_drains=RULES, node_conditions=(LOST,), validate_deadline=30.0)


def scenario_of(policy: Policy = POLICY, **more: object) -> Scenario:
    return Scenario(policy=policy, nodes=3, looks_across=True, **more)  # type: ignore[arg-type]


def run(scenario: Scenario, seconds: float) -> None:
    asyncio.run(scenario.run(seconds))


def show(scenario: Scenario) -> None:
    """One comparison of what the nodes show with what they ought to."""
    process = scenario.processes[0]
    verdicts = Verdicts(scenario.world, process.sight, lambda: True)

    async def look() -> None:
        task = asyncio.create_task(verdicts.show())
        while not task.done():
            await asyncio.sleep(0)
            scenario.clock.move_to(scenario.clock.now() + PAUSE)  # between two writes it sleeps
        await task

    asyncio.run(look())


def drained(scenario: Scenario, node: str = "gpu-1") -> NodeCondition | None:
    return scenario.fleet.nodes[node].conditions.get(DRAINED)


def set_condition(scenario: Scenario, node: str, status: str) -> None:
    now = scenario.clock.now()
    condition = NodeCondition("GpuHealthy", status, "EccLimit", "GPU 3: 512 rows are remapped", now)
    scenario.fleet.nodes[node].conditions["GpuHealthy"] = condition


def test_a_drain_of_somebody_else_is_shown_with_its_reason_and_nothing_is_done() -> None:
    scenario = scenario_of(Policy())
    scenario.slurm.update_node("gpu-1", "DRAIN", BY_HAND)
    run(scenario, 60.0)
    show(scenario)
    shown = drained(scenario)
    assert shown is not None
    assert shown.message == f"drained in Slurm cluster slurm/main by somebody else: {BY_HAND}"
    assert drained(scenario, "gpu-2") is None, "a node that nobody drained shows nothing"
    assert [(name, reason) for kind, name, reason, _ in scenario.cluster.events] == [("gpu-1", "SlurmDrained")]
    assert not scenario.records.records
    scenario.slurm.reachable = False
    run(scenario, 60.0)
    show(scenario)
    assert drained(scenario) == shown, "what could not be asked is not over"
    scenario.slurm.reachable = True
    scenario.slurm.update_node("gpu-1", "RESUME", "")
    run(scenario, 20.0)
    show(scenario)
    cleared = drained(scenario)
    assert cleared is not None
    assert cleared.status == "False"


@pytest.mark.parametrize(
    ("reason", "replaced"),
    [("NHC: GPU 3 lost", True), ("the GPU is mine today", False), ("ECC storm", True), (BY_HAND, False)],
)
def test_the_first_rule_that_matches_a_drains_reason_decides(reason: str, replaced: bool) -> None:
    scenario = scenario_of()
    scenario.slurm.update_node("gpu-1", "DRAIN", reason)
    run(scenario, 120.0)
    assert bool(scenario.records.records) is replaced
    if replaced:
        record = scenario.record("gpu-1")
        assert record.status.outcome is Outcome.SUCCEEDED
        assert reason in record.spec.faults[0].reason
    else:
        assert scenario.slurm.nodes["gpu-1"].reason == reason


def test_a_drain_that_is_lifted_before_its_turn_comes_opens_nothing_lasting() -> None:
    scenario = scenario_of(replace(POLICY, budget=1))
    scenario.fleet.nodes["gpu-4"].ready = False  # no spare: the first heal keeps the budget
    scenario.fleet.repair_seconds = None
    scenario.fleet.break_gpu("gpu-2")
    run(scenario, 5.0)
    scenario.slurm.update_node("gpu-1", "DRAIN", "ECC storm")
    run(scenario, 30.0)
    assert scenario.record("gpu-1").status.stage is Stage.PENDING
    scenario.slurm.update_node("gpu-1", "RESUME", "")
    run(scenario, 20.0)
    record = scenario.record("gpu-1")
    assert record.status.outcome is Outcome.CANCELLED
    assert "in service in Slurm again" in record.status.reason


def test_a_persons_drain_outlives_the_replacement_of_its_node() -> None:
    scenario = scenario_of(Policy())
    scenario.slurm.update_node("gpu-1", "DRAIN", BY_HAND)
    scenario.fleet.break_gpu("gpu-1")
    run(scenario, 120.0)
    assert scenario.record("gpu-1").status.outcome is Outcome.SUCCEEDED
    assert scenario.slurm.nodes["gpu-1"].reason == BY_HAND


@pytest.mark.parametrize(
    ("states", "reason", "foreign", "person"),
    [
        ({"IDLE", "DRAIN"}, BY_HAND, True, True),
        ({"IDLE", "DRAIN"}, "", True, True),
        ({"IDLE", "DRAIN"}, "everstep: xid 79, gpu-1-xid-79-1", False, False),
        ({"IDLE", "DRAIN"}, "Kill task failed", True, False),
        ({"IDLE", "DRAIN"}, "gres/gpu count reported lower than configured (7 < 8)", True, False),
        ({"DOWN", "NOT_RESPONDING"}, "Not responding", False, False),
        ({"IDLE"}, "left over", False, False),
    ],
)
def test_whose_drain_it_is(states: set[str], reason: str, foreign: bool, person: bool) -> None:
    node = SlurmNode("gpu-1", frozenset(states), reason)
    assert (is_foreign(node), decided_by_a_person(node)) == (foreign, person)


def test_a_condition_that_the_policy_names_replaces_the_node_once_it_has_stood() -> None:
    scenario = scenario_of()
    set_condition(scenario, "gpu-1", "False")
    run(scenario, LOST.seconds - 5.0)
    assert not scenario.records.records, "checks of others flap"
    run(scenario, 60.0)
    record = scenario.record("gpu-1")
    assert record.status.outcome is Outcome.SUCCEEDED
    said = "condition GpuHealthy of node gpu-1 is False (EccLimit: GPU 3: 512 rows are remapped)"
    assert record.spec.faults[0].reason == said


@pytest.mark.parametrize("policy", [Policy(), replace(POLICY, node_conditions=(replace(LOST, replace=False),))])
def test_a_condition_without_an_order_replaces_nothing(policy: Policy) -> None:
    scenario = scenario_of(policy)
    set_condition(scenario, "gpu-1", "False")
    run(scenario, 120.0)
    assert not scenario.records.records


def test_a_condition_that_clears_before_anything_is_done_ends_the_incident() -> None:
    scenario = scenario_of(replace(POLICY, budget=1))
    scenario.fleet.nodes["gpu-4"].ready = False  # no spare: the first heal keeps the budget
    scenario.fleet.repair_seconds = None
    scenario.fleet.break_gpu("gpu-2")
    set_condition(scenario, "gpu-1", "False")
    run(scenario, 80.0)
    assert scenario.record("gpu-1").status.stage is Stage.PENDING
    set_condition(scenario, "gpu-1", "True")
    run(scenario, 20.0)
    assert scenario.record("gpu-1").status.outcome is Outcome.CANCELLED
    assert "has cleared" in scenario.record("gpu-1").status.reason


def test_a_spare_with_such_a_condition_is_not_used() -> None:
    scenario = scenario_of()
    set_condition(scenario, "gpu-4", "False")
    run(scenario, 70.0)
    scenario.fleet.break_gpu("gpu-1")
    run(scenario, 60.0)
    assert scenario.record("gpu-1").status.stage is Stage.REPLACING
    assert "gpu-4" not in scenario.fleet.in_service()


def test_evidence_of_others_shows_where_the_agent_finds_nothing() -> None:
    node = NodeView(
        "gpu-1", "uid", "1", True, False, "boot-1",
        conditions=(NodeCondition("GpuHealthy", "False", "EccLimit", "512 rows", 0.0),),
    )  # fmt: skip
    report = NodeReport("gpu-1", Verdict.HEALTHY, "boot-1", reason="8 GPUs answer", heartbeat=99.0)
    shown = verdict_condition(100.0, node, report, foreign_faults(100.0, node, POLICY))
    assert shown is not None
    assert (shown.status, shown.reason) == ("False", "ConditionGpuHealthy")
    assert "512 rows" in shown.message
