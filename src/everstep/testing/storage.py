"""FakeRemediations, FakeFleetIncidents and FakeLease: records with resource versions, and the leader's lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.core.correlation.fleet import FleetRecord
from everstep.core.errors import Conflict, Unreachable
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation, Spec, Status


class FakeRemediations:
    """Implements :class:`everstep.ports.Remediations`.

    Attributes:
        records: by name; ``history`` keeps every status that was written, in order.
        conflicts: the next that many writes are refused although nothing changed.
    """

    def __init__(self, now: Callable[[], float], policy: Policy) -> None:
        self._now = now
        self._versions = itertools.count(1)
        self.in_force = policy
        self.records: dict[str, Remediation] = {}
        self.history: list[tuple[str, Status]] = []
        self.conflicts = 0

    async def list(self) -> Sequence[Remediation]:
        return [*self.records.values()]

    async def create(self, name: str, spec: Spec) -> None:
        if name in self.records:
            raise Conflict(f"remediation {name} exists")
        version = str(next(self._versions))
        self.records[name] = Remediation(name, f"uid-{name}-{version}", version, self._now(), spec)

    async def update_status(self, remediation: Remediation, status: Status) -> None:
        current = self.records.get(remediation.name)
        if current is None or current.resource_version != remediation.resource_version:
            raise Conflict(f"remediation {remediation.name} has changed")
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict(f"remediation {remediation.name} is said to have changed")
        self.history.append((remediation.name, status))
        self.records[remediation.name] = replace(current, status=status, resource_version=str(next(self._versions)))

    async def let_go(self, remediation: Remediation) -> None:
        self.records.pop(remediation.name, None)

    async def policy(self) -> Policy:
        return self.in_force

    def delete(self, name: str) -> None:
        """A person deletes the record; its finalizer keeps it for now."""
        current = self.records[name]
        self.records[name] = replace(current, deleting=True, resource_version=str(next(self._versions)))


class FakeFleetIncidents:
    """Implements :class:`everstep.ports.FleetIncidents`. ``writes`` counts them."""

    def __init__(self) -> None:
        self.records: dict[str, FleetRecord] = {}
        self.writes = 0

    async def list(self) -> Sequence[FleetRecord]:
        return [*self.records.values()]

    async def write(self, record: FleetRecord) -> None:
        self.writes += 1
        self.records[record.name] = record

    async def delete(self, name: str) -> None:
        self.records.pop(name, None)


class FakeLease:
    """Implements :class:`everstep.ports.LeaderLease`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.holder = ""
        self.until = 0.0
        self.reachable = True

    async def hold(self, identity: str, seconds: float) -> bool:
        if not self.reachable:
            raise Unreachable("the API server does not answer")
        now = self._now()
        if self.holder not in ("", identity) and now < self.until:
            return False
        self.holder, self.until = identity, now + seconds
        return True

    async def release(self, identity: str) -> None:
        if self.holder == identity:
            self.holder = ""
