"""What the engine needs of the world, as protocols. Adapters implement them; ``everstep.testing`` has fakes of each.

Every method may raise :class:`everstep.core.errors.RetryLater` (nothing changed, or repeating is safe),
:class:`~everstep.core.errors.FixTheRequest` or :class:`~everstep.core.errors.CallAHuman`; nothing else. A method
that reads never answers with an empty value because it could not ask. Every method that writes is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from everstep.core.cluster_state import NodeView, PodView
from everstep.core.health import Gpu, NodeReport
from everstep.core.scheduler_state import JobProgress, SchedulerSnapshot


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

    async def join_pool(self, node: str, pool: str, remediation: str) -> None:
        """Turns the claimed spare into a node in service: pool label on, spare label, taint and claim off."""
        ...

    async def leave_pool(self, node: str, remediation: str) -> None:
        """Takes a node out of its pool: pool label off, out-of-service label on."""
        ...

    async def event(self, kind: str, name: str, reason: str, message: str, namespace: str = "") -> None:
        """Records a Kubernetes Event on an object; best effort for the caller, never raises on a missing object."""
        ...


class Scheduler(Protocol):
    """Every Slurm cluster that Everstep looks after; ``cluster`` is ``namespace/name`` of its SlurmCluster."""

    async def snapshots(self) -> Sequence[SchedulerSnapshot]:
        """One fresh snapshot of each cluster; Unreachable when any of them could not be asked."""
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
        """Holds a running job, so that it stays held once Slurm requeues it because a node went down."""
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


class OperationState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Operation:
    """A machine operation that was dispatched under an id of our choice."""

    id: str
    machine: str
    action: str
    state: OperationState
    message: str = ""


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
    """A message to people about one remediation."""

    remediation: str
    node: str
    title: str
    text: str
    user: str = ""
    job: str = ""


class Notifier(Protocol):
    """Mail, chat, webhook. A failure to notify never stops a heal: callers record it and go on."""

    async def notify(self, notice: Notice) -> None: ...


class GpuReader(Protocol):
    """The GPUs of the node that this process runs on."""

    async def gpus(self) -> Sequence[Gpu]:
        """Unreachable when the driver does not answer: never an empty list for that."""
        ...
