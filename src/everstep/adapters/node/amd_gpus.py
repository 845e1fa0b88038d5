"""Error counts of AMD GPUs, by sysfs of the amdgpu driver.

Read of each GPU: ``ras/*_err_count`` and, only where there is no count for its links among them, ``xgmi_error``. Many
versions of the driver print a count that is not zero to the kernel log at every read of it, where it looks like another
error. So a block that has counted uncorrectable errors is not read again: of new ones the log tells anyway. One with
corrected errors is read every ten minutes. ``xgmi_error`` is cleared by being read, so what it said stays said.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.adapters.node.files import names, read_number, read_word, since_boot
from everstep.core.errors import Unreachable
from everstep.core.gpu_inventory import normal_pci
from everstep.core.health import Evidence
from everstep.core.node_state.device_counts import believable, parse_error_counts
from everstep.ports import PartlyUnreachable

PERIOD = 60.0
_AGAIN_AFTER = 600.0
_SUFFIX = "_err_count"
_AMD = "0x1002"
_LINKS = "xgmi_wafl"


@dataclass(slots=True)
class _Block:
    """What was read of one block of one GPU.

    Attributes:
        uncorrectable, corrected: errors since the driver was loaded, as of the last read.
        at: when that was.
        rose: whether there were no uncorrectable ones at the first look.
    """

    uncorrectable: int
    corrected: int
    at: float
    rose: bool

    def is_due(self, now: float) -> bool:
        return not self.uncorrectable and (not self.corrected or now - self.at >= _AGAIN_AFTER)


class AmdGpus:
    """Looks at the counts of each AMD GPU.

    Args:
        root: where the host's ``/sys`` is found.
        known: PCI addresses on record with errors that came while an agent watched.
    """

    def __init__(
        self, root: Path = Path("/"), known: Iterable[str] = (), clock: Callable[[], float] = since_boot
    ) -> None:
        self._cards = root / "sys/class/drm"
        self._known = {normal_pci(address) for address in known}
        self._clock = clock
        self._blocks: dict[tuple[str, str], _Block] = {}
        self._link_errors: dict[str, int] = {}
        self._no_link_errors: set[str] = set()

    def cards(self) -> list[Path]:
        """The device folder of each AMD GPU that counts errors. OSError when sysfs cannot be read."""
        folders = [self._cards / name / "device" for name in names(self._cards) if name.startswith("card")]
        return [
            folder
            for folder in folders
            if "-" not in folder.parent.name and read_word(folder / "vendor") == _AMD and (folder / "ras").is_dir()
        ]

    def look(self) -> Sequence[Evidence]:
        """One reading. OSError when sysfs cannot be read; PartlyUnreachable when the links of a GPU cannot be asked."""
        found: list[Evidence] = []
        for folder in self.cards():
            address = folder.resolve().name
            blocks = [name.removesuffix(_SUFFIX) for name in names(folder / "ras") if name.endswith(_SUFFIX)]
            for block in blocks:
                found += self._counted(folder, address, block)
            if _LINKS not in blocks and (folder / "xgmi_error").exists():
                found += self._links(folder, address)
        if self._no_link_errors:
            silent = ", ".join(sorted(self._no_link_errors))
            raise PartlyUnreachable(f"the driver does not say how the links of {silent} are (xgmi_error)", found)
        return found

    def _counted(self, folder: Path, address: str, block: str) -> Sequence[Evidence]:
        now = self._clock()
        seen = self._blocks.get((address, block))
        if seen is None or seen.is_due(now):
            counts = parse_error_counts(read_word(folder / "ras" / f"{block}{_SUFFIX}") or "")
            if counts is None:
                raise Unreachable(f"ras/{block}{_SUFFIX} of {address} makes no sense")
            errors = counts["ue"]
            seen = _Block(errors, counts.get("ce", 0), now, rose=seen is not None and errors > 0)
            self._blocks[address, block] = seen
        if not seen.uncorrectable or not believable(seen.uncorrectable):
            return ()
        code = "ras_count_rose" if seen.rose or normal_pci(address) in self._known else "ras_count"
        since = "the agent began" if seen.rose else "the driver was loaded"
        text = f"{seen.uncorrectable} uncorrectable hardware errors in block {block} of {address} since {since}"
        return [Evidence("amd", code, pci=address, subject=block, line=text)]

    def _links(self, folder: Path, address: str) -> Sequence[Evidence]:
        """Links of a GPU whose driver counts their errors nowhere else. "Invalid argument" is no all-clear."""
        if address not in self._no_link_errors:
            try:
                self._link_errors[address] = max(
                    self._link_errors.get(address, 0), read_number(folder / "xgmi_error") or 0
                )
            except OSError as why:
                if why.errno != errno.EINVAL:
                    raise
                self._no_link_errors.add(address)  # the driver prints a line for every such read
        if not self._link_errors.get(address):
            return ()
        text = f"{self._link_errors[address]} errors on the links of {address} since the agent began"
        return [Evidence("amd", "xgmi_link", pci=address, line=text)]
