"""FakeNotifier and FakeProvider: the two ports that reach beyond the cluster."""

from __future__ import annotations

from everstep.core.errors import Unreachable
from everstep.ports import Notice, Operation
from everstep.testing.fleet import Fleet


class FakeNotifier:
    """Implements :class:`everstep.ports.Notifier`; keeps every notice. ``working`` False makes it fail."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.working = True

    async def notify(self, notice: Notice) -> None:
        if not self.working:
            raise Unreachable("the mail server does not answer")
        self.notices.append(notice)


class FakeProvider:
    """Implements :class:`everstep.ports.Provider` over the model of a fleet. ``reachable`` False makes it fail."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.reachable = True

    async def operation(self, operation_id: str) -> Operation | None:
        self._ask()
        return self._fleet.operations.get(operation_id)

    async def retire(self, operation_id: str, machine: str) -> None:
        self._ask()
        self._fleet.retire(operation_id, machine)

    def _ask(self) -> None:
        if not self.reachable:
            raise Unreachable("the machine provider does not answer")
