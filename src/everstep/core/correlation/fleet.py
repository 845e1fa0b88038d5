"""What can only be seen across nodes: a job that breaks on all of its nodes at once, and storage that many nodes lose.

Neither is any node's fault, so neither is answered by replacing nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.health import FaultClass

MOMENT = 60.0  # seconds within which sightings on several nodes are one moment
MOUNT_WINDOW = 120.0  # seconds: clients notice a dead file server at different times (NFS retries after 60 s)
STORAGE_CODES = frozenset(("host:file_server_lost", "host:mount_hangs", "host:mount_missing"))


class Blame(StrEnum):
    """Whose fault a fleet-wide incident is."""

    JOB = "job"  # its own code: what broke breaks wherever it runs
    STORAGE = "storage"  # one server or mount
    COMMON = (
        "common"  # hardware codes on many nodes at once: power, a rack, a driver that was rolled out; call a person
    )


@dataclass(frozen=True, slots=True)
class NodeSighting:
    """One code on one node.

    Attributes:
        code: ``kind:code``.
        fault_class: what the catalogue says of it on this node alone.
        job: the job that ran there, "" for none.
        subject: for storage, the server or mount that is lost.
    """

    node: str
    code: str
    fault_class: FaultClass
    at: float
    job: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class FleetIncident:
    """One cause that several nodes report.

    Attributes:
        about: the job, or the server or mount, or the code.
        nodes: in the order in which they reported; none of them is to blame.
    """

    blame: Blame
    about: str
    code: str
    nodes: tuple[str, ...]
    first_seen: float

    @property
    def reason(self) -> str:
        """In one sentence."""
        nodes = f"{len(self.nodes)} nodes"
        match self.blame:
            case Blame.JOB:
                return f"{self.code} on {nodes} of job {self.about} at one moment: the job's own fault"
            case Blame.STORAGE:
                return f"{nodes} lost {self.about}: one storage incident"
            case Blame.COMMON:
                return f"{self.code} on {nodes} at one moment: a common cause, no single node"


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """A FleetIncident as it is stored for people to read.

    Attributes:
        nodes: every node that reported it, in order.
        told: the notice to people was delivered, or given up.
        ended_at: None while it is seen.
    """

    name: str
    blame: Blame
    about: str
    code: str
    nodes: tuple[str, ...]
    first_seen: float
    reason: str
    told: bool = False
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How many nodes make an incident of the fleet.

    Attributes:
        job_nodes, job_share: at least so many nodes of the job, and this share of all of them.
        mount_nodes: so many nodes that lose one server or mount.
        common_nodes: so many nodes with one hardware code within a moment.
    """

    job_nodes: int = 2
    job_share: float = 0.5
    mount_nodes: int = 3
    common_nodes: int = 4


def incidents(
    sightings: Iterable[NodeSighting], job_sizes: Mapping[str, int], rules: FleetRules | None = None
) -> tuple[FleetIncident, ...]:
    """The incidents of the fleet among the sightings of late, earliest first.

    Args:
        job_sizes: number of nodes of each job that a sighting names. A job that is not in it is never accused: its
            share cannot be told.
    """
    rules = rules or FleetRules()
    ordered = sorted(sightings, key=lambda item: (item.at, item.node, item.code, item.job, item.subject))
    found = [*_storage(ordered, rules), *_jobs(ordered, job_sizes, rules), *_common(ordered, rules)]
    return tuple(sorted(found, key=lambda incident: (incident.first_seen, incident.about, incident.code)))


def excused(found: Iterable[FleetIncident], sighting: NodeSighting) -> FleetIncident | None:
    """The incident that explains a node's sighting, so that the node is not to be acted on; None where none does."""
    for incident in found:
        window = MOUNT_WINDOW if incident.blame is Blame.STORAGE else MOMENT
        near = incident.first_seen <= sighting.at <= incident.first_seen + window
        if sighting.node in incident.nodes and near and sighting.code == incident.code:
            return incident
    return None


def _storage(ordered: Sequence[NodeSighting], rules: FleetRules) -> Iterable[FleetIncident]:
    by_subject: dict[str, list[NodeSighting]] = defaultdict(list)
    for item in ordered:
        if item.code in STORAGE_CODES and item.subject:
            by_subject[item.subject].append(item)
    for subject, items in by_subject.items():
        for burst in _bursts(items, MOUNT_WINDOW):
            if len(nodes := _nodes(burst)) >= rules.mount_nodes:
                yield FleetIncident(Blame.STORAGE, subject, burst[0].code, nodes, burst[0].at)


def _jobs(ordered: Sequence[NodeSighting], sizes: Mapping[str, int], rules: FleetRules) -> Iterable[FleetIncident]:
    """Codes that a program can cause. A GPU that fell off the bus is its node's matter however large the job is."""
    by_job: dict[tuple[str, str], list[NodeSighting]] = defaultdict(list)
    for item in ordered:
        if item.job in sizes and item.fault_class in (FaultClass.APPLICATION, FaultClass.SUSPECT):
            by_job[item.job, item.code].append(item)
    for (job, code), items in by_job.items():
        for burst in _bursts(items, MOMENT):
            nodes = _nodes(burst)
            if len(nodes) >= max(rules.job_nodes, rules.job_share * sizes[job]):
                yield FleetIncident(Blame.JOB, job, code, nodes, burst[0].at)


def _common(ordered: Sequence[NodeSighting], rules: FleetRules) -> Iterable[FleetIncident]:
    by_code: dict[str, list[NodeSighting]] = defaultdict(list)
    for item in ordered:
        if item.fault_class in (FaultClass.HARDWARE, FaultClass.FABRIC):
            by_code[item.code].append(item)
    for code, items in by_code.items():
        for burst in _bursts(items, MOMENT):
            if len(nodes := _nodes(burst)) >= rules.common_nodes:
                yield FleetIncident(Blame.COMMON, code, code, nodes, burst[0].at)


def _bursts(items: Sequence[NodeSighting], window: float) -> Iterable[list[NodeSighting]]:
    """Runs of sightings that lie within one window from the first; the next run begins after it."""
    burst: list[NodeSighting] = []
    for item in items:
        if burst and item.at - burst[0].at > window:
            yield burst
            burst = []
        burst.append(item)
    if burst:
        yield burst


def _nodes(burst: Iterable[NodeSighting]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.node for item in burst))
