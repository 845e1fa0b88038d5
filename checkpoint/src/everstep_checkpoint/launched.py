"""Whether a stop signal will reach this program at all: Slurm tells what srun started, and not what that started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish", "tcsh", "csh"})
_FARTHEST = 32  # generations looked at; a launcher of a launcher is three or four


def deaf(env: Mapping[str, str], ancestors: Sequence[str]) -> str | None:
    """What to tell the user when Slurm's signals may not come here; None when they do, or nobody can know.

    `ancestors` are the names of parent, grandparent, ..., as far as they can be seen. Slurm's own process is looked for
    among them: in a container that does not show it nothing is known.
    """
    if not env.get("SLURM_JOB_ID"):
        return None
    names = list(ancestors)
    step = next((place for place, name in enumerate(names) if name.startswith("slurmstepd")), None)
    if step is None:
        return None
    if "SLURM_STEP_NUM_TASKS" not in env:
        return "Slurm sends stop signals to what srun has started, and this was started without: put srun before it"
    shell = next((name for name in names[:step] if name in _SHELLS), None)
    if shell is None:
        return None
    return (
        f"a shell ({shell}) stands between srun and this program, and takes the stop signals at sites with"
        " proctrack/cgroup: let it end in `exec python3 ...`, or do without it"
    )


def ancestors() -> list[str]:
    """Names of parent, grandparent, and so on, as the kernel shows them here."""
    found: list[str] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _FARTHEST:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            break
        found.append(text[text.index("(") + 1 : text.rindex(")")])
        pid = int(text[text.rindex(")") + 1 :].split()[1])
    return found
