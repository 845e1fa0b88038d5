"""What a modelled Slurm job does with its time: steps, saves and the record that it leaves, as plain arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from everstep.core.scheduler_state import AttemptProgress


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its user submits it.

    Attributes:
        total_steps: after these it ends by itself with ``exit_code``; None runs for ever.
        step_seconds: for one training step.
        startup_seconds: from the start to the first step, loading included.
        save_seconds: from SIGTERM to the end of the save, and of the job.
        save_every: steps between two periodic saves; 0 saves on SIGTERM only.
        heeds_sigterm: False is killed after Slurm's KillWait and has only its periodic saves.
        batch: False for salloc and srun, which Slurm cannot requeue.
        requeue: ``sbatch --no-requeue`` when False.
        expedite: ``sbatch --requeue=expedite`` of Slurm 26.05.
        writes_record: whether it uses the checkpoint SDK.
    """

    name: str = "train"
    user: str = "alice"
    nodes: int = 2
    gpus_per_node: int = 1
    total_steps: int | None = None
    step_seconds: float = 0.1
    startup_seconds: float = 0.5
    save_seconds: float = 2.0
    save_every: int = 0
    heeds_sigterm: bool = True
    exit_code: int = 0
    batch: bool = True
    requeue: bool = True
    expedite: bool = False
    writes_record: bool = True


@dataclass(slots=True)
class Training:
    """The attempts of one job; times are the model's seconds."""

    spec: JobSpec
    _attempts: list[AttemptProgress] = field(default_factory=list)
    _runs: bool = False
    _saving: tuple[float, AttemptProgress] | None = None  # when the last save commits, and the attempt after it
    _saved_step: int | None = None
    _stalled_at: float = math.inf

    def start(self, attempt: int, at: float) -> None:
        self._commit(at)
        self._runs, self._stalled_at = True, math.inf
        self._attempts.append(
            AttemptProgress(attempt=attempt, started_at=at, resumed_from=self._saved_step, load_seconds=0.0)
        )

    def ends_at(self) -> float | None:
        """When the present attempt finishes its last step by itself."""
        if self.spec.total_steps is None:
            return None
        attempt = self._attempts[-1]
        assert attempt.started_at is not None
        todo = self.spec.total_steps - (attempt.resumed_from or 0)
        return attempt.started_at + self.spec.startup_seconds + todo * self.spec.step_seconds

    def seen_at(self, now: float) -> tuple[AttemptProgress, ...]:
        """What the records say at that moment; nothing when the job writes none."""
        self._commit(now)
        if not self.spec.writes_record or not self._attempts:
            return ()
        last = self._attempts[-1]
        return (*self._attempts[:-1], self._grown(last, now) if self._runs else last)

    def sigterm(self, at: float, deadline: float) -> None:
        """SIGTERM arrives; the save commits when it fits before SIGKILL at ``deadline``."""
        attempt = replace(self._grown(self._attempts[-1], at), stop_asked_at=at)
        self._stop(attempt)
        done = at + self.spec.save_seconds
        if self.spec.heeds_sigterm and done <= deadline and attempt.highest_step is not None:
            saved = replace(
                attempt,
                saved_step=attempt.highest_step,
                saved_bytes=1_000_000,
                save_seconds=self.spec.save_seconds,
                saved_at=done,
                outcome="stopped",
            )
            self._saving = (done, saved)

    def end(self, at: float, outcome: str) -> None:
        """Ends by itself (``finished`` or ``failed``)."""
        self._stop(replace(self._grown(self._attempts[-1], at), outcome=outcome))

    def stall(self, at: float) -> None:
        """A node of it died: the others wait for its gradients for ever, and can still save what they have."""
        self._stalled_at = min(self._stalled_at, at)

    def vanish(self, at: float) -> None:
        """Every node of it lost power: no signal, and a save that was under way never commits."""
        self._commit(at)
        self._saving = None
        if self._runs:
            self._stop(self._grown(self._attempts[-1], at))

    def _stop(self, attempt: AttemptProgress) -> None:
        self._runs = False
        self._attempts[-1] = attempt
        self._saved_step = attempt.saved_step if attempt.saved_step is not None else self._saved_step

    def _commit(self, now: float) -> None:
        if self._saving is not None and self._saving[0] <= now:
            self._stop(self._saving[1])
            self._saving = None

    def _grown(self, attempt: AttemptProgress, now: float) -> AttemptProgress:
        assert attempt.started_at is not None
        now = min(now, self._stalled_at)
        begin = attempt.resumed_from or 0
        first_step_at = attempt.started_at + self.spec.startup_seconds + self.spec.step_seconds
        steps = int((now - first_step_at) / self.spec.step_seconds + 1 + 1e-6) if now >= first_step_at else 0
        if not steps:
            return attempt
        highest = begin + steps
        if self.spec.total_steps is not None:
            highest = min(highest, self.spec.total_steps)
        attempt = replace(attempt, highest_step=highest, first_step_at=first_step_at)
        every = self.spec.save_every
        if every and highest // every * every > begin:
            saved = highest // every * every
            saved_at = first_step_at + (saved - begin - 1) * self.spec.step_seconds
            return replace(attempt, saved_step=saved, saved_bytes=1_000_000, save_seconds=0.0, saved_at=saved_at)
        return attempt
