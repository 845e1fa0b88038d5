from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.core.errors import Conflict, InvalidInput, NotFound, Refused
from everstep.lab.hardware.machines import Machines
from everstep.lab.hardware.records import ENDED, MachineState, OperationPhase, OperationRecord
from everstep.lab.hardware.retirements import SWITCH_ATTEMPTS, Retirements
from tests.unit.lab_hardware.machine_room import SleepingPower, machine_settings


class Killed(BaseException):
    """Stands for the death of the process right after a record was stored."""


class Room:
    """Machines and operations that outlive the Retirements that work on them."""

    def __init__(self, root: Path, power: SleepingPower) -> None:
        self.machines = Machines((machine_settings(root, "gpu-1"), machine_settings(root, "gpu-2")), {})
        self.operations: dict[str, OperationRecord] = {}
        self.power = power

    def open(self, keep: Callable[[], None] = lambda: None, repair_seconds: float = 0.0) -> Retirements:
        return Retirements(self.machines, self.operations, self.power, repair_seconds, keep, retry_seconds=0.0)

    async def reached(self, operation_id: str, *phases: OperationPhase) -> OperationRecord:
        for _ in range(1000):
            if self.operations[operation_id].phase in phases:
                return self.operations[operation_id]
            await asyncio.sleep(0.005)
        raise AssertionError(f"{self.operations[operation_id]} after 5 s, not {phases}")

    async def ended(self, operation_id: str) -> OperationRecord:
        return await self.reached(operation_id, *ENDED)


@pytest.fixture
def room(tmp_path: Path, power: SleepingPower) -> Room:
    return Room(tmp_path, power)


def test_a_retired_machine_comes_back_as_a_spare_with_new_parts(room: Room) -> None:
    machine = room.machines.get("gpu-1")
    before = [g.identity.serial for g in machine.gpus]
    machine.gpus[0].fail(lost=True, recovery_action="reboot")

    async def check() -> None:
        retirements = room.open()
        assert retirements.put("a", "gpu-1", "retire").phase is OperationPhase.ACCEPTED
        assert (await room.ended("a")).phase is OperationPhase.DONE

    asyncio.run(check())
    assert room.power.calls == [("off", "gpu-1", None), ("on", "gpu-1", "main")]
    assert not set(before) & {g.identity.serial for g in machine.gpus}
    assert all(g.healthy for g in machine.gpus)
    assert machine.record.state is MachineState.RUNNING


def test_while_it_is_repaired_a_machine_is_neither_on_nor_off(room: Room) -> None:
    async def check() -> None:
        retirements = room.open(repair_seconds=60)
        retirements.put("a", "gpu-1", "retire")
        await room.reached("a", OperationPhase.REPAIR)
        machine = room.machines.get("gpu-1")
        machine.observe()
        assert machine.record.state is MachineState.REPAIRING
        with pytest.raises(Conflict, match="operation a on gpu-1 has not ended"):
            retirements.put("b", "gpu-1", "retire")
        retirements.put("c", "gpu-2", "retire")  # another machine is another matter
        await retirements.close()

    asyncio.run(check())


def test_the_same_request_is_one_operation_and_another_with_its_id_is_refused(room: Room) -> None:
    async def check() -> None:
        retirements = room.open()
        first = retirements.put("a", "gpu-1", "retire")
        assert retirements.put("a", "gpu-1", "retire") is first
        await room.ended("a")
        assert retirements.put("a", "gpu-1", "retire") is first
        with pytest.raises(Refused, match="operation a exists and is retire of gpu-1"):
            retirements.put("a", "gpu-2", "retire")

    asyncio.run(check())
    assert [call[0] for call in room.power.calls] == ["off", "on"]


def test_nonsense_is_refused_and_leaves_no_operation(room: Room) -> None:
    async def check() -> None:
        retirements = room.open()
        with pytest.raises(InvalidInput, match="unknown action 'explode'"):
            retirements.put("a", "gpu-1", "explode")
        with pytest.raises(NotFound, match="no machine gpu-7"):
            retirements.put("a", "gpu-7", "retire")
        with pytest.raises(NotFound, match="no operation a"):
            retirements.get("a")

    asyncio.run(check())
    assert room.operations == {}


@pytest.mark.parametrize("survived", [1, 2, 3, 4, 5])
def test_killed_after_any_record_it_goes_on_and_ends_once(room: Room, survived: int) -> None:
    """A retirement stores five records; whichever is the last one of a process, the next process finishes the job."""
    stored = 0

    def keep() -> None:
        nonlocal stored
        stored += 1
        if stored == survived:
            raise Killed

    async def first_life() -> None:
        retirements = room.open(keep)
        try:
            retirements.put("a", "gpu-1", "retire")
        except Killed:
            return
        (task,) = retirements._tasks
        with pytest.raises(Killed):
            await task

    async def second_life() -> None:
        retirements = room.open()
        retirements.resume()
        assert (await room.ended("a")).phase is OperationPhase.DONE

    asyncio.run(first_life())
    asyncio.run(second_life())
    assert stored == survived
    assert room.machines.get("gpu-1").observe() is not None
    assert room.power.calls[-1] == ("on", "gpu-1", "main")


def test_a_switch_that_fails_for_a_while_is_tried_again(room: Room) -> None:
    room.power.failures = [RuntimeError("no answer")] * (SWITCH_ATTEMPTS - 1)

    async def check() -> None:
        room.open().put("a", "gpu-1", "retire")
        assert (await room.ended("a")).phase is OperationPhase.DONE

    asyncio.run(check())


def test_a_switch_that_never_works_fails_the_operation_with_its_reason(room: Room) -> None:
    room.power.failures = [RuntimeError("the fuse is blown")] * SWITCH_ATTEMPTS

    async def check() -> OperationRecord:
        room.open().put("a", "gpu-1", "retire")
        return await room.ended("a")

    ended = asyncio.run(check())
    assert ended.phase is OperationPhase.FAILED
    assert ended.message == "in phase powerOff: the fuse is blown"
