"""One fresh look at everything that the rules of one incident need. None and Unknown always mean "could not ask"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everstep.core.cluster_state import NodeView, PodView
from everstep.core.health import NodeReport
from everstep.core.machine_state import Operation
from everstep.core.scheduler_state import JobProgress, SchedulerSnapshot, SlurmJob, SlurmNode


@dataclass(frozen=True, slots=True)
class Spare:
    """A node that is a spare of the pool, or the one that this incident took."""

    node: NodeView
    report: NodeReport | None


@dataclass(frozen=True, slots=True)
class OperationSeen:
    """What the provider says about our operation.

    Attributes:
        asked: False when the provider could not be asked; then ``operation`` means nothing.
        operation: None when the provider says that it does not know the id.
    """

    asked: bool = False
    operation: Operation | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """The fleet's word on this incident; it matters only while it is Pending or Admitted (no effect yet).

    Attributes:
        give_way: an Admitted incident must go back to Pending.
        duplicate_of: another open incident on the same node that this one is part of; "" when there is none.
    """

    granted: bool
    reason: str = ""
    give_way: bool = False
    duplicate_of: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One snapshot, taken fresh for each pass.

    Attributes:
        node: None when Kubernetes says that there is no such node.
        pods: pods on the node; None when they could not be listed.
        slurm: one snapshot of each Slurm cluster that answered; None when one could not be asked that may have jobs on
            the node (``slurm_error`` says why).
        progress: by (cluster, job); a missing key means unknown, so far.
        spares: candidates by name, the taken one included.
        refusal: the last error of an action of this incident, "" when the last ones went well.
        delivered: notices sent by this process and not yet in the record: key to error text, "" = delivered.
        failing: other nodes with an open incident that has not taken them out of Slurm's service yet.
    """

    node: NodeView | None
    pods: tuple[PodView, ...] | None
    report: NodeReport | None
    slurm: tuple[SchedulerSnapshot, ...] | None
    slurm_error: str = ""
    progress: Mapping[tuple[str, str], JobProgress] = field(default_factory=dict)
    spares: Mapping[str, Spare] = field(default_factory=dict)
    operation: OperationSeen = field(default_factory=OperationSeen)
    admission: Admission = field(default_factory=lambda: Admission(True))
    refusal: str = ""
    delivered: Mapping[str, str] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()

    def slurm_nodes(self, name: str) -> tuple[tuple[str, SlurmNode], ...]:
        """(cluster, node) for every Slurm cluster that knows the node; empty also when Slurm could not be asked."""
        found = ((s.cluster, s.node(name)) for s in self.slurm or ())
        return tuple((cluster, node) for cluster, node in found if node is not None)

    def slurm_job(self, cluster: str, job: str) -> SlurmJob | None:
        """None when the (asked) cluster does not know the job."""
        return next((s.job(job) for s in self.slurm or () if s.cluster == cluster), None)

    def jobs_ended_on(self, node: str, since: float) -> tuple[tuple[str, SlurmJob], ...]:
        """Jobs that ended, as Slurm still remembers, at or after ``since`` and had run on the node."""
        return tuple(
            (s.cluster, job)
            for s in self.slurm or ()
            for job in s.jobs
            if node in job.nodes and not job.active and not job.waiting and (job.end_time or 0.0) >= since
        )

    def jobs_on(self, node: str) -> tuple[tuple[str, SlurmJob], ...]:
        return tuple((s.cluster, job) for s in self.slurm or () for job in s.jobs_on(node))
