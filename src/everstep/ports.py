"""What the engine needs of the world, as protocols. Adapters implement them; ``everstep.testing`` has fakes of each.

Every method may raise :class:`everstep.core.errors.RetryLater` (nothing changed, or repeating is safe),
:class:`~everstep.core.errors.FixTheRequest` or :class:`~everstep.core.errors.CallAHuman`; nothing else. A method
that reads never answers with an empty value because it could not ask. Every method that writes is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep.core.cluster_state import NodeCondition, NodeView, PodView
from everstep.core.correlation.fleet import FleetRecord
from everstep.core.errors import Unreachable
from everstep.core.health import Evidence, Gpu, NodeReport
from everstep.core.machine_state import Operation, OperationState
from everstep.core.occurrences import Occurrence
from everstep.core.policy import Policy
from everstep.core.remediation_status import Remediation, Spec, Status
from everstep.core.scheduler_state import JobProgress, SchedulerLook

__all__ = [
    "Batch", "Changes", "Clock", "Cluster", "FleetIncidents", "GpuReader", "KernelLog", "LeaderLease", "LineSource",
    "Notice", "Notifier", "Operation", "OperationState", "PartlyUnreachable", "Provider", "Remediations", "Scheduler",
    "StateSource",
]  # fmt: skip


class Clock(Protocol):
    """Time as the engine sees it; the simulator and the tests pass a virtual one."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Cluster(Protocol):
    """Kubernetes: reads come from a cache that is in sync (else Unreachable); writes carry preconditions."""

    async def nodes(self) -> Sequence[NodeView]: ...

    async def node(self, name: str) -> NodeView | None: ...

    async def pods_on(self, node: str) -> Sequence[PodView]: ...

    async def reports(self) -> Mapping[str, NodeReport]:
        """NodeHealth by node name, with the heartbeat's age."""
        ...

    async def cordon(self, node: str) -> None: ...

    async def uncordon(self, node: str) -> None: ...

    async def evict(self, pod: PodView) -> None:
        """Asks for eviction; a PodDisruptionBudget's refusal raises RetryLater."""
        ...

    async def claim_spare(self, node: str, remediation: str) -> None:
        """Marks a spare as taken, only if nobody has; raises Conflict when somebody else holds it."""
        ...

    async def release_spare(self, node: str, remediation: str) -> None:
        """Takes this remediation's claim off a spare; fine when it is not there, Conflict when it is another's."""
        ...

    async def join_pool(self, node: str, pool: str, remediation: str) -> None:
        """Turns the claimed spare into a node in service: pool label on; spare label and taint, claim, a former
        out-of-service label and a cordon off. Conflict when the claim is another's."""
        ...

    async def leave_pool(self, node: str, remediation: str) -> None:
        """Takes a node out of its pool: pool label off, spare label and claim too (a spare that failed its checks),
        out-of-service label with the remediation's name on. A node that is already out of service stays as it is."""
        ...

    async def set_condition(self, node: str, uid: str, condition: NodeCondition) -> None:
        """Writes one condition of a node's status; the others stay as they are. Conflict when the node's uid is
        another one by now."""
        ...

    async def tell_history(self, node: str, inherited: Sequence[Occurrence]) -> None:
        """Writes into the node's NodeHealth what its GPUs had in other nodes, and nothing else of it. NotFound when
        there is none."""
        ...

    async def event(self, kind: str, name: str, reason: str, message: str, namespace: str = "") -> None:
        """Records a Kubernetes Event on an object; best effort for the caller, never raises on a missing object."""
        ...


class Scheduler(Protocol):
    """Every Slurm cluster that Everstep looks after; ``cluster`` is ``namespace/name`` of its SlurmCluster."""

    async def snapshots(self) -> SchedulerLook:
        """One fresh snapshot of each cluster that can be asked, and the name of each that cannot. One that does not
        answer delays the others once, for seconds, and not on every look. Unreachable when nobody knows which
        clusters there are."""
        ...

    async def progress(self, cluster: str, job: str, user: str) -> JobProgress: ...

    async def drain(self, cluster: str, node: str, reason: str) -> None: ...

    async def down(self, cluster: str, node: str, reason: str) -> None:
        """DRAIN first, then DOWN; only for nodes that are dead or empty."""
        ...

    async def resume(self, cluster: str, node: str, reason_prefix: str) -> None:
        """Undrains, only while the node's reason starts with ``reason_prefix``; Refused otherwise."""
        ...

    async def forget(self, cluster: str, node: str) -> None:
        """Deletes the dynamic node's record; a node that is not there is fine."""
        ...

    async def requeue(self, cluster: str, job: str, restarts: int) -> None:
        """Requeues held, only while the job's restart count equals ``restarts``; makes it requeueable first."""
        ...

    async def hold(self, cluster: str, job: str, restarts: int) -> None:
        """Holds a running job, so that it stays held once Slurm requeues it because a node went down; makes it
        requeueable first. Only while its restart count equals ``restarts``."""
        ...

    async def clear_stale_allocation(self, cluster: str, job: str, restarts: int) -> None:
        """The guard for Slurm before 24.11.1: hold, cancel and requeue a PENDING job that still has nodes."""
        ...

    async def release(self, cluster: str, job: str, restarts: int) -> None:
        """Releases the hold and starts the job now."""
        ...

    async def tell(self, cluster: str, job: str, message: str) -> None:
        """Writes to the job's own terminal or output."""
        ...


