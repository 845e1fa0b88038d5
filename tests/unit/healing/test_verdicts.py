"""The agents' verdicts as conditions of the nodes: on change, at a bounded rate, and Unknown once an agent is dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from everstep.core.cluster_state import NodeCondition, NodeView
from everstep.core.errors import Unreadable
from everstep.core.health import NodeReport, Verdict
from everstep.core.node_verdict import HEALTHY, verdict_condition
from everstep.core.policy import Policy
from everstep.engine.sight import Sight
from everstep.engine.verdicts import BATCH, ECHO, GATHER, LOOK_EVERY, PAUSE, Verdicts
from everstep.testing.scenario import Scenario

NOW = 1_000_000.0
NODE = NodeView("gpu-1", "uid", "1", True, False, "boot-1", {"everstep.io/pool": "train"})
REPORT = NodeReport("gpu-1", Verdict.HEALTHY, "boot-1", reason="8 GPUs answer", heartbeat=NOW - 5)


def said(node: NodeView = NODE, report: NodeReport | None = REPORT) -> tuple[str, str] | None:
    condition = verdict_condition(NOW, node, report)
    return (condition.status, condition.reason) if condition else None


def test_the_condition_says_what_the_agent_says_and_no_more() -> None:
    assert said() == ("True", "NoFault")
    assert said(report=replace(REPORT, verdict=Verdict.UNKNOWN)) == ("Unknown", "SourceBroken")
    assert said(report=None) == ("Unknown", "NoReport")
    assert said(report=replace(REPORT, heartbeat=None)) == ("Unknown", "NoHeartbeat")
    assert said(report=replace(REPORT, heartbeat=NOW - 39)) == ("True", "NoFault")
    assert said(report=replace(REPORT, heartbeat=NOW - 41)) == ("Unknown", "AgentSilent")
    assert said(replace(NODE, boot_id="boot-2")) == ("Unknown", "StaleReport")
    assert said(replace(NODE, labels={}), None) is None, "no agent looks after this node"


class Shown:
    """A scenario with the verdicts' loop beside it, driven by hand."""

    def __init__(self, nodes: int) -> None:
        self.scenario = Scenario(nodes=nodes, spares=0)
        self.leads = True
        self.sight = Sight()
        self.runner = asyncio.Runner()  # one event loop, however often the test lets time pass
        self.verdicts = Verdicts(self.scenario.world, self.sight, lambda: self.leads)

    async def run(self, seconds: float) -> None:
        task = asyncio.create_task(self.verdicts.run())
        end = self.scenario.clock.now() + seconds
        while (now := self.scenario.clock.now()) < end:
            for _ in range(20):
                await asyncio.sleep(0)
            due = self.scenario.clock.next_event()
            self.scenario.clock.move_to(min(end, max(due or end, now)))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def of(self, node: str) -> NodeCondition:
        return self.scenario.fleet.nodes[node].conditions[HEALTHY]

    def events(self) -> list[tuple[str, str]]:
        return [(name, reason) for kind, name, reason, _ in self.scenario.cluster.events if kind == "Node"]


@pytest.fixture
def show() -> Iterator[Callable[..., Shown]]:
    with contextlib.ExitStack() as stack:

        def make(nodes: int = 2) -> Shown:
            shown = Shown(nodes)
            stack.enter_context(shown.runner)
            return shown

        yield make


def run(shown: Shown, seconds: float, hints: Iterable[str] = ()) -> None:
    for name in hints:
        shown.verdicts.hint("NodeHealth", name)
    shown.runner.run(shown.run(seconds))


def test_it_is_written_on_change_only(show: Callable[..., Shown]) -> None:
    shown = show()
    run(shown, 60.0)
    assert shown.scenario.cluster.conditions_written == 2
    assert shown.events() == [], "a node that is well is no news"
    shown.scenario.fleet.break_gpu("gpu-1")
    run(shown, 60.0)
    assert shown.of("gpu-1").status == "False"
    assert shown.of("gpu-1").reason == "Xid79"
    assert shown.events() == [("gpu-1", "EverstepFaulty")]
    assert shown.scenario.cluster.conditions_written == 3


def test_a_report_shows_within_a_moment_of_the_hint(show: Callable[..., Shown]) -> None:
    shown = show()
    run(shown, 2.0)
    shown.scenario.fleet.break_gpu("gpu-1")
    shown.verdicts = Verdicts(shown.scenario.world, shown.sight, lambda: True)
    run(shown, 0.2, hints=["gpu-1"])
    assert shown.of("gpu-1").status == "False"


