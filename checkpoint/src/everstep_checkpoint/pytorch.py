"""Sharded models (FSDP, DTensor): each rank writes its shards with torch.distributed.checkpoint into an attached run.

    sharded = Sharded(model, optimizer)
    with attach("/checkpoints/run1") as run:
        if run.latest:
            sharded.load(run.latest)                      # also with another number of ranks
        for step in range(run.latest_step(0) + 1, total + 1):
            train_one_step()
            run.report(step)
            if run.should_save(step):
                sharded.save(run.begin(step))
                run.commit(step)
            if run.should_stop(step):
                break

Models that every rank holds whole need nothing of this: give them to `Run(state={"model": model, ...})`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Sharded:
    """A model and its optimizer, saved and loaded by all ranks together; `extra` are plain tensors and numbers.

    The random generators of Python and torch are saved for every rank; loading with another number of ranks leaves
    those of the ranks that are new as they are.
    """

    def __init__(self, model: Any, optimizer: Any, extra: Any = None) -> None:
        self.model, self.optimizer, self.extra = model, optimizer, extra

    def save(self, folder: Path) -> None:
        """Collective. Blocks until this rank's files are written."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if self.extra is not None:
            state["extra"] = self.extra.state_dict()
        dcp.save(state, checkpoint_id=str(folder), no_dist=not _many())
        torch.save({"torch": torch.get_rng_state(), "python": random.getstate()}, folder / f"rng-{_rank()}.pt")

    def load(self, folder: Path) -> None:
        """Collective. The number of ranks may differ from the one that saved."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if self.extra is not None:
            state["extra"] = self.extra.state_dict()
        dcp.load(state, checkpoint_id=str(folder), no_dist=not _many())
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        if self.extra is not None:
            self.extra.load_state_dict(state["extra"])
        own = folder / f"rng-{_rank()}.pt"
        if own.exists():
            saved = torch.load(own, weights_only=False)
            torch.set_rng_state(saved["torch"])
            random.setstate(saved["python"])


def _many() -> bool:
    return bool(torch.distributed.is_initialized())


def _rank() -> int:
    return int(torch.distributed.get_rank()) if _many() else 0
