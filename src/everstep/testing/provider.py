"""FakeProvider: the Provider port in memory, with the hands that a test needs to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from everstep.core.errors import Conflict, NotFound, Refused, Unreachable
from everstep.core.machine_state import Operation, OperationState

ENDED = (OperationState.DONE, OperationState.FAILED)


class FakeProvider:
    """Implements :class:`everstep.ports.Provider`.

    Args:
        machines: names of the machines there are.
        on_retire: called once for each accepted retirement, with the machine's name; what it raises, the caller gets
            after the operation was accepted: the answer that was lost on its way.

    Attributes:
        operations: all that was accepted, by id; the provider's own durable memory.
        unreachable: while True nothing is heard and nothing is answered.
    """

    def __init__(self, machines: Iterable[str], on_retire: Callable[[str], None] = lambda _: None) -> None:
        self._machines = set(machines)
        self._on_retire = on_retire
        self.operations: dict[str, Operation] = {}
        self.unreachable = False

    async def operation(self, operation_id: str) -> Operation | None:
        self._listen()
        return self.operations.get(operation_id)

    async def retire(self, operation_id: str, machine: str) -> None:
        self._listen()
        if known := self.operations.get(operation_id):
            if known.machine != machine:
                raise Refused(f"operation {operation_id} exists and is {known.action} of {known.machine}")
            return
        if machine not in self._machines:
            raise NotFound(f"no machine {machine}")
        for other in self.operations.values():
            if other.machine == machine and other.state not in ENDED:
                raise Conflict(f"operation {other.id} on {machine} has not ended")
        self.operations[operation_id] = Operation(operation_id, machine, "retire", OperationState.ACCEPTED)
        self._on_retire(machine)

    def advance(self, operation_id: str, state: OperationState, message: str = "") -> None:
        """Moves an operation on, as time does with a real provider."""
        self.operations[operation_id] = replace(self.operations[operation_id], state=state, message=message)

    def _listen(self) -> None:
        if self.unreachable:
            raise Unreachable("the provider does not answer")
