"""Machine operations: a retired machine is switched off, repaired for a while, and comes back as a warm spare.

Each phase is stored before its work starts and every piece of work may be repeated, so that an operation goes on
where it was after this process was killed, and a request that is sent twice is one operation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from everstep.core.errors import Conflict, InvalidInput, NotFound, Refused
from everstep.lab.hardware.machines import Machine, Machines
from everstep.lab.hardware.records import ENDED, MachineState, OperationPhase, OperationRecord
from everstep.lab.hardware.settings import Power

log = structlog.get_logger(__name__)

ACTIONS = ("retire",)
SWITCH_ATTEMPTS = 10


class Retirements:
    """All operations of one lab. ``keep`` stores the records; it is called after every change."""

    def __init__(
        self,
        machines: Machines,
        operations: dict[str, OperationRecord],
        power: Power,
        repair_seconds: float,
        keep: Callable[[], None],
        retry_seconds: float = 3.0,
    ) -> None:
        self._machines = machines
        self._operations = operations
        self._power = power
        self._repair_seconds = repair_seconds
        self._keep = keep
        self._retry_seconds = retry_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, operation_id: str) -> OperationRecord:
        """NotFound when nobody ever asked for an operation of that id."""
        try:
            return self._operations[operation_id]
        except KeyError:
            raise NotFound(f"no operation {operation_id}") from None

    def put(self, operation_id: str, machine: str, action: str) -> OperationRecord:
        """Accepts an operation, or returns the one of that id if it is the same.

        Raises:
            InvalidInput: an action that is not "retire".
            NotFound: no such machine.
            Refused: the id was used for something else.
            Conflict: another operation on that machine has not ended.
        """
        if known := self._operations.get(operation_id):
            if (known.machine, known.action) != (machine, action):
                raise Refused(f"operation {operation_id} exists and is {known.action} of {known.machine}")
            return known
        if action not in ACTIONS:
            raise InvalidInput(f"unknown action {action!r}; there is: {', '.join(ACTIONS)}")
        self._machines.get(machine)
        for other in self._operations.values():
            if other.machine == machine and other.phase not in ENDED:
                raise Conflict(f"operation {other.id} on {machine} has not ended: it is in phase {other.phase}")
        operation = OperationRecord(operation_id, machine, action, message="waiting for its turn")
        self._operations[operation_id] = operation
        self._keep()
        self._start(operation)
        return operation

    def resume(self) -> None:
        """Goes on with what a former process left unfinished."""
        for operation in self._operations.values():
            if operation.phase not in ENDED:
                self._start(operation)

    async def close(self) -> None:
        """Stops working; what is unfinished is resumed by the next process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, operation: OperationRecord) -> None:
        task = asyncio.create_task(self._run(operation), name=f"operation {operation.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, operation: OperationRecord) -> None:
        try:
            machine = self._machines.get(operation.machine)
            await self._retire(operation, machine)
        except Exception as error:  # whatever switching power raises: the one who asked must hear of it
            log.exception("operation failed", operation=operation.id, machine=operation.machine)
            self._enter(operation, OperationPhase.FAILED, f"in phase {operation.phase}: {error}")

    async def _retire(self, operation: OperationRecord, machine: Machine) -> None:
        if operation.phase in (OperationPhase.ACCEPTED, OperationPhase.POWER_OFF):
            self._enter(operation, OperationPhase.POWER_OFF, "switching off")
            await self._insist(operation, lambda: self._power.power_off(machine.name))
            machine.record.state = MachineState.REPAIRING
            operation.repair_ends = time.time() + self._repair_seconds
            self._enter(operation, OperationPhase.REPAIR, f"off; repair takes {self._repair_seconds:g} s")
        if operation.phase is OperationPhase.REPAIR:
            machine.record.state = MachineState.REPAIRING
            await asyncio.sleep(max(0.0, (operation.repair_ends or 0.0) - time.time()))
            machine.repair()
            self._enter(operation, OperationPhase.POWER_ON, "repaired with new GPUs; switching on")
        machine.record.state = MachineState.OFF
        await self._insist(operation, lambda: self._power.power_on(machine.name, machine.record.pool))
        machine.observe()
        self._enter(operation, OperationPhase.DONE, f"back as a spare of pool {machine.record.pool}")

    async def _insist(self, operation: OperationRecord, switch: Callable[[], Awaitable[None]]) -> None:
        """Switching may fail for a while, for example while the API server restarts; the last error counts."""
        for _ in range(SWITCH_ATTEMPTS - 1):
            try:
                return await switch()
            except Exception as error:
                log.warning("switching failed; trying again", operation=operation.id, reason=str(error))
                await asyncio.sleep(self._retry_seconds)
        await switch()

    def _enter(self, operation: OperationRecord, phase: OperationPhase, message: str) -> None:
        operation.phase, operation.message = phase, message
        log.info("operation", operation=operation.id, machine=operation.machine, phase=str(phase), message=message)
        self._keep()
