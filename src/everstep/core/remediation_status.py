"""The record of one incident on one node: what is persisted in a Remediation, and nothing else.

Times are Unix seconds, durations seconds. Everything is immutable; ``dataclasses.replace`` makes the next version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from everstep.core.health import Fault


class Stage(StrEnum):
    """What the incident waits for now. Internal: clients read conditions."""

    PENDING = "Pending"
    ADMITTED = "Admitted"
    ISOLATING = "Isolating"
    RECOVERING = "Recovering"
    VACATING = "Vacating"
    REPLACING = "Replacing"
    RESUMING = "Resuming"
    RESOLVED = "Resolved"


class Outcome(StrEnum):
    SUCCEEDED = "Succeeded"
    LEFT_ALONE = "LeftAlone"
    DRY_RUN = "DryRun"
    ESCALATED = "Escalated"
    CANCELLED = "Cancelled"


class StepName(StrEnum):
    """The promise, step by step; each appears at most once in a record."""

    DETECTED = "detected"
    NOTIFIED = "notified"
    ISOLATED = "isolated"
    SIGNALLED = "signalled"
    CHECKPOINTED = "checkpointed"
    REQUEUED = "requeued"
    OPT_OUT_CHECKED = "optOutChecked"
    CORDONED = "cordoned"
    DRAINED = "drained"
    REPLACED = "replaced"
    VALIDATED = "validated"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class Step:
    """One step that has happened; ``at`` is when it happened, not when it was noticed, where that is known."""

    name: StepName
    at: float
    reason: str


class JobPhase(StrEnum):
    """Where one job is on its way back to work."""

    FOUND = "Found"  # holds the faulty node; nothing was asked of it
    STOPPING = "Stopping"  # marked: Slurm is asked to requeue it held
    SAVING = "Saving"  # Slurm signalled it; it may save until the grace is over
    REQUEUED = "Requeued"  # waits in the queue, held
    RELEASED = "Released"  # marked: the hold is taken off
    RUNNING = "Running"  # runs again on healthy nodes, not yet proven
    RESUMED = "Resumed"  # proven by its first new step, or by running on where it writes no record
    FINISHED = "Finished"  # ended by itself; left alone
    UNREQUEUABLE = "Unrequeuable"  # salloc/srun: its user was told, and Slurm cannot requeue it
    FAILED = "Failed"  # ended badly after its restart, or can no longer be found


SETTLED_PHASES = frozenset({JobPhase.RESUMED, JobPhase.FINISHED, JobPhase.FAILED})


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that the fault touched.

    Attributes:
        cluster: ``namespace/name`` of its SlurmCluster.
        restarts_before: Slurm's restart count when the fault was found; the guard of every request.
        restarts: restart count last seen.
        guard: restart count for which the present stop is asked; grows only when a launch failed.
        nodes: nodes it held when found.
        gpus: GPUs it held in total; None when Slurm did not say.
        phase_since: when ``phase`` was entered.
        asked_at: the mark that precedes the requeue request.
        signalled_at: when its processes got SIGTERM, by its own record, else ``asked_at``.
        stopped_at: when it was first seen waiting in the queue again (or its restart, if sooner).
        released_at: the mark that precedes the release.
        nudged_at: when the start was last asked for again.
        started_at: when Slurm started it again.
        resumed_at: its first new step, or three seconds of running where it writes no record.
        resumed_from: step it resumed from; None when it started afresh or writes no record.
        steps_lost: steps that are computed twice, at least so many if the job was killed; None = unknown, never to be
            shown as 0.
        gpu_seconds_lost: GPUs x seconds from the signal to the first new step; None = unknown.
        saved_step, saved_bytes, save_seconds, saved_at: the checkpoint it resumes from.
        load_seconds: what the load took; None = unknown.
        launches: how often it had to be stopped again: its launch failed, or it was on the faulty node.
        reason: one sentence.
    """

    id: str
    cluster: str
    user: str
    name: str
    restarts_before: int
    restarts: int
    guard: int
    nodes: tuple[str, ...] = ()
    gpus: int | None = None
    phase: JobPhase = JobPhase.FOUND
    phase_since: float = 0.0
    asked_at: float | None = None
    signalled_at: float | None = None
    stopped_at: float | None = None
    released_at: float | None = None
    nudged_at: float | None = None
    started_at: float | None = None
    resumed_at: float | None = None
    resumed_from: int | None = None
    steps_lost: int | None = None
    gpu_seconds_lost: float | None = None
    saved_step: int | None = None
    saved_bytes: int | None = None
    save_seconds: float | None = None
    saved_at: float | None = None
    load_seconds: float | None = None
    launches: int = 0
    reason: str = ""

    @property
    def settled(self) -> bool:
        return self.phase in SETTLED_PHASES


@dataclass(frozen=True, slots=True)
class Replacement:
    """The spare that takes the place.

    Attributes:
        since: the mark that precedes the claim.
        validated_at: when it passed every check, before any work could land on it.
        in_service_at: when it was in the pool and, where the pool runs Slurm, answering there.
    """

    node: str
    since: float
    validated_at: float | None = None
    in_service_at: float | None = None


