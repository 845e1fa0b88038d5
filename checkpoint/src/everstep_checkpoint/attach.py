"""`attach`: for programs that keep their own loop and their own way to save."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .agreement import Message
from .attempt import Attempt
from .errors import CheckpointError, StateMismatchError
from .interval import Every
from .manifest import Checkpoint
from .saver import Job
from .world import World


class Attached(Attempt):
    """One attempt, step by step, the same calls on every rank. Made by `attach`; use it as a context manager.

        with attach(directory) as run:
            start = run.latest_step(0)                    # and run.latest, the folder to load from
            for step in range(start, total):
                train_one_step()
                run.report(step + 1, loss=loss)
                if run.should_save(step + 1):
                    my_save(run.begin(step + 1))          # all ranks write into that folder
                    run.commit(step + 1)                  # returns on all ranks once it is published, or not
                if run.should_stop(step + 1):
                    break

    Steps are counted as completed: after the first one it is 1.
    """

    latest: Path | None = None  # the checkpoint to load from: every byte of it was verified

    def latest_step(self, default: int = 0) -> int:
        """Completed steps of the checkpoint to load, or `default` when there is none."""
        return self.resumed_from if self.resumed_from is not None else default

    def report(self, step: int, loss: float | None = None) -> None:
        """`step` steps are complete."""
        self._only_here()
        step = operator.index(step)  # also numpy's and torch's whole numbers
        self._completed = step
        self._progress(step, None if loss is None else float(loss))

    def wants_loss(self) -> bool:
        """Whether a loss reported now would be written; it is at most once a second."""
        return self._record is not None and self._record.wants_progress

    def report_loss(self, step: int, loss: float) -> None:
        """The loss of a step that was reported already: where reading it is worth less often than every step."""
        self._only_here()
        if self._record is not None and step == self._reported:
            self._record.progress(step, float(loss))

    def should_save(self, step: int) -> bool:
        """Whether to save now, after `step` completed steps: equal on all ranks. Also when the run is to stop here."""
        self._only_here()
        return self._verdict(step) in ("save", "stop")

    def should_stop(self, step: int) -> bool:
        """Whether to leave the loop now, after `step` completed steps: equal on all ranks."""
        self._only_here()
        stops = self._verdict(step) in ("stop", "leave")
        if stops:
            self.outcome = "stopped"
        return stops

    def begin(self, step: int) -> Path:
        """The folder, equal on all ranks, to write the checkpoint of `step` into. Raises OSError."""
        self._only_here()
        step = operator.index(step)
        self._note("save", phase="begin", step=step, why="asked for")
        self._began, self._begun_step = time.monotonic(), step
        self._team.begin_save(step)
        folder = self._vault.staging(step)
        folder.mkdir(exist_ok=True)
        return folder

    def commit(self, step: int, gather: Callable[[Path], None] | None = None) -> bool:
        """All ranks have written: verify, publish, delete what is old. False, and a line in the record, if it failed.

        `gather` runs on rank 0 with the folder, once all ranks have come here: for files that lie elsewhere.
        Raises CheckpointError when `begin` was not called for this step.
        """
        self._only_here()
        step = operator.index(step)
        if self._begun_step != step or self._saver is None:
            raise CheckpointError(f"commit({step}) without begin({step})")
        self._begun_step = -1
        team, vault, size = self._team, self._vault, self.world.size
        about = {"attempt": self.world.attempt}

        def publish(reports: dict[int, Message]) -> int:
            if gather is not None:
                gather(vault.staging(step))
            return vault.publish_foreign(step, size, about).bytes

        def discard() -> None:
            vault.discard(step)

        job = Job(step, "asked for", 0, _nothing_to_write, publish, discard, self._began,
                  time.monotonic() - self._began)  # fmt: skip
        self._saver.submit(job)
        self._saver.wait()
        self._saver.stall = time.monotonic() - self._began  # all of it: this one is not in the background
        if self._every.steps is None and team.leader is not None and self._every.automatic:
            self._saver.on_periodic()
        return self._saver.saved_step == step

    _began = 0.0
    _begun_step = -1
    _decided: tuple[int, str] = (-1, "go")

    def _verdict(self, step: int) -> str:
        """One decision a boundary, however often it is asked for."""
        step = operator.index(step)
        if self._decided[0] != step:
            verdict = self._team.boundary(step)
            if verdict == "save" and (again := self._team.boundary(step)) != "go":
                verdict = again  # the boundary is passed only by "go": a stop may have been agreed on meanwhile
            if verdict == "go" and self._every.steps is not None and step % self._every.steps == 0:
                verdict = "save"
            self._decided = (step, verdict)
        return self._decided[1]

    def _restore(self, found: Checkpoint) -> None:
        if not found.foreign:
            raise StateMismatchError(f"{found.path} was saved by Run: go on with that, or use a new directory")
        self.latest = found.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return
        if kind is not None:
            self.outcome = "failed"
        elif self.outcome is None:
            self.outcome = "finished"
        self._exit(kind, error)


def attach(
    directory: str | os.PathLike[str],
    *,
    keep: int = 3,
    grace: float = 120.0,
    every: float | Every | None = None,
    world: World | None = None,
) -> Attached:
    """Agreement on stops, publishing, verification, retention and the record, around a save of your own.

    Arguments as those of `Run`. Entering finds the newest sound checkpoint.
    """
    return Attached(directory, keep, grace, every, world)


def _nothing_to_write() -> Message:
    return {"t": "written", "bytes": 0}