def test_the_time_of_the_last_transition_is_kept_while_the_status_stays(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.scenario.fleet.break_gpu("gpu-1")
    run(shown, 10.0)
    first = shown.of("gpu-1")
    shown.scenario.fleet.nodes["gpu-1"].faults = (
        replace(shown.scenario.fleet.nodes["gpu-1"].faults[0], code="48"),
    )  # fmt: skip
    run(shown, 10.0)
    assert shown.of("gpu-1").reason == "Xid48"
    assert shown.of("gpu-1").since == first.since


def test_a_dead_agent_shows_as_unknown_within_a_minute(show: Callable[..., Shown]) -> None:
    shown = show()
    run(shown, 100.0)
    shown.scenario.fleet.power_off("gpu-1")
    died = shown.scenario.clock.now()
    run(shown, 60.0)
    assert shown.of("gpu-1").status == "Unknown"
    assert shown.of("gpu-1").since - died <= 60.0
    assert "silent for more than 40 s" in shown.of("gpu-1").message
    assert shown.of("gpu-2").status == "True"
    assert shown.events() == [("gpu-1", "EverstepUnknown")]


def test_who_could_not_look_for_a_while_calls_nobody_silent_yet(show: Callable[..., Shown]) -> None:
    """The API server was away: no agent could renew, and every heartbeat looks old until the next one comes."""
    shown = show()
    run(shown, 100.0)
    shown.scenario.cluster.reachable = False
    for node in list(shown.scenario.fleet.nodes):
        shown.scenario.fleet.power_off(node)
    run(shown, 200.0)
    shown.scenario.cluster.reachable = True
    run(shown, 20.0)
    assert {shown.of(name).status for name in shown.scenario.fleet.nodes} == {"True"}
    run(shown, 60.0)
    assert {shown.of(name).status for name in shown.scenario.fleet.nodes} == {"Unknown"}
    run(shown, 60.0)
    restarted = Verdicts(shown.scenario.world, shown.sight, lambda: True)
    shown.verdicts = restarted
    run(shown, 10.0)
    assert {shown.of(name).status for name in shown.scenario.fleet.nodes} == {"Unknown"}, "silence is not forgotten"


def test_a_first_start_is_no_storm_and_the_sick_come_first(show: Callable[..., Shown]) -> None:
    shown = show(nodes=3 * BATCH)
    shown.scenario.fleet.break_gpu("gpu-70")
    run(shown, BATCH * PAUSE)
    written = shown.scenario.cluster.conditions_written
    assert 0 < written <= BATCH + 2
    assert HEALTHY in shown.scenario.fleet.nodes["gpu-70"].conditions
    shown.scenario.fleet.break_gpu("gpu-71")
    run(shown, GATHER + 4 * PAUSE, hints=["gpu-71"])
    assert shown.of("gpu-71").status == "False", "what is new does not wait for the rest"
    run(shown, LOOK_EVERY + 3.0)
    assert shown.scenario.cluster.conditions_written == 3 * BATCH


def test_who_does_not_lead_writes_nothing(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.leads = False
    run(shown, 60.0)
    assert shown.scenario.cluster.conditions_written == 0


@pytest.mark.parametrize("seconds", [ECHO / 2])
def test_a_write_that_the_watch_has_not_shown_yet_is_not_repeated(seconds: float, show: Callable[..., Shown]) -> None:
    shown = show()
    run(shown, 1.0)
    for node in shown.scenario.fleet.nodes.values():
        node.conditions.clear()  # the cache is behind
    run(shown, seconds, hints=["gpu-1", "gpu-2"])
    assert shown.scenario.cluster.conditions_written == 2
    run(shown, 2 * LOOK_EVERY)
    assert shown.scenario.cluster.conditions_written == 4, "somebody took them off: they are written again"


def test_a_policy_that_cannot_be_read_does_not_hide_what_nodes_are(show: Callable[..., Shown]) -> None:
    shown = show()

    async def unreadable() -> Policy:
        raise Unreadable("mode is Destroy")

    shown.scenario.records.policy = unreadable  # type: ignore[method-assign]
    shown.scenario.fleet.break_gpu("gpu-1")
    run(shown, 10.0)
    assert shown.of("gpu-1").status == "False"
