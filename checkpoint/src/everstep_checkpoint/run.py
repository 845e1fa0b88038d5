"""`Run`: the one object a training program needs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from .agreement import Message
from .attempt import Attempt
from .errors import StateMismatchError
from .interval import Every
from .manifest import Checkpoint, shard_name
from .saver import Job
from .shield import shield_data_loaders
from .snapshot import HostMemory, Snapshot, borrow
from .state import State
from .store import StoreVault
from .vault import Vault
from .world import World

__all__ = ["Every", "Run"]

log = logging.getLogger("everstep_checkpoint")

T = TypeVar("T")


class Run(Attempt):
    """One attempt of a training run, the same calls on every rank.

    directory   shared by all ranks; holds the checkpoints
    state       name -> object with state_dict/load_state_dict, (get, set) pair, arrays(...), or a random generator;
                the process-wide generators of Python, numpy and torch are saved without being named
    keep        checkpoints kept, at least 2
    grace       seconds between the stop signal and the kill, as asked of the scheduler; less when it grants less
    every       seconds, Every(seconds=...), Every(steps=...); or None: the interval follows from what a save costs
    world       the ranks, when the launcher's variables do not tell
    store       an fsspec URL (s3://..., gcs://...) where the checkpoints go instead; the directory keeps the rest

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
        every: float | Every | None = None,
        world: World | None = None,
        store: str | None = None,
    ) -> None:
        self._store = store
        super().__init__(directory, keep, grace, every, world)
        self._state = State(state)
        self._memory = HostMemory()
        self._tried = -1  # step of the last save begun, whatever became of it
        self._wanted: tuple[str | None, bool] | None = None  # (name, pinned) of a save asked for by the program

    # ---- for the training loop -------------------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of every step that is left, from where the checkpoint ended up to `total` - 1.

        Saves between two steps when it is time to, and ends early, at the same step on all ranks, when told to stop.
        """
        self._only_here()
        shield_data_loaders()  # once more: torch may have been imported meanwhile
        self._state.restore_random()
        begun, self.outcome = self._completed, None
        while True:
            self._save_wanted()
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
            self._only_here()  # a forked child that falls through its step would walk on beside its parent
            self._completed += 1
            self._progress(self._completed, None)

    def report(self, loss: float | None = None) -> None:
        """Say that the present step is done, at the end of the loop's body. Costs microseconds; call it every step."""
        self._only_here()
        self._progress(self._completed + 1, None if loss is None else float(loss))

    def wrap(self, loader: Iterable[T]) -> Iterator[T]:
        """Iterate over a loop inside a step, such as an evaluation, and leave it early when told to stop.

        All ranks leave at the same item. They must iterate equally often, as they must for any collective in the loop.
        """
        self._only_here()
        for item in loader:
            if self._team.poll():
                return
            yield item

    def save(self, name: str | None = None, *, pin: bool = False) -> None:
        """Save once the present step is done: `name` goes into the manifest, a pinned checkpoint is never deleted.

        All ranks call it in the same step. After the loop it saves at once. Raises ValueError for an unusable name.
        """
        self._only_here()
        if name is not None and not (0 < len(name) <= 200 and name.isprintable()):
            raise ValueError("save: give a name of 1 to 200 printable characters")
        self._wanted = (name, pin)
        if self.outcome is not None:
            self._save_wanted()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child that left through the parent's `with`
        if kind is not None and not (self.outcome is not None and _leaves_well(error)):
            self.outcome = "failed"
        elif self.outcome is None:
            # The loop was left by `break`. The present step counts as done only if it was reported.
            self.outcome = "finished"
            self._completed = max(self._completed, self._reported)
            if self._completed == self._reported:
                self._save("finished")
        try:
            self._exit(kind, error)
        finally:
            self._memory.release()  # it is as large as the state

    # ---- saving ----------------------------------------------------------------------------------------------------

    def _save_wanted(self) -> None:
        if self._wanted is None:
            return
        (name, pin), self._wanted = self._wanted, None
        step = self._completed
        if pin and self._team.leader is not None:
            try:
                self._vault.pin(step, name)
            except OSError as error:
                self._note("save", phase="unpinned", step=step, why=f"{type(error).__name__}: {error}")
                log.warning("the checkpoint of step %d is not pinned, and will be deleted in its turn: %s", step, error)
        self._save("asked for", name)

    def _save(self, why: str, name: str | None = None) -> None:
        """Copy the state at the present boundary and have it written; wait for that unless the save is periodic."""
        assert self._saver is not None
        step = self._completed
        in_background = self._every.background and why in ("periodic", "asked for")
        if step in (self._tried, self.saved_step):
            if not in_background:
                self._saver.wait()
            return
        if why == "stop" and self._saver.in_flight is not None:
            self._saver.make_room(self._saver.in_flight.bytes)
        began = time.monotonic()
        self._saver.wait()
        self._tried = step
        self._note("save", phase="begin", step=step, why=why)
        self._team.begin_save(step)
        snapshot, problem, bug = Snapshot(b""), None, None
        try:
            captured = self._state.capture()
            # Who waits for the write needs no copy: fresh memory for one costs more time than the write of a stop has.
            snapshot = self._memory.take(captured) if in_background else borrow(captured)
        except Exception as failure:
            problem, bug = f"{type(failure).__name__}: {failure}", failure
        self._saver.submit(self._job(step, why, name, snapshot, (began, problem)))
        if bug is not None or not in_background:
            self._saver.wait()
        if bug is not None and not isinstance(bug, OSError | MemoryError):
            raise bug

    def _job(self, step: int, why: str, name: str | None, snapshot: Snapshot, how: tuple[float, str | None]) -> Job:
        vault, team, rank = self._vault, self._team, self.world.rank
        about = {"attempt": self.world.attempt, "why": why} | ({"name": name} if name is not None else {})

        def write() -> Message:
            return vault.write_rank(step, rank, snapshot, lambda: team.unwanted(step))

        def publish(reports: dict[int, Message]) -> int:
            manifests = {rank: str(report["manifest"]) for rank, report in reports.items()}
            return vault.publish(step, manifests, about).bytes

        def discard() -> None:
            vault.discard(step)

        began, problem = how
        return Job(step, why, snapshot.bytes, write, publish, discard, began, time.monotonic() - began, problem)

    # ---- resuming --------------------------------------------------------------------------------------------------

    def _restore(self, found: Checkpoint) -> None:
        """Load this rank's part, and learn from it how fast the last attempt wrote."""
        assert self._saver is not None
        if found.foreign:
            raise StateMismatchError(f"{found.path} was saved by attach: go on with that, or use a new directory")
        captured, seconds = self._vault.read_rank(found, self.world.rank)
        self._state.restore(captured)
        size = found.files[shard_name(self.world.rank)][0]
        self._memory.prepare(size + size // 64 + (1 << 20))  # the next state is as large as this one was
        if seconds:
            self._saver.rate = size / seconds

    def _open_vault(self, launch: str) -> Vault:
        if self._store is None:
            return super()._open_vault(launch)
        return StoreVault(self.directory, launch, self._store)


def _leaves_well(error: BaseException | None) -> bool:
    """`sys.exit()` after the loop's end is no failure."""
    return isinstance(error, SystemExit) and error.code in (None, 0)
