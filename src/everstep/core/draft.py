"""What one pass works on: the incident, what is seen, and the decision as it grows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from everstep.core.actions import Action
from everstep.core.observations import Observed
from everstep.core.policy import Policy
from everstep.core.remediation_status import JobPhase, JobRecord, Remediation, Spec, Status, StepName

NODE_LOST = ("host", "node-lost")
OUR_PREFIX = "everstep:"


@dataclass(slots=True)
class Draft:
    """One pass over one incident; lives only inside ``decide``.

    Attributes:
        waits: what each unfinished track waits for, most important first.
        now: Unix seconds.
    """

    now: float
    remediation: Remediation
    seen: Observed
    policy: Policy
    status: Status
    actions: list[Action] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    @property
    def spec(self) -> Spec:
        return self.remediation.spec

    def act(self, *actions: Action) -> None:
        self.actions.extend(actions)

    def wait(self, reason: str) -> None:
        self.waits.append(reason)

    def step(self, name: StepName, reason: str, at: float | None = None) -> None:
        """Records a step; a time told by another machine's clock is kept within [detected, now]."""
        detected = self.status.step(StepName.DETECTED)
        earliest = detected.at if detected else 0.0
        self.status = self.status.with_step(name, min(max(at or self.now, earliest), self.now), reason)

    def has(self, name: StepName) -> bool:
        return self.status.step(name) is not None

    def stuck(self, problem: str) -> None:
        """A person is needed; the first problem is the one that is told."""
        if not self.status.problem:
            self.status = replace(self.status, problem=problem)

    @property
    def age(self) -> float:
        """Seconds in the present stage."""
        return self.now - self.status.since

    @property
    def halted(self) -> bool:
        """Nothing more may be done to the node; its jobs are still brought back."""
        return bool(self.status.problem or self.status.cancelled or self.status.left_alone)

    @property
    def handed_over(self) -> bool:
        """The provider has the machine: whatever now bears its name is another one."""
        return self.status.operation is not None and self.status.operation.acknowledged_at is not None

    @property
    def machine_is_back(self) -> bool:
        """Another, proven machine is in service under the faulty one's name, whichever incident took it in."""
        node = self.seen.node
        return self.handed_over and node is not None and node.pool is not None and node.out_of_service is None

    @property
    def node_is_ours(self) -> bool:
        """The node that Kubernetes shows is still the faulty one, not a new one under the same name."""
        node = self.seen.node
        return node is not None and not self.handed_over and self.spec.node_uid in ("", node.uid)

    @property
    def node_dead(self) -> bool:
        """The node does not run any more: it was reported lost, or both its kubelet and its agent are silent."""
        if self.handed_over:
            return True
        node, report = self.seen.node, self.seen.report
        if node is None:
            return True
        if node.ready is True:
            return False
        if any((f.kind, f.code) == NODE_LOST for f in self.spec.faults) and node.boot_id == self.spec.boot_id:
            return True
        if report is None or report.heartbeat is None:
            return False
        return self.now - report.heartbeat > self.policy.node_lost_grace

    @property
    def jobs_hold_node(self) -> bool:
        """Some job that may still save, or that we do not know yet, is on the node; True when Slurm is silent."""
        if self.seen.slurm is None:
            return True
        if any(self.blocks(job) for job in self.status.jobs):
            return True
        past_grace = {(j.cluster, j.id) for j in self.status.jobs if j.phase is JobPhase.UNREQUEUABLE}
        return any((cluster, job.id) not in past_grace for cluster, job in self.seen.jobs_on(self.spec.node))

    def blocks(self, job: JobRecord) -> bool:
        """The job may still need the node: it is not through its grace yet."""
        if job.phase is JobPhase.UNREQUEUABLE:
            return self.now - job.phase_since < self.policy.grace
        return job.phase in (JobPhase.FOUND, JobPhase.STOPPING, JobPhase.SAVING)
