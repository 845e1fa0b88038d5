"""Which boot of the machine this is."""

from __future__ import annotations

from pathlib import Path

from everstep.core.errors import Unreachable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4): a UUID drawn at boot


class KernelBoot:
    """The running kernel's own boot id."""

    def boot_id(self) -> str:
        """Unreachable when /proc cannot be read."""
        try:
            return BOOT_ID.read_text().strip()
        except OSError as why:
            raise Unreachable(f"cannot read {BOOT_ID}: {why.strerror}") from why
