"""Operations on the machines under the nodes, as their provider reports them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OperationState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (OperationState.DONE, OperationState.FAILED)


@dataclass(frozen=True, slots=True)
class Operation:
    """A machine operation that was dispatched under an id of our choice."""

    id: str
    machine: str
    action: str
    state: OperationState
    message: str = ""
