"""Local disks and memory: NVMe controllers, arrays of disks, and the memory controllers' error counts, by sysfs.

The wear of a disk (SMART) is not in sysfs; it takes a command to the disk, and is left to tools for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.adapters.node.files import names, read_number, read_word, since_boot
from everstep.core.health import Evidence

PERIOD = 30.0
NOT_LIVE_FOR = 60.0  # seconds: a reset of a controller takes a few, and a volume that is taken away passes through too


class Disks:
    """Looks at disks that are part of this machine.

    Args:
        root: where the host's ``/sys`` is found.
        at_once: a controller that is not in service counts at the first look.
    """

    def __init__(
        self, root: Path = Path("/"), clock: Callable[[], float] = since_boot, *, at_once: bool = False
    ) -> None:
        self._patience = 0.0 if at_once else NOT_LIVE_FOR
        self._nvme = root / "sys/class/nvme"
        self._block = root / "sys/block"
        self._memory = root / "sys/devices/system/edac/mc"
        self._clock = clock
        self._not_live: dict[str, float] = {}

    def look(self) -> Sequence[Evidence]:
        """One reading. OSError when sysfs cannot be read."""
        return [*self._controllers(), *self._arrays(), *self._memory_controllers()]

    def _controllers(self) -> Sequence[Evidence]:
        now = self._clock()
        states = {}
        for name in names(self._nvme):
            if read_word(self._nvme / name / "transport") not in (None, "pcie"):
                continue  # a disk behind a network is connected again and again; its mount says whether that matters
            state = read_word(self._nvme / name / "state")  # since Linux 4.5
            if state not in (None, "live"):
                states[name] = state
        self._not_live = {name: self._not_live.get(name, now) for name in states}
        return [
            Evidence("host", "disk_not_live", subject=name, line=f"NVMe controller {name} is {state}, not live")
            for name, state in states.items()
            if now - self._not_live[name] >= self._patience
        ]

    def _arrays(self) -> Sequence[Evidence]:
        found = []
        for name in names(self._block):
            if name.startswith("md") and (missing := read_number(self._block / name / "md/degraded")):
                text = f"array {name} lacks {missing} of its disks"
                found.append(Evidence("host", "array_degraded", subject=name, line=text))
        return found

    def _memory_controllers(self) -> Sequence[Evidence]:
        found = []
        for name in names(self._memory):
            if name.startswith("mc"):
                counts = [read_number(self._memory / name / file) or 0 for file in ("ue_count", "ue_noinfo_count")]
                if sum(counts):
                    text = f"memory controller {name} counts {sum(counts)} uncorrectable errors since boot"
                    found.append(Evidence("host", "memory_uncorrected", subject=name, line=text))
        return found
