"""A GPU that moves: the node that has it now is told what other nodes remember of it, once, and only if it is sure."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from everstep.core.health import Gpu, NodeReport, Verdict
from everstep.core.inheritance import inheritances
from everstep.core.occurrences import Occurrence
from everstep.testing.scenario import Scenario

NOW = 1_000_000.0
PAST = Occurrence("serial-7", "xid:48", NOW - 86_400.0, "boot-a")
OTHER = Occurrence("serial-8", "xid:48", NOW - 86_400.0, "boot-a")


def report(node: str, *serials: str, heartbeat: float = NOW - 5, history: tuple[Occurrence, ...] = ()) -> NodeReport:
    gpus = tuple(Gpu(index, f"uuid-{serial}", serial, f"{index}") for index, serial in enumerate(serials))
    return NodeReport(node, Verdict.HEALTHY, "boot", gpus=gpus, heartbeat=heartbeat, history=history)


def found(*reports: NodeReport) -> dict[str, tuple[Occurrence, ...]]:
    return inheritances(NOW, {each.node: each for each in reports})


def test_the_node_that_has_the_gpu_now_is_told() -> None:
    old, new = report("a", "serial-1", history=(PAST, OTHER)), report("b", "serial-7")
    assert found(old, new) == {"b": (PAST,)}
    assert found(old, replace(new, inherited=(PAST,))) == {}, "once"
    taken_over = replace(new, inherited=(PAST,), history=(PAST,))
    assert found(old, taken_over) == {"b": ()}, "what the agent knows itself need not be told"
    assert found(old, replace(taken_over, inherited=())) == {}


def test_the_jobs_of_another_node_accuse_nobody_here() -> None:
    crash = replace(PAST, code="xid:13", lineages=("uid 1000",))
    assert found(report("a", history=(crash,)), report("b", "serial-7")) == {"b": (replace(crash, lineages=()),)}


def test_a_machine_that_is_gone_still_remembers() -> None:
    assert found(report("a", "serial-7", heartbeat=NOW - 3600, history=(PAST,)), report("b", "serial-7")) == {
        "b": (PAST,)
    }


def test_a_gpu_that_is_where_it_was_inherits_nothing() -> None:
    assert found(report("a", "serial-7", history=(PAST,)), report("b", "serial-9")) == {}


def test_a_serial_number_that_two_nodes_report_names_no_part() -> None:
    shared = [report("a", "serial-7", history=(PAST,)), report("b", "serial-7"), report("c", "serial-7")]
    assert found(*shared) == {}
    assert found(report("a", "", history=(replace(PAST, device=""),)), report("b", "")) == {}


def test_what_is_older_than_a_week_is_forgotten() -> None:
    old = report("a", history=(replace(PAST, at=NOW - 8 * 86_400.0),))
    assert found(old, report("b", "serial-7")) == {}


def test_an_agent_that_is_silent_is_told_nothing() -> None:
    assert found(report("a", history=(PAST,)), report("b", "serial-7", heartbeat=NOW - 60)) == {}


def test_the_controller_passes_it_on() -> None:
    scenario = Scenario(looks_across=True)
    gpu = scenario.fleet.report(scenario.fleet.nodes["gpu-2"]).gpus[0]
    past = Occurrence(gpu.serial, "xid:48", scenario.clock.now() - 60.0, "boot")
    scenario.fleet.nodes["gpu-1"].history = (past,)
    asyncio.run(scenario.run(10.0))
    assert scenario.fleet.nodes["gpu-2"].inherited == (past,)
