"""After the incident: how the repair of the machine ended. Nothing waits for it; it is asked for the record."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.machine_state import Operation
from everstep.core.remediation_status import OperationMark, Remediation, Status

UNKNOWN = "unknown"
REPAIR_LIMIT = 30 * 86400.0  # seconds: longer than it takes to get a part; then the record says that nobody knows
ASK_FIRST, ASK_LEAST = 2.0, 900.0  # seconds between two questions, at first and for a repair that takes days
_SHARE = 0.1  # of the time that it has taken so far: the end is on record late by this share at most


def goes_on(remediation: Remediation) -> bool:
    """Whether the incident is over, its record complete but for the end of the repair, and that is still awaited."""
    status, mark = remediation.status, remediation.status.operation
    if not status.resolved or remediation.deleting or all(key != "resolved" for key, _ in status.told):
        return False
    return mark is not None and mark.acknowledged_at is not None and mark.ended_at is None


def ask_again(now: float, mark: OperationMark) -> float:
    """Seconds until the provider is asked again."""
    return min(max(ASK_FIRST, (now - mark.marked_at) * _SHARE), ASK_LEAST)


def answered(now: float, status: Status, operation: Operation | None) -> Status:
    """The record after the provider's answer; None is its word that it does not know the operation (any more)."""
    mark = status.operation
    assert mark is not None
    if operation is None:
        return _with(status, replace(mark, state=UNKNOWN, ended_at=now, message="the provider no longer knows it"))
    mark = replace(mark, state=operation.state.value)
    if operation.state.ended:
        return _with(status, replace(mark, ended_at=now, message=operation.message))
    return _given_up(now, _with(status, mark))


def unanswered(now: float, status: Status) -> Status:
    """The record when the provider could not be asked: unchanged, until it has taken too long."""
    return _given_up(now, status)


def sentence(mark: OperationMark) -> str:
    """How the repair ended, for log and event."""
    said = f" ({mark.message})" if mark.message else ""
    return {
        "done": f"the provider has repaired machine {mark.machine}{said}",
        "failed": f"the provider could not repair machine {mark.machine}{said}",
    }.get(mark.state, f"nobody knows how the repair of machine {mark.machine} ended{said}")


def _given_up(now: float, status: Status) -> Status:
    mark = status.operation
    assert mark is not None
    if now - mark.marked_at < REPAIR_LIMIT:
        return status
    days = REPAIR_LIMIT / 86400.0
    return _with(
        status, replace(mark, state=UNKNOWN, ended_at=now, message=f"still {mark.state} after {days:.0f} days")
    )


def _with(status: Status, mark: OperationMark) -> Status:
    return replace(status, operation=mark)
