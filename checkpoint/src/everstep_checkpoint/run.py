"""`Run`: the one object a training program needs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .agreement import Message
from .durable import fsync_directory, write_file
from .errors import CheckpointError, RendezvousError, StateMismatchError
from .record import Record, StepCounter, record_file
from .shard import read_shard, write_shard
from .state import State
from .team import Team
from .vault import Checkpoint, Vault, rank_manifest_name, read_manifest, shard_name
from .world import World, detect

log = logging.getLogger("everstep_checkpoint")

_JOIN = 300.0  # seconds for all ranks to come up: images are pulled and libraries imported meanwhile
_RESUME = 3600.0  # seconds for rank 0 to verify a checkpoint: 1.5 GB/s per core
_VISIBLE = 30.0  # seconds for a file that rank 0 saw to appear here: network file systems cache names


@dataclass(frozen=True, slots=True)
class Every:
    """When to save between stops: after so many `seconds`, or so many `steps`. Exactly one of the two."""

    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise ValueError("every: give seconds or steps, one of them")
        if (self.seconds or self.steps or 0) <= 0:
            raise ValueError("every: must be more than nothing")


class Run:
    """One attempt of a training run, the same calls on every rank.

    directory   shared by all ranks; holds the checkpoints
    state       name -> object with state_dict/load_state_dict, (get, set) pair, arrays(...), or a random generator;
                the process-wide generators of Python, numpy and torch are saved without being named
    keep        checkpoints kept, at least 2
    grace       seconds between the stop signal and the kill, as the scheduler gives them
    every       Every(seconds=...) or Every(steps=...) or plain seconds
    world       the ranks, when the launcher's variables do not tell

    Entering restores the newest sound checkpoint. Raises StateMismatchError when it does not fit this program or number
    of ranks, RendezvousError when the ranks do not find each other, OSError when the directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        state: Mapping[str, Any],
        keep: int = 3,
        grace: float = 120.0,
        every: float | Every = 300.0,
        world: World | None = None,
    ) -> None:
        if keep < 2:
            raise ValueError("keep must be at least 2: the newest checkpoint may turn out to be damaged")
        if grace <= 0:
            raise ValueError("grace must be more than 0 seconds")
        self.directory = Path(directory).resolve()
        self.resumed_from: int | None = None  # completed steps in the checkpoint restored, None for a fresh start
        self.saved_step: int | None = None  # the newest checkpoint published or resumed from
        self.outcome: str | None = None  # "stopped", "finished" or "failed", once known
        self._keep = keep
        self._every = every if isinstance(every, Every) else Every(seconds=every)
        self._state = State(state)
        self.world = world or detect(os.environ)
        self.grace = grace
        self._completed = 0
        self._reported = -1
        self._tried = -1  # step of the last save begun, whatever became of it
        self._pid = os.getpid()
        self._record: Record | None = None
        self._counter: StepCounter | None = None

    # ---- for the training loop -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        own = self.directory / ".everstep"
        own.mkdir(parents=True, exist_ok=True)
        if self.world.rank == 0:
            path = record_file(os.environ, self.directory, self.world.attempt)
            self._record = Record(path)
            self.world = dataclasses.replace(self.world, attempt=int(path.stem.rsplit("-", 1)[1]))
        self._team = Team(self.world, own, self.grace, self._note)
        self._team.on_stuck = self._end_stuck
        try:
            self._team.start(_JOIN)
            self._resume()
        except BaseException as error:
            self._close("failed", f"{type(error).__name__}: {error}")
            raise
        return self

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

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of every step that is left, from where the checkpoint ended up to `total` - 1.

        Saves between two steps when it is time to, and ends early, at the same step on all ranks, when told to stop.
        """
        self._only_here()
        self._state.restore_random()
        begun = self._completed
        if self._every.seconds is not None:
            self._team.save_period = self._every.seconds
        while True:
            if self._every.steps is not None and self._completed % self._every.steps == 0 and self._completed > begun:
                self._save("periodic")
            verdict = self._team.boundary(self._completed)
            if verdict == "save":
                self._save("periodic")
                continue
            if self._completed >= total:
                self._save("finished")
                self.outcome = "finished"
                return
            if verdict != "go":
                if verdict == "stop":
                    self._save("stop")
                self.outcome = "stopped"
                return
            yield self._completed
            self._completed += 1
            self._progress(self._completed, None)

    def report(self, loss: float | None = None) -> None:
        """Say that the present step is done, at the end of the loop's body. Costs microseconds; call it every step."""
        self._only_here()
        self._progress(self._completed + 1, None if loss is None else float(loss))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child that left through the parent's `with`
        why = f"{kind.__name__}: {error}" if kind is not None else ""
        if kind is not None:
            self.outcome = "failed"
        elif self.outcome is None:
            # The loop was left by `break`. The present step counts as done only if it was reported.
            self.outcome = "finished"
            self._completed = max(self._completed, self._reported)
            if self._completed == self._reported:
                self._save("finished")
        self._close(self.outcome or "failed", why)

    # ---- saving ----------------------------------------------------------------------------------------------------

    def _save(self, reason: str) -> None:
        """Save at the present boundary, together with all ranks. A failure is reported and does not end training."""
        step = self._completed
        if step in (self._tried, self.saved_step):
            return
        self._tried = step
        started, size, team = time.monotonic(), 0, self._team
        self._note("save", phase="begin", step=step, why=reason)
        bug: Exception | None = None
        error = team.arrive(step)
        if error is None:
            try:
                message = self._write(step)
            except Exception as failure:
                message = {"t": "unwritten", "error": f"{type(failure).__name__}: {failure}"}
                bug = None if isinstance(failure, OSError) else failure
            team.report(step, message)
            if team.leader is not None:
                size, error = self._publish(step)
                team.settle(step, error)
            error = team.wait_settled(step)
        team.saved()
        seconds = round(time.monotonic() - started, 3)
        if error is None:
            self.saved_step = step
            self._note("save", phase="committed", step=step, bytes=size, seconds=seconds, why=reason)
            self._retain()
        else:
            self._note("save", phase="failed", step=step, bytes=0, seconds=seconds, why=error)
            if team.leader is not None:
                self._vault.discard(step)
                log.warning("no checkpoint of step %d: %s", step, error)
        if bug is not None:
            raise bug

    def _write(self, step: int) -> Message:
        """This rank's shard and its manifest, on the disk when this returns. Raises OSError, and what pickling does."""
        rank, staged = self.world.rank, self._vault.staging(step)
        staged.mkdir(exist_ok=True)
        size, sha256 = write_shard(staged / shard_name(rank), self._state.capture())
        manifest = json.dumps({"step": step, "rank": rank, "size": size, "sha256": sha256}).encode()
        write_file(staged / rank_manifest_name(rank), manifest)
        fsync_directory(staged)
        return {"t": "written", "manifest": hashlib.sha256(manifest).hexdigest(), "bytes": size}

    def _publish(self, step: int) -> tuple[int, str | None]:
        """Rank 0: wait for everybody's report and publish; returns (bytes, why not)."""
        reports = self._team.collect(step)
        for rank in range(self.world.size):
            report = reports.get(rank)
            if report is None:
                return 0, f"rank {rank} did not finish writing in time, or is gone"
            if report["t"] == "unwritten":
                return 0, f"rank {rank}: {report['error']}"
        manifests = {rank: str(report["manifest"]) for rank, report in reports.items()}
        try:
            published = self._vault.publish(step, manifests, {"attempt": self.world.attempt})
        except (OSError, ValueError, KeyError, CheckpointError) as error:
            return 0, f"{type(error).__name__}: {error}"
        return published.bytes, None

    def _retain(self) -> None:
        if self._team.leader is not None:
            try:
                self._vault.retain(self._keep)
            except OSError as error:
                log.warning("could not remove old checkpoints: %s", error)

    # ---- resuming --------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Rank 0 chooses and verifies, everybody loads that one."""
        began = time.monotonic()
        if self._team.leader is not None:
            found = self._choose()
        else:
            choice = self._team.wait_resume(_RESUME)
            if choice["error"] is not None:
                raise RendezvousError(f"rank 0 could not begin: {choice['error']}")
            self._vault = Vault(self.directory, choice["launch"])
            found = _await_manifest(self.directory / choice["name"]) if choice["name"] else None
        if found is not None:
            size, sha256 = found.files[shard_name(self.world.rank)]
            self._state.restore(read_shard(found.path / shard_name(self.world.rank), size, sha256))
            self.resumed_from = self.saved_step = self._completed = found.step
        self._begin_record(found, round(time.monotonic() - began, 3))

    def _choose(self) -> Checkpoint | None:
        launch = f"{self.world.token}-{os.urandom(4).hex()}"  # unique: two attempts alive must never share a temp name
        self._vault = Vault(self.directory, launch)
        message: Message = {"launch": launch, "name": None, "step": 0, "error": None}
        try:
            self._vault.open()
            found = self._vault.newest_valid()
            self._vault.sweep()
            if found is not None and found.world_size != self.world.size:
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

    # ---- the record ------------------------------------------------------------------------------------------------

    def _begin_record(self, found: Checkpoint | None, load_seconds: float) -> None:
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

    def _end_stuck(self, why: str) -> None:
        """The process is about to be ended by the background thread."""
        self._note("end", outcome="failed", saved_step=self.saved_step, step=self._completed, why=why)
        log.warning("ending this process: %s", why)
        if self._record is not None:
            self._record.close(patience=2.0)

    def _close(self, outcome: str, why: str) -> None:
        abandoned = self._team.member.abandoned
        self._note("end", outcome=outcome, saved_step=self.saved_step, step=self._completed, why=why or abandoned)
        together = outcome != "failed" and self.saved_step == self._completed
        self._team.close(ok=outcome != "failed", why=why, together=together)
        if self._counter is not None:
            self._counter.close()
        if self._record is not None:
            self._record.close()

    def _only_here(self) -> None:
        if os.getpid() != self._pid:
            raise CheckpointError("this Run belongs to the parent process: a forked child can neither step nor report")


def _await_manifest(path: Path) -> Checkpoint:
    """The manifest of a checkpoint that rank 0 has verified, as soon as this node sees it."""
    deadline = time.monotonic() + _VISIBLE
    while True:
        try:
            return read_manifest(path)
        except CheckpointError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)
