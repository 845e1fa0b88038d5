"""The fleet's incidents from what is known now, and what they hold back: nodes that share a cause are not replaced.

Level-triggered and pure. What agents report, what records of heals remember, and what Slurm says of jobs go in; so the
brake lasts while its reasons do, also over a restart of the controller and after the first of the nodes was healed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everstep.core.cluster_state import NodeView
from everstep.core.correlation.fleet import (
    MOMENT,
    STORAGE_CODES,
    Blame,
    FleetIncident,
    FleetRecord,
    NodeSighting,
    excused,
    incidents,
)
from everstep.core.health import Fault, FaultClass, NodeReport, accuses
from everstep.core.policy import Policy
from everstep.core.remediation_status import Outcome, Remediation
from everstep.core.scheduler_state import SchedulerLook, SlurmJob
from everstep.core.silence import lost_at, lost_fault

REMEMBERED = 7 * 86_400.0  # seconds for which a record of a heal counts among the sightings
KEPT = 7 * 86_400.0  # seconds for which a record of an incident is kept after its end
QUIET = 600.0  # seconds after which an incident that is no longer seen is over
_JOBS_OWN = frozenset((FaultClass.APPLICATION, FaultClass.SUSPECT))


@dataclass(frozen=True, slots=True)
class FleetView:
    """What is known of the whole fleet at one moment.

    Attributes:
        known: every Remediation; its faults count for a week, so that a healed node stays part of what it was part of.
        look: at Slurm; None when it could not be asked: then no job is blamed.
        foreign: by node, evidence of others.
    """

    nodes: Sequence[NodeView]
    reports: Mapping[str, NodeReport]
    known: Sequence[Remediation] = ()
    look: SchedulerLook | None = None
    foreign: Mapping[str, Sequence[Fault]] = field(default_factory=dict)


def fleet_incidents(now: float, view: FleetView, policy: Policy) -> tuple[FleetIncident, ...]:
    """What several nodes share now."""
    jobs = _Jobs(view.look)
    seen: set[NodeSighting] = set()
    for node in view.nodes:
        report = view.reports.get(node.name)
        faults = [f for f in (report.faults if report else ()) if f.boot_id in ("", node.boot_id)]
        if lost := lost_fault(now, node, report, policy) if node.pool else None:
            faults = [replace(lost, first_seen=lost_at(now, node, report, policy))]
        for fault in (*faults, *view.foreign.get(node.name, ())):
            seen.update(_sightings(node.name, fault, jobs))
    for record in view.known:
        if now - record.created < REMEMBERED and record.status.outcome is not Outcome.DRY_RUN:
            for fault in record.spec.faults:
                seen.update(_sightings(record.spec.node, fault, jobs))
    return incidents(seen, jobs.sizes, policy.fleet)


def held_by(found: Iterable[FleetIncident], node: str, fault: Fault) -> FleetIncident | None:
    """The incident because of which the node is not to be replaced for this fault; None where there is none.

    The first node of a common cause is healed as any other: whether it is the first of many, nobody knew when it broke.
    """
    for incident in found:
        if incident.blame is Blame.COMMON and incident.nodes[0] == node:
            continue
        job = incident.about if incident.blame is Blame.JOB else ""
        if excused([incident], _sighting(node, fault, job)):
            return incident
    return None


def held_incidents(found: Sequence[FleetIncident], fleet: Iterable[Remediation]) -> dict[str, str]:
    """Name of each Remediation all of whose faults an incident of the fleet explains, and why it has to wait."""
    held: dict[str, str] = {}
    for each in fleet:
        explained = [held_by(found, each.spec.node, fault) for fault in each.spec.faults]
        if explained and (first := explained[0]) and all(explained):
            held[each.name] = f"{first.reason}; a person decides"
    return held


def recorded(
    now: float, found: Iterable[FleetIncident], records: Sequence[FleetRecord], *, sure: bool
) -> list[FleetRecord]:
    """Records that are new or have changed.

    Args:
        sure: everything could be asked, so that what is not seen any more is over.
    """
    current = {record.name: record for record in records}
    seen: set[str] = set()
    for incident in found:
        before = next((r for r in current.values() if _continues(now, r, incident)), None)
        record = _joined(before, incident) if before else _begun(incident)
        current[record.name] = record
        seen.add(record.name)
    if sure:
        for name, record in current.items():
            if name not in seen and record.ended_at is None:
                current[name] = replace(record, ended_at=now)
    known = {record.name: record for record in records}
    return [record for name, record in current.items() if known.get(name) != record]


def _begun(incident: FleetIncident) -> FleetRecord:
    return FleetRecord(
        _name(incident),
        incident.blame,
        incident.about,
        incident.code,
        incident.nodes,
        incident.first_seen,
        incident.reason,
    )


def _joined(before: FleetRecord, incident: FleetIncident) -> FleetRecord:
    """The record with the nodes that have come; it keeps the code that it began with, whatever else its job prints."""
    nodes = tuple(dict.fromkeys((*before.nodes, *incident.nodes)))
    whole = replace(incident, code=before.code, nodes=nodes)
    first_seen = min(before.first_seen, incident.first_seen)
    return replace(before, nodes=nodes, first_seen=first_seen, reason=whole.reason, ended_at=None)


def forgotten(now: float, records: Iterable[FleetRecord]) -> list[str]:
    """Names of records that nobody needs any more."""
    return [r.name for r in records if r.ended_at is not None and now - r.ended_at > KEPT]


def _continues(now: float, record: FleetRecord, incident: FleetIncident) -> bool:
    """Whether the incident is the recorded one: nodes come, and the first ones may have been mended by now."""
    if (record.blame, record.about) != (incident.blame, incident.about):
        return False
    if record.ended_at is not None and now - record.ended_at > QUIET:
        return False
    if record.blame is Blame.STORAGE:
        return True  # one server is one incident, however long its clients take to notice
    return abs(incident.first_seen - record.first_seen) <= MOMENT


def _name(incident: FleetIncident) -> str:
    whole = f"{incident.blame}/{incident.about}/{incident.code}/{incident.first_seen}"
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", f"{incident.blame}-{incident.about}"[:50].lower()).strip("-")
    return f"{words}-{digest}"


class _Jobs:
    """Which jobs used a node at a moment, as far as Slurm still remembers."""

    def __init__(self, look: SchedulerLook | None) -> None:
        self.sizes: dict[str, int] = {}
        self._on: dict[str, list[tuple[str, SlurmJob]]] = {}
        for snapshot in look.answered if look else ():
            for job in snapshot.jobs:
                key = f"{snapshot.cluster}/{job.id}"
                self.sizes[key] = max(job.num_nodes, len(job.nodes))
                for node in job.nodes:
                    self._on.setdefault(node, []).append((key, job))

    def at(self, node: str, at: float) -> list[str]:
        """A job that ended just before counts: the line may come after the crash that it tells of."""
        return [
            key
            for key, job in self._on.get(node, ())
            if not job.waiting
            and (job.start_time is None or job.start_time <= at)
            and (job.active or (job.end_time or 0.0) >= at - MOMENT)
        ]


def _sightings(node: str, fault: Fault, jobs: _Jobs) -> Iterable[NodeSighting]:
    """Hardware counts when it accuses its node: a note that many nodes make is no incident."""
    if fault.fault_class in (FaultClass.HARDWARE, FaultClass.FABRIC) and not accuses(fault):
        return
    ran = jobs.at(node, fault.first_seen) if fault.fault_class in _JOBS_OWN else []
    for job in ran or [""]:
        yield _sighting(node, fault, job)


def _sighting(node: str, fault: Fault, job: str) -> NodeSighting:
    code = f"{fault.kind}:{fault.code}"
    subject = fault.key.partition("@")[2] if code in STORAGE_CODES else ""
    return NodeSighting(node, code, fault.fault_class, fault.first_seen, job, subject)
