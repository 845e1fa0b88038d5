"""How long a stop really leaves: the least of what was asked for and what each layer above the process grants."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TORCHRUN = 30.0  # seconds from its SIGTERM to its SIGKILL unless told otherwise (torch.distributed.elastic)
POD = 30.0  # seconds, terminationGracePeriodSeconds of a pod that does not set it
_PATIENCE = 3.0  # seconds for scontrol; a controller that is down is no reason to hold a training up


@dataclass(frozen=True, slots=True)
class Grace:
    """`seconds` is what may be planned with; `limits` says who grants what, `unknown` whom nobody could ask."""

    asked: float
    limits: Mapping[str, float]
    unknown: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return min([self.asked, *self.limits.values()])

    @property
    def warning(self) -> str | None:
        """What to tell the user, when less than asked for is granted."""
        short = {name: limit for name, limit in self.limits.items() if limit < self.asked}
        if not short:
            return None
        who = ", ".join(f"{name} gives {limit:g} s" for name, limit in sorted(short.items(), key=lambda item: item[1]))
        return f"a grace of {self.asked:g} s was asked for, but {who}; planning with {self.seconds:g} s. {_MEND}"


_MEND = (
    "To raise it: Slurm's KillWait; the pod's terminationGracePeriodSeconds, told in $EVERSTEP_POD_GRACE;"
    " $TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or start with `everstep-checkpoint exec --grace N -- torchrun ...`"
)


def effective(asked: float, env: Mapping[str, str], ask_slurm: Callable[[], str | None] | None = None) -> Grace:
    """Find the limits in the environment; `ask_slurm` returns what `scontrol show config` prints, or None.

    Raises ValueError when a variable is not a number of seconds.
    """
    limits: dict[str, float] = {}
    unknown: list[str] = []
    if "EVERSTEP_KILL_WAIT" in env:
        limits["Slurm"] = _seconds(env, "EVERSTEP_KILL_WAIT")
    elif env.get("SLURM_JOB_ID"):
        kill_wait = parse_kill_wait((ask_slurm or show_config)())
        if kill_wait is None:
            unknown.append("Slurm")
        else:
            limits["Slurm"] = kill_wait
    if "EVERSTEP_POD_GRACE" in env:
        limits["the pod"] = _seconds(env, "EVERSTEP_POD_GRACE")
    elif "KUBERNETES_SERVICE_HOST" in env and not env.get("SLURM_JOB_ID"):
        unknown.append(f"the pod ({POD:g} s unless terminationGracePeriodSeconds says more)")
    if "TORCHELASTIC_RUN_ID" in env:
        has = env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
        limits["torchrun"] = _seconds(env, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT") if has else TORCHRUN
    return Grace(asked, limits, tuple(unknown))


def parse_kill_wait(config: str | None) -> float | None:
    """KillWait in seconds out of `scontrol show config`; None when it is not there."""
    match = re.search(r"^KillWait\s*=\s*(\d+)\s*sec", config or "", re.MULTILINE)
    return float(match[1]) if match else None


def show_config() -> str | None:
    """`scontrol show config`, or None when there is no scontrol or no answer in time."""
    program = shutil.which("scontrol")
    if program is None:
        return None
    try:
        command = [program, "show", "config"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _seconds(env: Mapping[str, str], name: str) -> float:
    try:
        value = float(env[name])
    except ValueError:
        value = 0.0
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {env[name]!r}: give a number of seconds")
    return value
