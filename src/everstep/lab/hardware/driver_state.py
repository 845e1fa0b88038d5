"""What the simulated ``libnvidia-ml.so.1`` of a node reads: a line of text for its driver and one for each GPU.

And the machine's PCI bus, as sysfs shows it: the GPUs are on it whether the driver lists them or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everstep.lab.hardware.gpu_states import GpuState
from everstep.lab.hardware.gpus import SimulatedGpu

DRIVER_FOLDER = "driver"  # in the node's run directory; the library lies there too
STATE_FILE = f"{DRIVER_FOLDER}/state"
PCI_FOLDER = "pci"
_RECOVERY = {"none": 0, "reset": 1, "reboot": 2, "drain": 4, "replace": 2}  # as NVML numbers it; it has no "replace"
_TOO_HOT, _POWER_BRAKE = 0x48, 0x88  # HW slowdown with its cause, nvmlClocksEventReasons
_FABRIC_COMPLETED, _NVML_UNKNOWN = 3, 999
_WIDTH, _NARROW = 16, 8  # PCIe lanes


def driver_text(gpus: Sequence[SimulatedGpu]) -> str:
    """The whole file, in the order in which the library scans it."""
    states = {state for gpu in gpus for state in gpu.states}
    head = f"driver loaded={int(GpuState.NO_DRIVER not in states)} hangs={int(GpuState.HANG in states)}\n"
    return head + "".join(_line(gpu) for gpu in gpus if GpuState.UNLISTED not in gpu.states)


def _line(gpu: SimulatedGpu) -> str:
    who, states = gpu.identity, gpu.states
    reasons = _TOO_HOT * (GpuState.TOO_HOT in states) | _POWER_BRAKE * (GpuState.POWER_BRAKE in states)
    fields = {
        "uuid": who.uuid,
        "serial": who.serial or "-",
        "pci": who.pci,
        "lost": int(gpu.lost),
        "recovery": _RECOVERY[gpu.recovery_action],
        "remap_pending": int(GpuState.REMAP_PENDING in states),
        "remap_failed": int(GpuState.REMAP_FAILED in states),
        "sram": int(GpuState.SRAM_ERRORS in states),
        "reasons": f"{reasons:x}",
        "fabric_state": _FABRIC_COMPLETED,
        "fabric_status": _NVML_UNKNOWN if GpuState.NO_FABRIC in states else 0,
        "inforom": int(GpuState.INFOROM_DAMAGED in states),
        "width": _NARROW if GpuState.NARROW_LINK in states else _WIDTH,
        "max_width": _WIDTH,
        "broken": int(GpuState.BROKEN_QUERY in states),
        "model": who.model,  # last: it has spaces
    }
    return "gpu " + " ".join(f"{name}={value}" for name, value in fields.items()) + "\n"


def write_pci(run_directory: Path, gpus: Sequence[SimulatedGpu]) -> None:
    """Makes the machine's PCI devices, as far as whoever counts GPUs looks at them."""
    for gpu in gpus:
        device = run_directory / PCI_FOLDER / f"{gpu.identity.pci}.0"
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")  # NVIDIA
        (device / "class").write_text("0x030200\n")  # 3D controller
