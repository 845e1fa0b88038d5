"""The GPUs of a node from one reading of the driver to the next, and how their addresses are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.core.health import Evidence, Fault, Gpu


def normal_pci(address: str) -> str:
    """``domain:bus:device`` in lower case with a four-digit domain: logs, NVML and nvidia-smi all differ."""
    parts = address.strip().lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    return ":".join([parts[0].lstrip("0").rjust(4, "0"), *parts[1:]])


def placed(fault: Fault, gpus: Sequence[Gpu]) -> Fault:
    """The fault with index and serial of the GPU at its PCI address; as it is where none is known."""
    if fault.pci is None:
        return fault
    address = normal_pci(fault.pci)
    for gpu in gpus:
        if normal_pci(gpu.pci) == address:
            key = f"{fault.kind}:{fault.code}@{gpu.serial or fault.pci}"
            return replace(fault, key=key, gpu_index=gpu.index, gpu_serial=gpu.serial or None)
    return fault


def merged(before: Sequence[Gpu], reading: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The inventory after a reading. As many GPUs as are missing from before stay in it, marked lost.

    A part that was exchanged for another leaves: the count is the same, the serial is not.
    """
    seen = {gpu.serial for gpu in reading}
    missing = [gpu for gpu in before if gpu.serial not in seen]
    deficit = max(0, len(before) - len(reading))
    gpus = list(reading)
    for gpu in missing[:deficit]:
        taken = {other.index for other in gpus}  # the driver numbers the remaining ones anew
        index = gpu.index if gpu.index not in taken else max(taken) + 1
        gpus.append(replace(gpu, index=index, lost=True))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def unwell(gpus: Sequence[Gpu]) -> list[Evidence]:
    """What an inventory alone shows: GPUs that are lost, and GPUs that the driver wants recovered."""
    found = []
    for gpu in gpus:
        if gpu.lost or gpu.recovery_action != "none":
            code = "gpu_lost" if gpu.lost else "gpu_recovery"
            line = f"GPU {gpu.index} ({gpu.serial}): lost={gpu.lost} recovery_action={gpu.recovery_action}"
            found.append(Evidence(kind="host", code=code, pci=gpu.pci, line=line))
    return found
