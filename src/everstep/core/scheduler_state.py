"""Read-only views of Slurm: one snapshot of nodes and jobs, and what a job wrote about its own progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Base states in which a job holds, or still winds down on, its nodes.
ACTIVE_JOB_STATES = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT"}
)
# 26.05 shows two more states for a job that waits to start again; both behave like PENDING.
WAITING_JOB_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "EXPEDITING"})


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One Slurm node.

    ``states`` is the base state and every flag, upper case: ``IDLE``, ``DRAIN``, ``NOT_RESPONDING``, ...
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    address: str = ""
    gres: str = ""
    gres_used: str = ""

    @property
    def drained_for_good(self) -> bool:
        return "DRAIN" in self.states

    @property
    def responding(self) -> bool:
        return not self.states & {"NOT_RESPONDING", "DOWN", "UNKNOWN"}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One Slurm job.

    Attributes:
        state: one word, upper case, flags cut off.
        restarts: Slurm's restart count; the guard of every mutating call.
        nodes: nodes that the job holds; of a PENDING job non-empty only with the stale-allocation bug
            of Slurm before 23.11.11, 24.05.6 and 24.11.1.
        held: waits for a release (priority 0 or a held reason).
        end_time: Unix seconds at which a job in a final state ended; of a job that runs, when its time limit is over.
        gpus: GPUs allocated to (or asked by) the whole job; None when Slurm does not say.
        batch: False for salloc/srun jobs, which cannot be requeued.
    """

    id: str
    user: str
    name: str
    state: str
    restarts: int
    nodes: tuple[str, ...] = ()
    num_nodes: int = 1
    requeue: bool = True
    batch: bool = True
    held: bool = False
    reason: str = ""
    start_time: float | None = None
    end_time: float | None = None
    gpus: int | None = None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE_JOB_STATES

    @property
    def waiting(self) -> bool:
        return self.state in WAITING_JOB_STATES


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """All nodes and jobs of one Slurm cluster at one moment.

    Attributes:
        cluster: ``namespace/name`` of the SlurmCluster.
        taken_at: Unix seconds of the gateway's clock.
    """

    cluster: str
    version: str
    taken_at: float
    nodes: tuple[SlurmNode, ...] = ()
    jobs: tuple[SlurmJob, ...] = ()

    def node(self, name: str) -> SlurmNode | None:
        return next((n for n in self.nodes if n.name == name), None)

    def job(self, job_id: str) -> SlurmJob | None:
        return next((j for j in self.jobs if j.id == job_id), None)

    def jobs_on(self, node: str) -> tuple[SlurmJob, ...]:
        return tuple(j for j in self.jobs if j.active and node in j.nodes)


@dataclass(frozen=True, slots=True)
class SilentCluster:
    """A Slurm cluster that could not be asked, and what is known of its nodes all the same.

    Attributes:
        cluster: ``namespace/name`` of the SlurmCluster.
        why: one sentence.
        nodes: names of its nodes when it last answered; empty when it never did.
        selectors: labels that the nodes of each of its pools carry; None when nobody knows, so any node may be its.
    """

    cluster: str
    why: str
    nodes: frozenset[str] = frozenset()
    selectors: tuple[Mapping[str, str], ...] | None = None

    def may_hold(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether it may have jobs on the node."""
        if self.selectors is None or node in self.nodes:
            return True
        return any(all(labels.get(key) == value for key, value in wanted.items()) for wanted in self.selectors)


@dataclass(frozen=True, slots=True)
class SchedulerLook:
    """One look at every Slurm cluster: those that answered, each fresh, and those that could not be asked."""

    answered: tuple[SchedulerSnapshot, ...] = ()
    silent: tuple[SilentCluster, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """One attempt of a job, from the JSONL record that the job itself wrote (untrusted, for the story only).

    Attributes:
        attempt: Slurm's restart count at that attempt.
        resumed_from: step it started at; None when it started fresh or has not said yet.
        highest_step: highest step reported; None before the first.
        first_step_at: Unix seconds of the first step of this attempt.
        saved_step, saved_bytes, save_seconds, saved_at: the last committed checkpoint.
        stop_asked_at: Unix seconds at which the signal arrived.
        outcome: ``stopped``, ``finished``, ``failed`` or None while it runs (or was killed).
    """

    attempt: int
    started_at: float | None = None
    resumed_from: int | None = None
    highest_step: int | None = None
    first_step_at: float | None = None
    saved_step: int | None = None
    saved_bytes: int | None = None
    save_seconds: float | None = None
    saved_at: float | None = None
    load_seconds: float | None = None
    stop_asked_at: float | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Every attempt of one job that left a record, oldest first; empty when the job writes none."""

    job_id: str
    attempts: tuple[AttemptProgress, ...] = ()

    def attempt(self, number: int) -> AttemptProgress | None:
        return next((a for a in self.attempts if a.attempt == number), None)
