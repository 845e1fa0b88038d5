"""Whether NVIDIA's fabric manager runs on a machine that has NVSwitches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.adapters.node.files import names, read_word, sees_the_host, since_boot
from everstep.core.errors import Unreachable
from everstep.core.health import Evidence

PERIOD = 30.0
AWAY_FOR = 60.0  # seconds: a restart of it takes some
BOOT_GRACE = 600.0  # seconds since boot: it waits for the driver, and trains the links
_COMMAND = "nv-fabricmanage"  # comm of nv-fabricmanager, which the kernel cuts at 15 characters


def has_switches(root: Path = Path("/")) -> bool:
    """Whether the driver of the NVSwitches has found any."""
    return bool(names(root / "proc/driver/nvidia-nvswitch/devices"))


class FabricManager:
    """Looks for the process.

    Args:
        root: where the host's ``/proc`` is found.
        at_once: it counts as away at the first look.
    """

    def __init__(
        self, root: Path = Path("/"), clock: Callable[[], float] = since_boot, *, at_once: bool = False
    ) -> None:
        self._root = root
        self._clock = clock
        self._at_once = at_once
        self._away_since: float | None = None

    def look(self) -> Sequence[Evidence]:
        """One reading. Unreachable when the host's processes cannot be seen."""
        if not has_switches(self._root):
            self._away_since = None
            return ()
        proc = self._root / "proc"
        processes = [name for name in names(proc) if name.isdigit()]
        if not sees_the_host(self._root) or "1" not in processes:  # hidepid hides all but one's own, the first one too
            raise Unreachable("the host's processes cannot be seen: run it as root, and in a container with hostPID")
        if any(_command(proc / name) == _COMMAND for name in processes):
            self._away_since = None
            return ()
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if not self._at_once and (now < BOOT_GRACE or now - self._away_since < AWAY_FOR):
            return ()
        text = f"NVSwitches are there and no nv-fabricmanager runs, seen for {now - self._away_since:.0f} s"
        return [Evidence("host", "fabric_manager_down", line=text)]


def _command(process: Path) -> str | None:
    try:
        return read_word(process / "comm")
    except OSError:  # ESRCH: it ended meanwhile
        return None
