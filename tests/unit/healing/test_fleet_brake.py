"""What many nodes share: written down and told once, and not answered by replacing them one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from everstep.core.correlation.fleet import Blame, FleetRules
from everstep.core.health import Fault, FaultClass, FirstAction, Severity
from everstep.core.policy import Policy
from everstep.core.remediation_status import Outcome, Stage
from everstep.testing.crashes import CrashPlan, Side
from everstep.testing.scenario import Process, Scenario
from everstep.testing.slurm_training import JobSpec

NODES = 8
POLICY = Policy(budget=NODES, breaker_starts=50)


def fleet(policy: Policy = POLICY, job_nodes: int = 2) -> Scenario:
    return Scenario(policy=policy, nodes=NODES, spares=NODES, job=JobSpec(nodes=job_nodes), looks_across=True)


def run(scenario: Scenario, seconds: float) -> None:
    asyncio.run(scenario.run(seconds))


def incidents(scenario: Scenario) -> dict[str, Stage]:
    return {r.spec.node: r.status.stage for r in scenario.records.records.values()}


def report(scenario: Scenario, names: Iterable[str], code: str, kind: FaultClass, subject: str = "node") -> None:
    """The agents of these nodes report one code now."""
    now = scenario.clock.now()
    for name in names:
        node = scenario.fleet.nodes[name]
        key, action = f"{code}@{subject}", FirstAction.REPLACE_NODE
        family, _, number = code.partition(":")
        fault = Fault(
            key, family, number, kind, Severity.CRITICAL, action, code, first_seen=now, last_seen=now, boot_id=node.boot
        )
        node.faults = (*node.faults, fault)


def test_the_first_of_many_nodes_with_one_code_is_healed_and_the_others_are_not() -> None:
    scenario = fleet()
    for number in range(1, 6):
        scenario.fleet.break_gpu(f"gpu-{number}")
    run(scenario, 200.0)
    assert list(incidents(scenario)) == ["gpu-1"]
    assert scenario.record("gpu-1").status.outcome is Outcome.SUCCEEDED
    (record,) = scenario.fleet_incidents.records.values()
    assert (record.blame, record.code, len(record.nodes)) == (Blame.COMMON, "xid:79", 5)
    told = [n for n in scenario.notifier.notices if n.fleet_incident]
    assert len(told) == 1
    assert "gpu-2" in {name for kind, name, reason, _ in scenario.cluster.events if reason == "FleetIncident"}


def test_heals_that_wait_when_the_fourth_node_breaks_wait_for_a_person_then() -> None:
    scenario = fleet(replace(POLICY, budget=1))
    for number in range(1, 4):
        scenario.fleet.break_gpu(f"gpu-{number}")
    run(scenario, 2.5)
    scenario.fleet.break_gpu("gpu-4")
    run(scenario, 2.0)
    assert set(incidents(scenario)) == {"gpu-1", "gpu-2", "gpu-3"}
    assert incidents(scenario)["gpu-1"] not in (Stage.PENDING, Stage.ADMITTED), "what has begun goes on"
    run(scenario, 90.0)
    assert scenario.record("gpu-1").status.outcome is Outcome.SUCCEEDED
    waiting = scenario.record("gpu-2").status
    assert waiting.stage is Stage.PENDING
    assert "xid:79 on 4 nodes at one moment: a common cause" in waiting.reason
    scenario.fleet.break_gpu("gpu-8", code="48")
    run(scenario, 20.0)
    assert scenario.record("gpu-8").status.stage is not Stage.PENDING, "nobody waits behind those who are held"
    scenario.records.in_force = replace(scenario.policy, fleet=FleetRules(common_nodes=1000))
    run(scenario, 300.0)
    assert {r.status.outcome for r in scenario.records.records.values()} == {Outcome.SUCCEEDED}
    assert set(incidents(scenario)) == {"gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-8"}


def test_a_rack_that_loses_its_power_is_not_replaced_machine_by_machine() -> None:
    scenario = fleet()
    for number in range(1, 5):
        scenario.fleet.power_off(f"gpu-{number}")
    run(scenario, 150.0)
    assert len(incidents(scenario)) == 1
    (record,) = scenario.fleet_incidents.records.values()
    assert (record.blame, record.code) == (Blame.COMMON, "host:node-lost")


def test_three_nodes_with_one_code_are_three_faults() -> None:
    scenario = fleet()
    for number in range(1, 4):
        scenario.fleet.break_gpu(f"gpu-{number}")
    run(scenario, 200.0)
    assert {r.status.outcome for r in scenario.records.records.values()} == {Outcome.SUCCEEDED}
    assert len(incidents(scenario)) == 3
    assert not scenario.fleet_incidents.records


SUSPECT_TOO = replace(POLICY, replace=frozenset({FaultClass.HARDWARE, FaultClass.SUSPECT}))


def test_a_code_on_all_nodes_of_a_job_is_the_jobs_fault() -> None:
    scenario = fleet(SUSPECT_TOO, job_nodes=4)
    mine = scenario.slurm.jobs[scenario.job_id].nodes
    run(scenario, 10.0)
    report(scenario, mine, "xid:45", FaultClass.SUSPECT)
    run(scenario, 60.0)
    assert incidents(scenario) == {}
    (record,) = scenario.fleet_incidents.records.values()
    assert (record.blame, record.about) == (Blame.JOB, f"slurm/main/{scenario.job_id}")
    assert set(record.nodes) == set(mine)
    (notice,) = scenario.notifier.notices
    assert (notice.user, notice.job) == ("alice", scenario.job_id), "it is its owner's matter"


def test_a_job_that_breaks_in_two_ways_is_one_incident() -> None:
    scenario = fleet(job_nodes=4)
    run(scenario, 10.0)
    for code in ("xid:31", "xid:43"):
        report(scenario, scenario.slurm.jobs[scenario.job_id].nodes, code, FaultClass.APPLICATION)
    run(scenario, 10.0)
    (record,) = scenario.fleet_incidents.records.values()
    assert record.code == "xid:31"
    writes = scenario.fleet_incidents.writes
    run(scenario, 30.0)
    assert scenario.fleet_incidents.writes == writes
    assert len(scenario.notifier.notices) == 1


def test_while_slurm_is_silent_no_job_is_blamed() -> None:
    scenario = fleet(SUSPECT_TOO, job_nodes=3)
    scenario.slurm.reachable = False
    mine = scenario.slurm.jobs[scenario.job_id].nodes
    report(scenario, mine, "xid:45", FaultClass.SUSPECT)
    run(scenario, 60.0)
    assert set(incidents(scenario)) == set(mine)
    assert not scenario.fleet_incidents.records


def test_a_file_server_that_many_nodes_lose_is_one_incident_that_is_told_once() -> None:
    scenario = fleet()
    for number in range(1, 8):
        report(scenario, [f"gpu-{number}"], "host:file_server_lost", FaultClass.STORAGE, "10.0.0.9")
        run(scenario, 40.0)
    (record,) = scenario.fleet_incidents.records.values()
    assert (record.blame, record.about, len(record.nodes)) == (Blame.STORAGE, "10.0.0.9", 7)
    assert incidents(scenario) == {}
    scenario.processes[:] = [Process(scenario)]  # it knows nothing of what the first one told
    run(scenario, 60.0)
    assert len([n for n in scenario.notifier.notices if n.fleet_incident]) == 1
    writes = scenario.fleet_incidents.writes
    run(scenario, 60.0)
    assert scenario.fleet_incidents.writes == writes, "it is written on change only"
    for node in scenario.fleet.nodes.values():
        node.faults = ()
    run(scenario, 60.0)
    (record,) = scenario.fleet_incidents.records.values()
    assert record.ended_at is not None
    scenario.fleet_incidents.records[record.name] = replace(record, ended_at=record.ended_at - 8 * 86_400.0)
    run(scenario, 6.0)
    assert not scenario.fleet_incidents.records, "a week later nobody needs it"


def test_an_incident_does_not_end_because_slurm_cannot_be_asked() -> None:
    scenario = fleet(job_nodes=4)
    run(scenario, 10.0)
    report(scenario, scenario.slurm.jobs[scenario.job_id].nodes, "xid:31", FaultClass.APPLICATION)
    run(scenario, 10.0)
    scenario.slurm.reachable = False
    run(scenario, 120.0)
    (record,) = scenario.fleet_incidents.records.values()
    assert record.ended_at is None


def test_whenever_the_controller_dies_people_are_told_and_at_most_twice() -> None:
    def disturbed(at: int, side: Side) -> Scenario:
        plan = CrashPlan(at, side)
        scenario = Scenario(nodes=4, spares=0, looks_across=True, plan=plan)
        report(scenario, ["gpu-1", "gpu-2", "gpu-3"], "host:file_server_lost", FaultClass.STORAGE, "10.0.0.9")
        run(scenario, 15.0)
        return scenario

    calls = disturbed(0, Side.BEFORE).plan.calls
    points = [
        at for at, call in enumerate(calls, start=1) if call.startswith(("fleet_incidents", "notifier", "cluster.ev"))
    ]
    assert len(points) >= 8
    for at in points:
        for side in (Side.BEFORE, Side.AFTER):
            scenario = disturbed(at, side)
            assert scenario.crashes == 1
            (record,) = scenario.fleet_incidents.records.values()
            assert record.told, f"killed {side} call {at} ({calls[at - 1]})"
            assert 1 <= len(scenario.notifier.notices) <= 2
            shown = {name for kind, name, reason, _ in scenario.cluster.events if reason == "FleetIncident"}
            assert shown == set(record.nodes)
