"""The nodes and jobs of the modelled Slurm, and how its commands would show them."""

from __future__ import annotations

from dataclasses import dataclass, field

from everstep.core.scheduler_state import WAITING_JOB_STATES, SlurmJob, SlurmNode
from everstep.core.slurm_text import JobRecord
from everstep.testing.slurm_training import JobSpec, Training


@dataclass(slots=True)
class ModelNode:
    name: str
    gpus: int = 1
    alive: bool = True
    responding: bool = True
    drain: bool = False
    down: bool = False
    reason: str = ""
    leaked: int = 0  # GPUs that a stale allocation keeps counted as used

    @property
    def usable(self) -> bool:
        # A node that died a moment ago still gets work: nobody has noticed yet.
        return self.responding and not self.drain and not self.down

    def view(self, used: int, completing: bool) -> SlurmNode:
        """``used`` GPUs are allocated by jobs that Slurm knows of."""
        base = "IDLE" if not used else "MIXED" if used < self.gpus else "ALLOCATED"
        flags = {
            "DOWN" if self.down else base: True,
            "DYNAMIC_NORM": True,
            "DRAIN": self.drain,
            "NOT_RESPONDING": not self.responding,
            "COMPLETING": completing,
        }
        return SlurmNode(
            name=self.name,
            states=frozenset(flag for flag, there in flags.items() if there),
            reason=self.reason,
            gres=f"gpu:{self.gpus}",
            gres_used=f"gpu:{used + self.leaked}",
        )


@dataclass(slots=True)
class ModelJob:
    id: str
    spec: JobSpec
    training: Training
    state: str = "PENDING"
    restarts: int = 0
    requeue: bool = True
    held: bool = False
    reason: str = "None"
    nodes: tuple[str, ...] = ()
    eligible_at: float = 0.0
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    finishing: set[str] = field(default_factory=set)  # nodes that still wind it down
    ends_as: str = ""  # the state after COMPLETING
    run: int = 0  # distinguishes the events of one run from those of the next

    @property
    def stale(self) -> bool:
        return self.state in WAITING_JOB_STATES and bool(self.nodes)

    def gpus_on(self, node: str) -> int:
        holds = self.state in {"RUNNING", "COMPLETING"} or self.stale
        return self.spec.gpus_per_node if holds and node in self.nodes else 0

    def view(self) -> SlurmJob:
        return SlurmJob(
            id=self.id,
            user=self.spec.user,
            name=self.spec.name,
            state=self.state,
            restarts=self.restarts,
            nodes=self.nodes,
            num_nodes=self.spec.nodes,
            requeue=self.requeue,
            batch=self.spec.batch,
            held=self.held,
            reason=self.reason,
            start_time=self.started_at,
            end_time=self.ended_at,
            gpus=self.spec.gpus_per_node * self.spec.nodes,
        )

    def record(self) -> JobRecord:
        return JobRecord(
            job=self.view(),
            target=self.id,
            priority=0 if self.held else 1,
            eligible_at=self.eligible_at,
            submitted_at=self.submitted_at,
        )
