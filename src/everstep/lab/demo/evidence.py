"""What the demo collected, before any judgement; every field comes from a system that the demo did not write to.

Times are Unix seconds. The loss of a step is the hexadecimal form of the float, so that equality means equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """The fault that the demo caused: ``kind`` is ``xid`` or ``power``; ``at`` is when the line was written."""

    kind: str
    code: str
    node: str
    gpu: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the job, from the job's own record and loss file."""

    number: int
    resumed_from: int | None
    highest_step: int | None
    first_step_at: float | None
    saved_step: int | None
    save_seconds: float | None
    load_seconds: float | None
    outcome: str | None
    losses: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """The job as Slurm and its own records tell it.

    Attributes:
        submitted_id: the id that sbatch printed.
        id: the id that Slurm shows at the end; the same, or the heal was a resubmission.
        nodes_after: nodes of the last attempt.
        started_after: Slurm's start time of the last attempt.
    """

    submitted_id: str
    id: str
    state: str
    restarts: int
    nodes_before: tuple[str, ...]
    nodes_after: tuple[str, ...]
    steps_wanted: int
    attempts: tuple[Attempt, ...]
    reference: Mapping[int, str]
    started_after: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the Remediation record."""

    name: str
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Record:
    """The Remediation object as the API server has it at the end."""

    name: str
    outcome: str
    reason: str
    steps: tuple[Step, ...]
    replacement: str | None
    released_at: float | None = None
    in_service_at: float | None = None

    def at(self, name: str) -> float | None:
        return next((step.at for step in self.steps if step.name == name), None)


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """One node at the end, from Kubernetes and from Slurm."""

    name: str
    pool: str | None
    schedulable: bool
    ready: bool
    verdict: str
    slurm_states: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sample:
    """GPU utilisation of one node at one moment: its busiest GPU, in percent; None while the machine is off."""

    at: float
    node: str
    utilization_percent: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the proof, the plot and the report are made from."""

    slurm_version: str
    fault: InjectedFault
    job: JobEvidence
    record: Record
    nodes: Mapping[str, NodeEvidence]
    notices: tuple[str, ...]
    order_violations: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
    started_at: float = 0.0
    finished_at: float = 0.0
