"""What `Run` and `attach` share: one attempt's ranks, signals, record and directory."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .agreement import Message
from .errors import CheckpointError, RendezvousError, StateMismatchError
from .grace import Grace, effective
from .interval import Every, Interval, failure_rate
from .launched import ancestors, deaf
from .manifest import Checkpoint
from .outcome import leave_outcome
from .record import Record, StepCounter, record_file
from .saver import Saver
from .sections import Sections
from .shield import shield_data_loaders
from .team import Team
from .vault import Vault
from .world import World, detect

log = logging.getLogger("everstep_checkpoint")

_JOIN = 300.0  # seconds for all ranks to come up: images are pulled and libraries imported meanwhile
_RESUME = 3600.0  # seconds for rank 0 to verify a checkpoint: 1.5 GB/s per core
_LONGEST_GRACE = 7 * 86400.0  # seconds; more can only be a mistake, and threads cannot wait for ever
_VISIBLE = 30.0  # seconds for a file that rank 0 saw to appear here: network file systems cache names


class Attempt(ABC):
    """One attempt of a training run, the same calls on every rank; see `Run` for the arguments."""

    def __init__(
        self, directory: str | os.PathLike[str], keep: int, grace: float, every: float | Every | None,
        world: World | None,
    ) -> None:  # fmt: skip
        if not keep >= 2:
            raise ValueError("keep must be at least 2: the newest checkpoint may turn out to be damaged")
        if not 0 < grace <= _LONGEST_GRACE:
            raise ValueError(f"grace must be more than 0 and at most {_LONGEST_GRACE:.0f} seconds")
        self.directory = Path(directory).resolve()
        self.resumed_from: int | None = None  # completed steps in the checkpoint restored, None for a fresh start
        self.outcome: str | None = None  # "stopped", "finished" or "failed", once known
        self.world = world or detect(os.environ)
        self.grace = grace  # seconds; once entered, what is really granted
        self._asked_grace = grace
        self._keep = keep
        self._every = every if isinstance(every, Every) else Every(seconds=every)
        self._completed = 0
        self._reported = -1
        self._pid = os.getpid()
        self._warnings: list[str] = []
        self._record: Record | None = None
        self._counter: StepCounter | None = None
        self._sections = Sections(self._note)
        self._saver: Saver | None = None

    # ---- what both offer -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        # Variables that mean nothing are told by every rank, before any waits for another.
        effective(self._asked_grace, os.environ, lambda: None)
        failure_rate(self._every, os.environ)
        own = self.directory / ".everstep"
        own.mkdir(parents=True, exist_ok=True)
        shield_data_loaders()
        if self.world.rank == 0:
            path = record_file(os.environ, self.directory, self.world.attempt)
            self._record = Record(path)
            self.world = dataclasses.replace(self.world, attempt=int(path.stem.rsplit("-", 1)[1]))
        self._team = Team(self.world, own, self.grace, self._note)
        self._team.on_stuck = self._end_stuck
        self._team.on_tick = self._sections.watch
        self._saver = Saver(self._team, self._note, self._retain)
        try:
            self._team.start(_JOIN)  # from here on a stop signal is heard
            self._resume(self._grant())
        except BaseException as error:
            self._close("failed", f"{type(error).__name__}: {error}")
            raise
        return self

    @property
    def saved_step(self) -> int | None:
        """The newest checkpoint published or resumed from, in completed steps."""
        new = self._saver.saved_step if self._saver is not None else None
        return new if new is not None else self.resumed_from

    @property
    def attempt(self) -> int | None:
        """Which attempt this is, from 0; known on rank 0, and on all ranks under Slurm."""
        return self.world.attempt

    @property
    def rank0_address(self) -> str:
        """Host name or address at which this rank reaches rank 0: for the training's own connections."""
        return self._team.rank0_address

    @property
    def stop_requested(self) -> bool:
        """True once this rank knows that the run is to stop. Each learns it at its own moment: do not leave by it."""
        return self._team.stop_requested

    def own_signals(self) -> None:
        """Take the stop signals back from a framework that set handlers of its own after this was entered."""
        self._team.signals.take_back()

    def section(self, name: str, limit: float | None = None) -> AbstractContextManager[None]:
        """A phase that is not training steps, such as an evaluation: `with run.section("eval", limit=600): ...`.

        Its begin and end go to the record, and a line more once it takes longer than `limit` seconds, so that a
        platform tells a long phase from a hang. One rank alone may use it; `wrap` is what polls inside. Raises
        ValueError for a limit that is none.
        """
        self._only_here()
        return self._sections.section(name, limit, self._completed)

    # ---- beginning -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _restore(self, found: Checkpoint) -> None:
        """Load a checkpoint that rank 0 has verified. Raises StateMismatchError."""

    def _open_vault(self, launch: str) -> Vault:
        return Vault(self.directory, launch)

    def _grant(self) -> Grace:
        """Rank 0 asks what is really granted; the others hear of it with the checkpoint to resume from."""
        if self.world.rank > 0:
            return Grace(self._asked_grace, {})
        granted = effective(self._asked_grace, os.environ)
        self.grace = granted.seconds
        self._team.plan_with(self.grace)
        self._warnings = [text for text in (granted.warning, deaf(os.environ, ancestors())) if text]
        for text in self._warnings:
            log.warning("%s", text)
        return granted

    def _resume(self, granted: Grace) -> None:
        """Rank 0 chooses and verifies, everybody loads that one."""
        began = time.monotonic()
        if self._team.leader is not None:
            found = self._choose()
        else:
            choice = self._team.wait_resume(_RESUME)
            if choice["error"] is not None:
                raise RendezvousError(f"rank 0 could not begin: {choice['error']}")
            self.grace = float(choice["grace"])
            self._team.plan_with(self.grace)
            self._vault = self._open_vault(str(choice["launch"]))
            found = _await_manifest(self._vault, str(choice["name"])) if choice["name"] else None
        if found is not None:
            self._restore(found)
            self.resumed_from = self._completed = found.step
        self._begin_record(found, round(time.monotonic() - began, 3), granted)
        self._begin_interval()

    def _choose(self) -> Checkpoint | None:
        launch = f"{self.world.token}-{os.urandom(4).hex()}"  # unique: two attempts alive must never share a temp name
        self._vault = self._open_vault(launch)
        message: Message = {"launch": launch, "name": None, "step": 0, "error": None, "grace": self.grace}
        try:
            self._vault.open()
            found = self._vault.newest_valid()
            self._vault.sweep()
            if found is not None and not found.foreign and found.world_size != self.world.size:
                raise StateMismatchError(
                    f"{found.path} was saved by {found.world_size} ranks and this run has {self.world.size}:"
                    " start as many ranks, or use a new directory"
                )
        except BaseException as error:
            self._team.announce_resume(message | {"error": f"{type(error).__name__}: {error}"})
            raise
        if found is not None:
            message |= {"name": found.path.name, "step": found.step}
        self._team.announce_resume(message)
        return found

    def _begin_interval(self) -> None:
        """Periodic saves by time are rank 0's affair; those by steps need no word between the ranks."""
        saver = self._saver
        if self._team.leader is None or saver is None or self._every.steps is not None:
            return
        if not self._every.automatic:
            self._team.save_period = self._every.seconds
            return
        mtbf, source = failure_rate(self._every, os.environ)
        interval = Interval(mtbf)

        def follow() -> None:
            if saver.write_seconds is not None and interval.measured(saver.stall, saver.write_seconds):
                self._team.save_period = interval.seconds
                stall, write = round(interval.stall, 6), round(interval.write, 3)
                self._note("interval", seconds=round(interval.seconds, 1), stall_s=stall, write_s=write, mtbf_s=mtbf,
                           mtbf_from=source)  # fmt: skip

        saver.on_periodic = follow
        self._team.save_period = interval.seconds

    # ---- the record ------------------------------------------------------------------------------------------------

    def _begin_record(self, found: Checkpoint | None, load_seconds: float, granted: Grace) -> None:
        if self._record is None:
            return
        try:
            self._counter = StepCounter(self.directory / ".everstep" / "highest-step", self._completed)
        except OSError as error:
            log.warning("no exact step counter: %s", error)
        self._note(
            "start",
            attempt=self.world.attempt,
            resumed_from=self._completed,
            checkpoint=found.path.name if found is not None else None,
            previous_highest_step=self._counter.previous if self._counter is not None else None,
            load_seconds=load_seconds,
            run=str(self.directory),
            world_size=self.world.size,
            grace={"asked": granted.asked, "granted": granted.seconds, **granted.limits},
            warnings=self._warnings,
        )

    def _progress(self, step: int, loss: float | None) -> None:
        if step <= self._reported:
            return
        self._reported = step
        if self._record is not None:
            if self._counter is not None:
                self._counter.set(step)
            self._record.progress(step, loss)

    def _note(self, event: str, **fields: Any) -> None:
        if self._record is not None:
            self._record.event(event, **fields)

    # ---- ending ----------------------------------------------------------------------------------------------------

    def _exit(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """What the subclass has to save is saved; a save in flight may still end."""
        assert self._saver is not None
        self._saver.close(max(0.0, min(self._team.time_left(), self.grace)))
        why = f"{kind.__name__}: {error}" if kind is not None else ""
        self._close(self.outcome or "failed", why)

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def _end_stuck(self, why: str) -> None:
        """The process is about to be ended by the background thread."""
        self._note("end", outcome="failed", saved_step=self.saved_step, step=self._completed, why=why)
        log.warning("ending this process: %s", why)
        leave_outcome(os.environ, "failed", self.saved_step, why)
        if self._record is not None:
            self._record.close(patience=2.0)

    def _close(self, outcome: str, why: str) -> None:
        abandoned = self._team.member.abandoned
        why = why or abandoned or ""
        self._note("end", outcome=outcome, saved_step=self.saved_step, step=self._completed, why=why)
        together = outcome != "failed" and self.saved_step == self._completed
        got = self._team.signal
        chained = self._team.signals.previous_handler(got)

        def last() -> None:
            if self._counter is not None:
                self._counter.close()
            leave_outcome(os.environ, outcome, self.saved_step, why)
            if self._record is not None:
                self._record.close()

        self._team.close(ok=outcome != "failed", why=why, together=together, last=last)
        if chained is not None and got is not None:
            chained(signal.Signals[got], None)

    def _retain(self) -> None:
        if self._team.leader is not None:
            try:
                self._vault.retain(self._keep)
            except OSError as error:
                log.warning("could not remove old checkpoints: %s", error)

    def _only_here(self) -> None:
        if os.getpid() != self._pid:
            raise CheckpointError("this Run belongs to the parent process: a forked child can neither step nor report")


def _await_manifest(vault: Vault, name: str) -> Checkpoint:
    """The manifest of a checkpoint that rank 0 has verified, as soon as this node sees it."""
    deadline = time.monotonic() + _VISIBLE
    while True:
        try:
            return vault.manifest(name)
        except CheckpointError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)