class Provider(Protocol):
    """Whoever owns the machines under the nodes."""

    async def operation(self, operation_id: str) -> Operation | None:
        """None only when the provider says that it does not know the id."""
        ...

    async def retire(self, operation_id: str, machine: str) -> None:
        """Hands a machine back for repair; idempotent by id."""
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to people about one remediation, or (``fleet_incident``) about what many nodes share."""

    remediation: str
    node: str
    title: str
    text: str
    user: str = ""
    job: str = ""
    fleet_incident: str = ""


class Notifier(Protocol):
    """Mail, chat, webhook. A failure to notify never stops a heal: callers record it and go on."""

    async def notify(self, notice: Notice) -> None: ...


class Remediations(Protocol):
    """Storage of incidents and of the policy. Reads are fresh: never older than this process's own last write."""

    async def list(self) -> Sequence[Remediation]:
        """Every Remediation, resolved ones too. Unreadable when one cannot be understood; it is never reset."""
        ...

    async def create(self, name: str, spec: Spec) -> None:
        """Opens an incident, with the finalizer that ``let_go`` takes off; Conflict when the name exists."""
        ...

    async def update_status(self, remediation: Remediation, status: Status) -> None:
        """Writes ``.status`` only if ``remediation.resource_version`` is still current; Conflict otherwise."""
        ...

    async def let_go(self, remediation: Remediation) -> None:
        """Takes the finalizer off one that a person deleted; fine when it is gone."""
        ...

    async def policy(self) -> Policy:
        """The policy in force; the defaults when nobody wrote one; Unreadable when it cannot be understood."""
        ...


class FleetIncidents(Protocol):
    """Storage of what many nodes share, for people to read; the controller that leads is the only writer."""

    async def list(self) -> Sequence[FleetRecord]:
        """All of them, freshly read, but those that cannot be understood: they are notes, and stop no other work."""
        ...

    async def write(self, record: FleetRecord) -> None:
        """Creates it, or takes it to this state."""
        ...

    async def delete(self, name: str) -> None:
        """Fine when it is gone."""
        ...


class LeaderLease(Protocol):
    """The lock that lets one controller act."""

    async def hold(self, identity: str, seconds: float) -> bool:
        """Takes or renews the Lease by compare-and-swap. True: held by ``identity`` for ``seconds`` from the moment
        of this call's start. False: another holder's time is not over (judged by how long its record did not change,
        never by comparing clocks). Unreachable when it could not be asked."""
        ...

    async def release(self, identity: str) -> None:
        """Gives the Lease up, only if ``identity`` holds it."""
        ...


class Changes(Protocol):
    """Hints that something changed, so that a pass runs now; losing one costs a delay, never correctness."""

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        """Calls ``listener(kind, name)`` on the event loop for Node, Pod (name = its node), NodeHealth, Remediation."""
        ...


class GpuReader(Protocol):
    """The GPUs of the node that this process runs on."""

    async def gpus(self) -> Sequence[Gpu]:
        """Unreachable when the driver does not answer: never an empty list for that."""
        ...


class PartlyUnreachable(Unreachable):
    """A source answered in part. It holds for ``evidence``; what is not in it is unknown, so nothing is over.

    Attributes:
        evidence: what is wrong, of that which could be asked.
    """

    def __init__(self, why: str, evidence: Sequence[Evidence]) -> None:
        super().__init__(why)
        self.evidence = tuple(evidence)


class StateSource(Protocol):
    """Something on this node that can be asked how it is: the driver, the disks, a network adapter.

    Attributes:
        name: as people read it, for example ``NVML``.
        period: seconds between two readings.
    """

    @property
    def name(self) -> str: ...

    @property
    def period(self) -> float: ...

    async def read(self) -> Sequence[Evidence]:
        """Everything that is wrong now; what a reading no longer holds is over.

        Unreachable when it cannot be asked: never an empty reading for that. PartlyUnreachable, which is one of them,
        when some of it can.
        """
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of the kernel log in order, in the form of ``/dev/kmsg``, newline included or not.

    Attributes:
        lost: how many were overwritten before they could be read.
    """

    records: Sequence[bytes]
    lost: int = 0


class KernelLog(Protocol):
    """An open kernel log that starts at the oldest record still held."""

    def available(self) -> Batch:
        """What is there now; an empty batch at the end. Unreachable when the log cannot be read: open it again."""
        ...

    async def read(self) -> Batch:
        """Waits for records, never an empty batch. Unreachable as above."""
        ...

    def close(self) -> None: ...


class LineSource(Protocol):
    """Where the kernel log of this node can be read.

    Attributes:
        name: as people read it, for example ``journal``.
        numbering: how its records are numbered within a boot. A position counted in another numbering means nothing
            here: whoever comes from one starts at the oldest record.
    """

    @property
    def name(self) -> str: ...

    @property
    def numbering(self) -> str: ...

    async def open(self) -> KernelLog:
        """Unreachable when it cannot be opened; InvalidInput when it is no log."""
        ...
