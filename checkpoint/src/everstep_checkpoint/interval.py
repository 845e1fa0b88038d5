"""How often to save: what a save costs now against what a failure costs later.

Young's first order: T = sqrt(2 C M), with C the seconds a save holds the training up and M the mean seconds between
failures that come without warning. A stop that is announced loses no steps, so it does not count in M. Daly's form adds
the restart R: T = C + sqrt(2 (M + R) C + C^2) (arXiv 2410.18124).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MTBF = 6 * 3600.0  # seconds; 16,384 GPUs of the Llama 3 run failed every 3 h, a job of few nodes does in weeks
RESTART = 60.0  # seconds from a failure to the first new step
FIRST = 60.0  # seconds to the first save, which measures what the others will cost
SHORTEST, LONGEST = 10.0, 1800.0
_REMEMBERED = 20  # saves; the 90th percentile of their stalls counts, so that one slow save does not flip the interval


@dataclass(frozen=True, slots=True)
class Every:
    """When to save between stops, and how.

    seconds     after so many seconds; or
    steps       after so many steps; or neither: the interval follows from the measured cost of a save
    mtbf        mean seconds between failures of this job that come without warning, for that computation;
                $EVERSTEP_MTBF when not given, else 6 hours
    background  write while the training goes on; False holds it until the checkpoint is there
    """

    seconds: float | None = None
    steps: int | None = None
    mtbf: float | None = None
    background: bool = True

    def __post_init__(self) -> None:
        if self.seconds is not None and self.steps is not None:
            raise ValueError("every: give seconds or steps, not both")
        if any(value is not None and not value > 0 for value in (self.seconds, self.steps, self.mtbf)):
            raise ValueError("every: must be more than nothing")

    @property
    def automatic(self) -> bool:
        return self.seconds is None and self.steps is None


def optimum(stall: float, write: float, mtbf: float, restart: float = RESTART) -> float:
    """Seconds between two saves, from the stall, the whole write, and the mean time between failures (all seconds).

    Never shorter than the write, since two saves do not overlap, nor than SHORTEST; never longer than LONGEST, unless
    the write is.
    """
    best = stall + math.sqrt(2 * (mtbf + restart) * stall + stall * stall)
    return max(write, min(LONGEST, max(SHORTEST, best)))


def failure_rate(every: Every, env: Mapping[str, str]) -> tuple[float, str]:
    """(mean seconds between failures, where the number is from). Raises ValueError for a variable that is no number."""
    if every.mtbf is not None:
        return every.mtbf, "argument"
    text = env.get("EVERSTEP_MTBF", "")
    if not text:
        return MTBF, "default"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"EVERSTEP_MTBF is {text!r}: give the mean seconds between failures of this job")
    return value, "environment"


class Interval:
    """Follows the measurements; `seconds` is what holds now."""

    def __init__(self, mtbf: float) -> None:
        self.mtbf = mtbf
        self.seconds = FIRST
        self.stall = self.write = 0.0
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)
        self._writes: deque[float] = deque(maxlen=_REMEMBERED)

    def measured(self, stall: float, write: float) -> bool:
        """Take in one save; True when the interval moved by more than a fifth."""
        self._stalls.append(stall)
        self._writes.append(write)
        self.stall, self.write = _p90(self._stalls), _p90(self._writes)
        new = optimum(self.stall, self.write, self.mtbf)
        if len(self._stalls) > 1 and abs(new - self.seconds) <= self.seconds / 5:
            return False
        self.seconds = new
        return True


def _p90(values: deque[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
