"""What a decision may ask for, as data. ``engine/act.py`` maps each to one port call; nothing else has side effects.

Every action is idempotent, and the actions of one decision do not depend on each other's success.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.core.cluster_state import PodView


@dataclass(frozen=True, slots=True)
class Cordon:
    node: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    node: str


@dataclass(frozen=True, slots=True)
class Evict:
    pod: PodView


@dataclass(frozen=True, slots=True)
class ClaimSpare:
    node: str


@dataclass(frozen=True, slots=True)
class ReleaseSpare:
    node: str


@dataclass(frozen=True, slots=True)
class JoinPool:
    node: str
    pool: str


@dataclass(frozen=True, slots=True)
class LeavePool:
    node: str


@dataclass(frozen=True, slots=True)
class SlurmDrain:
    cluster: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class SlurmDown:
    cluster: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class SlurmResume:
    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class SlurmForget:
    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class RequeueJob:
    cluster: str
    job: str
    restarts: int


@dataclass(frozen=True, slots=True)
class HoldJob:
    cluster: str
    job: str
    restarts: int


@dataclass(frozen=True, slots=True)
class ClearStaleAllocation:
    cluster: str
    job: str
    restarts: int


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    cluster: str
    job: str
    restarts: int


@dataclass(frozen=True, slots=True)
class TellJob:
    """A line in the job's own output; ``key`` identifies it, so that it is delivered once."""

    key: str
    cluster: str
    job: str
    text: str


@dataclass(frozen=True, slots=True)
class TellPeople:
    """A notice to people and an Event; ``key`` identifies it. At least once: a crash may repeat it."""

    key: str
    title: str
    text: str
    user: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class RetireMachine:
    operation: str
    machine: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Lets a deleted record go."""


Action = (
    Cordon
    | Uncordon
    | Evict
    | ClaimSpare
    | ReleaseSpare
    | JoinPool
    | LeavePool
    | SlurmDrain
    | SlurmDown
    | SlurmResume
    | SlurmForget
    | RequeueJob
    | HoldJob
    | ClearStaleAllocation
    | ReleaseJob
    | TellJob
    | TellPeople
    | RetireMachine
    | LetGo
)