@dataclass(frozen=True, slots=True)
class OperationMark:
    """The dispatch mark of the one irreversible act, written before it.

    Attributes:
        state: what the provider last said, "" before it said anything; "unknown" when nobody could tell how it ended.
        acknowledged_at: when the provider first said that it knows the operation.
        ended_at: when it was seen to have ended, or asking was given up; absent while the repair goes on.
        message: what the provider said about its end.
    """

    id: str
    machine: str
    marked_at: float
    state: str = ""
    acknowledged_at: float | None = None
    ended_at: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Durations:
    """Legs of the heal in seconds, from ``detected`` where not said otherwise; None = did not happen or unknown.

    Attributes:
        checkpoint_s: signal to saved.
        requeue_s: saved to waiting in the queue.
        replace_s: cordon to replacement in service.
        healthy_node_s: to a validated replacement in service.
        resumed_s: to the first new step.
        overhead_s: ``resumed_s`` without the job's own save and load and Slurm's scheduling wait.
    """

    isolate_s: float | None = None
    checkpoint_s: float | None = None
    requeue_s: float | None = None
    replace_s: float | None = None
    healthy_node_s: float | None = None
    resumed_s: float | None = None
    overhead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """``.status`` of a Remediation.

    Attributes:
        since: when ``stage`` was entered.
        reason: the one plain sentence that log, event, condition and CLI show.
        admitted_at: when the fleet-wide admission let it start; None while Pending.
        clusters: Slurm clusters that knew the node when it was isolated.
        merged_faults: keys of further faults on the node while the incident is open.
        left_alone: why the node may not be replaced; "" when it may.
        problem: why a person is called; the jobs are still brought back. "" when all is well.
        cancelled: who took the node back; "" when nobody did.
        rejected_spares: spares that failed their checks.
        told: notices that were delivered or given up, by key, with the error text ("" = delivered).
    """

    stage: Stage = Stage.PENDING
    since: float = 0.0
    reason: str = ""
    outcome: Outcome | None = None
    admitted_at: float | None = None
    steps: tuple[Step, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    clusters: tuple[str, ...] = ()
    merged_faults: tuple[str, ...] = ()
    replacement: Replacement | None = None
    rejected_spares: tuple[str, ...] = ()
    operation: OperationMark | None = None
    left_alone: str = ""
    problem: str = ""
    cancelled: str = ""
    told: tuple[tuple[str, str], ...] = ()
    durations: Durations = field(default_factory=Durations)
    resolved_at: float | None = None

    def step(self, name: StepName) -> Step | None:
        return next((s for s in self.steps if s.name is name), None)

    def with_step(self, name: StepName, at: float, reason: str) -> Status:
        """Adds the step in its place in time, once; a second time changes nothing."""
        if self.step(name):
            return self
        return replace(self, steps=tuple(sorted((*self.steps, Step(name, at, reason)), key=lambda step: step.at)))

    @property
    def resolved(self) -> bool:
        return self.stage is Stage.RESOLVED


@dataclass(frozen=True, slots=True)
class Spec:
    """``.spec`` of a Remediation, written once by the controller that opens it.

    Attributes:
        node_uid, boot_id: of the node when the fault was found: the same name may come back as another machine.
        machine: name under which the provider knows the machine.
        gpus: GPUs that a healthy node of this pool has.
        faults: active faults at that moment; the first one names the incident.
    """

    node: str
    node_uid: str
    boot_id: str
    pool: str
    machine: str
    gpus: int
    faults: tuple[Fault, ...]
    action: str = "replace"
    policy: str = "default"


@dataclass(frozen=True, slots=True)
class Remediation:
    """One incident on one node.

    Attributes:
        created: Unix seconds.
        deleting: a person deleted it; its finalizer holds it until the jobs in flight are released.
    """

    name: str
    uid: str
    resource_version: str
    created: float
    spec: Spec
    status: Status = field(default_factory=Status)
    deleting: bool = False


# What must come before what. The three tracks (jobs, node, replacement) run side by side, so this is a partial order:
# "isolated" and "cordoned", say, have no order between them, and a node may be validated while the job still saves.
STEP_ORDER: tuple[tuple[StepName, StepName], ...] = (
    *((StepName.DETECTED, later) for later in StepName if later is not StepName.DETECTED),
    (StepName.ISOLATED, StepName.SIGNALLED),
    (StepName.SIGNALLED, StepName.CHECKPOINTED),
    (StepName.CHECKPOINTED, StepName.REQUEUED),
    (StepName.REQUEUED, StepName.DRAINED),
    (StepName.REQUEUED, StepName.RESUMED),
    (StepName.OPT_OUT_CHECKED, StepName.CORDONED),
    (StepName.CORDONED, StepName.DRAINED),
    (StepName.CORDONED, StepName.VALIDATED),
    (StepName.VALIDATED, StepName.REPLACED),
)


def order_violations(steps: Iterable[Step]) -> list[str]:
    """One sentence for each pair of steps that contradicts ``STEP_ORDER``, and for each step recorded twice."""
    at: dict[StepName, float] = {}
    found: list[str] = []
    for step in steps:
        if step.name in at:
            found.append(f"step {step.name} is recorded twice")
        at[step.name] = step.at
    found.extend(
        f"step {later} (at {at[later]:.3f}) must not come before step {earlier} (at {at[earlier]:.3f})"
        for earlier, later in STEP_ORDER
        if earlier in at and later in at and at[later] < at[earlier]
    )
    return found
