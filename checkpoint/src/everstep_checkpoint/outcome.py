"""How a wrapper around the launcher learns how the training ended: no exit code survives torchrun."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .durable import replace_file

log = logging.getLogger("everstep_checkpoint")

VARIABLE = "EVERSTEP_OUTCOME_FILE"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`outcome` is "stopped", "finished" or "failed"; `saved_step` the newest checkpoint in completed steps."""

    outcome: str
    saved_step: int | None
    why: str = ""


def leave_outcome(env: Mapping[str, str], outcome: str, saved_step: int | None, why: str) -> None:
    """Write it where this node's wrapper asked for it: only the first rank of a node does, and only with a wrapper."""
    if not env.get(VARIABLE) or env.get("LOCAL_RANK", "0") != "0":
        return
    try:
        data = json.dumps({"outcome": outcome, "saved_step": saved_step, "why": why}).encode()
        replace_file(Path(env[VARIABLE]), data)
    except OSError as error:
        log.warning("cannot tell the wrapper how the training ended: %s", error)


def read_outcome(path: Path) -> Outcome | None:
    """What the training left, or None when it left nothing."""
    try:
        raw = json.loads(path.read_bytes())
        step = raw["saved_step"]
        return Outcome(str(raw["outcome"]), int(step) if step is not None else None, str(raw["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
