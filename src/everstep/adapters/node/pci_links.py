"""PCI Express links of GPUs and network adapters, by sysfs: fewer lanes than device and slot have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everstep.adapters.node.files import names, read_number
from everstep.core.health import Evidence
from everstep.core.node_state.device_counts import full_width

PERIOD = 60.0
# PCI class codes (pci.ids): 3D and VGA controllers, processing accelerators, Ethernet, InfiniBand.
_GPU_CLASSES = frozenset((0x0300, 0x0302, 0x1200))
_NETWORK_CLASSES = frozenset((0x0200, 0x0207))
_NVIDIA, _AMD, _MELLANOX, _BROADCOM = 0x10DE, 0x1002, 0x15B3, 0x14E4
_WANTED = {_NVIDIA: _GPU_CLASSES, _AMD: _GPU_CLASSES, _MELLANOX: _NETWORK_CLASSES, _BROADCOM: _NETWORK_CLASSES}


class PciLinks:
    """Looks at the width of each link. Its speed says nothing: an idle GPU lowers it, and never the width."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._devices = root / "sys/bus/pci/devices"

    def look(self) -> Sequence[Evidence]:
        """One reading. OSError when sysfs cannot be read."""
        found = []
        for address in names(self._devices):
            device = self._devices / address
            if not self._is_wanted(device):
                continue
            current = read_number(device / "current_link_width")
            slot = device.resolve().parent  # the port above it, where there is one
            due = full_width(current, read_number(device / "max_link_width"), read_number(slot / "max_link_width"))
            if due is not None:
                text = f"{address} runs on {current} of {due} PCI Express lanes"
                found.append(Evidence("pcie", "link_degraded", pci=address, line=text))
        return found

    def _is_wanted(self, device: Path) -> bool:
        classes = _WANTED.get(read_number(device / "vendor") or 0)
        if classes is None or (device / "physfn").exists():
            return False
        return (read_number(device / "class") or 0) >> 8 in classes
