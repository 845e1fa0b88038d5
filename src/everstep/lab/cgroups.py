"""The control groups of a lab: `everstep/<lab>/<node>` in every hierarchy of this machine (v1, hybrid or v2).

A node's processes never leave its groups, so a group's member list finds every process of the lab, whoever started
it and however its starter died. In the node the groups are the root of what it sees as `/sys/fs/cgroup` (see init.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from everstep.lab.errors import LabError

ROOT = Path("/sys/fs/cgroup")


def hierarchies(mounts: str | None = None) -> dict[Path, str]:
    """Mount point -> "cgroup" (v1) or "cgroup2" of each hierarchy; `mounts` is the text of /proc/self/mounts."""
    text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    found = {}
    for line in text.splitlines():
        _, point, kind = line.split()[:3]
        if kind in ("cgroup", "cgroup2") and (Path(point) == ROOT or ROOT in Path(point).parents):
            found[Path(point)] = kind
    if not found:
        raise LabError(f"no control groups are mounted under {ROOT}: the lab needs them (as any kubelet does)")
    return found


def create(relative: str) -> None:
    """Makes the group in every hierarchy, ready to take processes. Raises LabError if it may not."""
    try:
        for root, kind in hierarchies().items():
            path = root
            for part in Path(relative).parts:
                if kind == "cgroup2" and root == ROOT:
                    _delegate(path)
                path = path / part
                path.mkdir(exist_ok=True)
                if (path / "cpuset.mems").exists() and kind == "cgroup":
                    for name in ("cpuset.cpus", "cpuset.mems"):  # v1: empty until set, and empty takes no process
                        (path / name).write_text((path.parent / name).read_text())
    except OSError as error:
        raise LabError(f"cannot make control groups ({error}): the lab needs root and a writable {ROOT}") from error


def _delegate(group: Path) -> None:
    for controller in (group / "cgroup.controllers").read_text().split():
        # The root of v2 may hold kernel threads' real-time budget and refuse one controller: the rest is enough.
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def join(relative: str) -> None:
    """Moves this process, and so everything that it starts from now on, into a group that `create` made."""
    try:
        for root in hierarchies():
            (root / relative / "cgroup.procs").write_text("0")
    except OSError as error:
        raise LabError(f"cannot join the control group {relative}: {error}") from error


def members(relative: str) -> set[int]:
    """Every process in the group or below it, in any hierarchy."""
    found: set[int] = set()
    for root in hierarchies():
        # os.walk passes over a group that ends while we look; pathlib's rglob raises.
        for group, _, _ in os.walk(root / relative):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in Path(group, "cgroup.procs").read_text().split())
    return found - {0}


def kill_members(relative: str, seconds: float = 10) -> None:
    """SIGKILL until nobody is left. Raises LabError if somebody does not die."""
    deadline = time.monotonic() + seconds
    while pids := members(relative):
        if time.monotonic() > deadline:
            raise LabError(
                f"processes of {relative} do not die: {sorted(pids)[:10]}; see `ps -o pid,stat,wchan:30,args`"
            )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove(relative: str, seconds: float = 10) -> None:
    """Removes the empty group, all below it, and its parents as far as they are empty too."""
    deadline = time.monotonic() + seconds
    for root in hierarchies():
        top = root / relative
        while top.exists():
            for group, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(group)
            if not top.exists():
                break
            if time.monotonic() > deadline:
                raise LabError(f"cannot remove the control group {top}: is a process still in it?")
            time.sleep(0.02)  # a group stays busy for a moment after its last process was reaped
        for parent in top.parents:
            if parent == root:
                break
            with contextlib.suppress(OSError):  # another lab lives there
                parent.rmdir()
