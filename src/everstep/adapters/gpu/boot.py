"""Which boot of the machine this is."""

from __future__ import annotations

from pathlib import Path

from everstep.core.errors import Unreachable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4): a UUID drawn at boot


class KernelBoot:
    """The running kernel's own boot id; a lab's machine keeps its own in a file of that form."""

    def __init__(self, path: Path = BOOT_ID) -> None:
        self._path = path

    def boot_id(self) -> str:
        """Unreachable when it cannot be read."""
        try:
            return self._path.read_text().strip()
        except OSError as why:
            raise Unreachable(f"cannot read {self._path}: {why.strerror}") from why
