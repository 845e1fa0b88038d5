"""What Slurm's record of a node says, against what the node is now."""

from __future__ import annotations

import re

# Reason of the drain that a worker's pod sets when it stops; the next pod on the node takes back only this one.
STOPPING = "everstep: pod is stopping"


def record_differs(record: str, conf: str) -> bool:
    """Whether `scontrol show node -o` says other GPUs, features, CPUs or memory than ``slurmd --conf`` will.

    Slurm believes its old record when a dynamic node comes back, so such a record has to go first. What ``conf`` does
    not name is not compared.
    """
    wanted = dict(word.split("=", 1) for word in conf.split())
    if _gpus(_field(record, "Gres")) != _gpus(wanted.get("Gres", "")):
        return True
    if set(_field(record, "AvailableFeatures").split(",")) != {wanted.get("Feature", "")}:
        return True
    return any(
        name in wanted and _field(record, shown) != wanted[name]
        for name, shown in (("CPUs", "CPUTot"), ("RealMemory", "RealMemory"))
    )


def registered_since(record: str, moment: float) -> bool:
    """Whether the slurmd that registered last was started at ``moment`` (Unix seconds) or later, and answers."""
    started = _field(record, "SlurmdStartTime")
    state = _field(record, "State")
    answers = "NOT_RESPONDING" not in state and "*" not in state and not state.startswith(("UNKNOWN", "DOWN"))
    return started.isdigit() and int(started) >= int(moment) and answers


def _field(record: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S*)", record)
    return match[1] if match else ""


def _gpus(gres: str) -> int:
    return sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[A-Za-z][\w.-]*)?:(\d+)", gres))
