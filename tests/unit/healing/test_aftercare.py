"""How the repair of a machine ended is on record, whatever befalls the controller meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.core.aftercare import ASK_LEAST, REPAIR_LIMIT, answered, ask_again, goes_on, unanswered
from everstep.core.machine_state import Operation, OperationState
from everstep.core.remediation_status import OperationMark, Outcome, Remediation, Spec, Stage, Status
from everstep.engine.controller import Controller
from everstep.engine.leader import Leadership
from everstep.testing.crashes import CrashPlan, Side
from everstep.testing.scenario import Scenario
from everstep.testing.storage import FakeLease

DAY = 86400.0


def repaired(scenario: Scenario, seconds: float = 400.0) -> OperationMark:
    """Runs until the end of the repair is on record."""

    def over() -> bool:
        marks = [r.status.operation for r in scenario.records.records.values()]
        return bool(marks) and all(mark is not None and mark.ended_at is not None for mark in marks)

    asyncio.run(scenario.run(seconds, until=over))
    mark = scenario.record().status.operation
    assert mark is not None
    return mark


def broken(plan: CrashPlan | None = None) -> Scenario:
    scenario = Scenario(plan=plan or CrashPlan())
    scenario.fleet.repair_seconds = 40.0
    scenario.fleet.break_gpu("gpu-1")
    return scenario


def test_the_end_of_the_repair_is_on_record_and_told() -> None:
    scenario = broken()
    mark = repaired(scenario)
    assert mark.state == "done"
    assert mark.ended_at is not None
    assert mark.acknowledged_at is not None
    late = mark.ended_at - mark.acknowledged_at - 40.0
    assert 0.0 <= late < 8.0
    status = scenario.record().status
    assert status.outcome is Outcome.SUCCEEDED
    assert status.resolved_at is not None
    assert status.resolved_at < mark.ended_at, "the incident did not wait for it"
    told = [event for event in scenario.cluster.events if event[2] == "RepairDone"]
    assert told == [("Remediation", scenario.record().name, "RepairDone", "the provider has repaired machine gpu-1")]


def fails(scenario: Scenario) -> None:
    for key, operation in scenario.fleet.operations.items():
        scenario.fleet.operations[key] = replace(operation, state=OperationState.FAILED, message="no part in stock")


def forgets(scenario: Scenario) -> None:
    scenario.fleet.operations.clear()


@pytest.mark.parametrize(
    ("happens", "state", "message"),
    [(fails, "failed", "no part in stock"), (forgets, "unknown", "the provider no longer knows it")],
)
def test_a_repair_that_ends_otherwise(happens: Callable[[Scenario], None], state: str, message: str) -> None:
    scenario = broken()
    scenario.fleet.repair_seconds = None
    asyncio.run(scenario.run(120.0))
    assert scenario.record().status.resolved
    happens(scenario)
    mark = repaired(scenario)
    assert (mark.state, mark.message) == (state, message)


def test_a_provider_that_is_silent_for_a_while_is_asked_again() -> None:
    scenario = broken()
    asyncio.run(scenario.run(30.0))
    assert scenario.record().status.resolved
    scenario.provider.reachable = False
    asyncio.run(scenario.run(60.0))
    mark = scenario.record().status.operation
    assert mark is not None
    assert mark.ended_at is None
    scenario.provider.reachable = True
    assert repaired(scenario).state == "done"


def test_a_controller_that_dies_anywhere_after_the_heal_records_the_end_all_the_same() -> None:
    undisturbed = broken()
    asyncio.run(undisturbed.run(400.0, until=lambda: any(map(goes_on, undisturbed.records.records.values()))))
    healed = len(undisturbed.plan.calls)
    repaired(undisturbed)
    calls = undisturbed.plan.calls
    asking = [at for at, call in enumerate(calls, start=1) if at > healed and call.startswith("provider.")]
    points = {asking[0], *asking[-2:], len(calls) - 1, len(calls)}  # the write and the event are the last
    assert [calls[at - 1] for at in sorted(points)][-2:] == ["remediations.update_status", "cluster.event"]
    for at in points:
        for side in (Side.BEFORE, Side.AFTER):
            scenario = broken(CrashPlan(at, side))
            assert repaired(scenario).state == "done", f"killed {side} call {at} ({calls[at - 1]})"
            assert not scenario.fleet.violations
            assert scenario.record().status.outcome is Outcome.SUCCEEDED


def record(mark: OperationMark | None, **changes: object) -> Remediation:
    status = Status(stage=Stage.RESOLVED, operation=mark, told=(("resolved", ""),))
    spec = Spec("gpu-1", "u", "b", "main", "gpu-1", 1, ())
    return replace(Remediation("r", "uid", "1", 0.0, spec, status), **changes)  # type: ignore[arg-type]


MARK = OperationMark("r-retire", "gpu-1", 0.0, "running", 1.0)


def test_only_what_is_over_and_acknowledged_is_followed() -> None:
    assert goes_on(record(MARK))
    assert not goes_on(record(None))
    assert not goes_on(record(replace(MARK, acknowledged_at=None)))
    assert not goes_on(record(replace(MARK, ended_at=9.0)))
    assert not goes_on(record(MARK, deleting=True))
    assert not goes_on(record(MARK, status=Status(stage=Stage.RESUMING, operation=MARK, told=(("resolved", ""),))))
    assert not goes_on(record(MARK, status=Status(stage=Stage.RESOLVED, operation=MARK))), "its last notice is not out"


def test_a_repair_that_takes_days_is_asked_about_less_and_less_and_not_for_ever() -> None:
    assert ask_again(10.0, MARK) == 2.0
    assert ask_again(600.0, MARK) == 60.0
    assert ask_again(9 * DAY, MARK) == ASK_LEAST
    status = record(MARK).status
    running = Operation("r-retire", "gpu-1", "retire", OperationState.RUNNING)
    assert answered(29 * DAY, status, running) == status
    assert unanswered(29 * DAY, status) == status
    for given_up in (answered(REPAIR_LIMIT, status, running), unanswered(REPAIR_LIMIT, status)):
        assert given_up.operation is not None
        assert (given_up.operation.state, given_up.operation.message) == ("unknown", "still running after 30 days")
        assert given_up.operation.ended_at == REPAIR_LIMIT


class Hanging:
    """A provider that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def operation(self, operation_id: str) -> Operation | None:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError(operation_id)

    async def retire(self, operation_id: str, machine: str) -> None:
        raise AssertionError(operation_id)


def test_a_provider_that_hangs_delays_no_heal() -> None:
    """Many repairs are awaited, no answer comes; a new incident is opened and isolated as fast as ever."""

    async def use() -> float:
        scenario = Scenario()
        for number in range(10):
            over = record(MARK, name=f"old-{number}", uid=f"uid-{number}")
            scenario.records.records[over.name] = over
        provider = Hanging()
        world = replace(scenario.world, provider=provider, clock=RealTime())
        leadership = Leadership(FakeLease(world.clock.now), world.clock, "one")
        running = asyncio.create_task(Controller(world, leadership, NoChanges()).run())
        await asyncio.wait_for(provider.asked.wait(), 5.0)
        scenario.fleet.break_gpu("gpu-1")
        began = asyncio.get_running_loop().time()
        while not any(r.spec.node == "gpu-1" and r.name[:3] != "old" for r in scenario.records.records.values()):
            assert asyncio.get_running_loop().time() - began < 5.0
            await asyncio.sleep(0.02)
        running.cancel()
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(use()) < 3.0


class RealTime:
    def now(self) -> float:
        return asyncio.get_running_loop().time() + 1_000_000.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class NoChanges:
    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        del listener
