"""What the callbacks of the training frameworks share: an attached run that is entered once and left once."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from .attach import Attached, attach
from .errors import CheckpointError
from .interval import Every


class AttachedCallback:
    """Holds the attached run of a framework's callback. Arguments as those of `attach`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 3,
        grace: float = 120.0,
        every: float | Every | None = None,
    ) -> None:
        self.run: Attached = attach(directory, keep=keep, grace=grace, every=every)
        self._entered = self._left = False

    def resume_path(self) -> str | None:
        """What to resume from, verified, equal on all ranks; None for a fresh start. All ranks call it, or none.

        Raises what entering a `Run` raises.
        """
        self.enter()
        return str(self.run.latest) if self.run.latest is not None else None

    def enter(self) -> None:
        if not self._entered:
            self._entered = True
            self.run.__enter__()
            atexit.register(self.leave, "failed", "the training ended without its callbacks")

    def leave(self, outcome: str | None, why: str = "") -> None:
        """End the attempt, once. `outcome` is "failed" or None: stopped or finished, as the run knows."""
        if not self._entered or self._left:
            return
        self._left = True
        atexit.unregister(self.leave)
        if outcome == "failed":
            self.run.__exit__(CheckpointError, CheckpointError(why), None)
        else:
            self.run.__exit__(None, None, None)

    def check_ranks(self, rank: int, size: int) -> None:
        """The framework and the launcher's variables must mean the same ranks. Raises CheckpointError."""
        world = self.run.world
        if (world.rank, world.size) != (rank, size):
            raise CheckpointError(
                f"the framework says rank {rank} of {size}, the launcher rank {world.rank} of {world.size}:"
                " start all ranks with torchrun or srun"
            )


def link_tree(source: Path, target: Path) -> None:
    """Make `target` hold the files of `source` without copying them where the file system can. Raises OSError."""
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir(exist_ok=True)
            continue
        try:
            os.link(path, there)
        except OSError:
            there.write_bytes(path.read_bytes())
