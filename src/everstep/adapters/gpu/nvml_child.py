"""The process that asks NVML, run by path and apart from the agent: ``python -I -S nvml_child.py BINDING ...``.

A question to NVML may never come back (the GPU's own firmware has died: XID 119), so whoever asks must be one that can
be killed. Each line on stdin is a question; the answer is one line of JSON on stdout: ``{"error", "text"}``, or
``{"gpus", "present", "excluded"}`` as :mod:`everstep.adapters.gpu.nvml_reading` has them. It ends with its stdin, and
with its parent, however that dies. Imports the standard library and pynvml only: this is memory on every node.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

REOPEN_EVERY = 60.0  # seconds; opening NVML anew touches a GPU that is gone, and the driver logs that each time
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")  # PCI class codes: VGA and 3D controllers

Answer = dict[str, Any]


class LostError(Exception):
    """NVML says that the GPU is lost: it answers nothing more."""


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        raise SystemExit("the parent is gone")


def address(bus_id: str) -> str:
    """NVML's ``00000000:1B:00.0`` as sysfs writes it: ``0000:1b:00.0``."""
    domain, bus, device = bus_id.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}"


def present(devices: str) -> list[str]:
    """PCI addresses of the GPUs that the machine has and that no other driver took (vfio-pci hands them to guests)."""
    if os.environ.get("NVIDIA_VISIBLE_DEVICES", "all") != "all":
        return []  # this container is not meant to see them all, so a difference means nothing
    try:
        names = sorted(os.listdir(devices))
    except OSError:
        return []
    return [name for name in names if _is_ours(f"{devices}/{name}")]


def _is_ours(device: str) -> bool:
    try:
        with open(f"{device}/vendor") as vendor, open(f"{device}/class") as kind:
            if vendor.read().strip() != _NVIDIA or not kind.read().startswith(_GPU_CLASSES):
                return False
    except OSError:
        return False  # unplugged while we looked
    try:
        return os.path.basename(os.readlink(f"{device}/driver")) == "nvidia"
    except OSError:
        return True  # no driver took it: NVIDIA's failed to


class Session:
    """An open NVML, and what it answers."""

    def __init__(self, nvml: Any, devices: str, inforom_every: float) -> None:
        self._nvml = nvml
        self._devices = devices
        self._inforom_every = inforom_every
        self._opened = 0.0
        self._open = False
        self._known: dict[int, Answer] = {}  # who sits at an index: a lost GPU may no longer say so itself
        self._inforom: dict[int, tuple[float, bool | None]] = {}
        self._silent = frozenset(
            (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                nvml.NVML_ERROR_DEPRECATED,
            )
        )

    def answer(self) -> Answer:
        """Everything NVML says now. What looks broken is looked at again through an NVML that was opened anew."""
        try:
            reading = self._read()
            if self._suspicious(reading) and time.monotonic() - self._opened > REOPEN_EVERY:
                self._close()
                reading = self._read()
        except self._nvml.NVMLError as why:
            self._close()
            return {"error": why.value, "text": str(why)}
        return reading

    def _read(self) -> Answer:
        nvml = self._nvml
        if not self._open:
            nvml.nvmlInit()
            self._open, self._opened = True, time.monotonic()
        count = nvml.nvmlDeviceGetCount()
        excluded = self._excluded()
        return {"gpus": [self._gpu(i) for i in range(count)], "present": present(self._devices), "excluded": excluded}

    def _close(self) -> None:
        self._known.clear()
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):  # there may be nothing to close any more
                self._nvml.nvmlShutdown()

    def _suspicious(self, reading: Answer) -> bool:
        gpus = reading["gpus"]
        seen = {gpu["pci"] for gpu in gpus} | set(reading["excluded"])
        return any(gpu["lost"] or gpu["unknown"] for gpu in gpus) or not seen.issuperset(reading["present"])

    def _excluded(self) -> list[str]:
        """GPUs that the administrator told the driver to leave alone."""
        nvml = self._nvml
        try:
            infos = [nvml.nvmlGetExcludedDeviceInfoByIndex(i) for i in range(nvml.nvmlGetExcludedDeviceCount())]
            return [address(info.pciInfo.busId.decode()) for info in infos]
        except nvml.NVMLError:
            return []

    def _gpu(self, index: int) -> Answer:
        gpu: Answer = {"index": index, "pci": "", "lost": False, "unknown": {}}
        try:
            handle = self._asked(gpu, "handle", self._nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is not None:
                self._who(gpu, handle)
                self._how(gpu, handle)
        except LostError:
            gpu["lost"] = True
        for field, value in self._known.get(index, {}).items():
            gpu[field] = gpu.get(field) or value
        return gpu

    def _asked(self, gpu: Answer, what: str, question: Callable[..., Any], *arguments: object) -> Any:
        """The answer to one question; None where there is none, which is noted unless the GPU just has no such thing.

        Raises:
            LostError: the GPU is lost.
        """
        nvml = self._nvml
        try:
            return question(*arguments)
        except nvml.NVMLError as why:
            if why.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise LostError from None
            if why.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
                raise
            if why.value == nvml.NVML_ERROR_RESET_REQUIRED:
                gpu["reset_required"] = True
            elif why.value == nvml.NVML_ERROR_CORRUPTED_INFOROM:
                gpu["inforom"] = True
            elif why.value not in self._silent:
                gpu["unknown"][what] = str(why)
            return None

    def _who(self, gpu: Answer, handle: Any) -> None:
        nvml = self._nvml
        pci = self._asked(gpu, "PCI address", nvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None:
            gpu["pci"] = address(pci.busId if isinstance(pci.busId, str) else pci.busId.decode())
        gpu["uuid"] = self._asked(gpu, "UUID", nvml.nvmlDeviceGetUUID, handle)
        gpu["serial"] = self._asked(gpu, "serial number", nvml.nvmlDeviceGetSerial, handle)  # consumer boards have none
        gpu["model"] = self._asked(gpu, "name", nvml.nvmlDeviceGetName, handle)
        self._known[gpu["index"]] = {field: gpu[field] for field in ("pci", "uuid", "serial", "model")}

    def _how(self, gpu: Answer, handle: Any) -> None:
        nvml = self._nvml
        gpu["recovery"] = self._asked(gpu, "recovery action", self._recovery, handle)
        rows = self._asked(gpu, "remapped rows", nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            gpu["remap_pending"], gpu["remap_failed"] = bool(rows[2]), bool(rows[3])
        gpu["sram"] = self._asked(gpu, "SRAM errors", self._sram, handle)
        gpu["reasons"] = self._asked(gpu, "clock event reasons", self._reasons, handle)
        fabric = self._asked(gpu, "fabric state", self._fabric, handle)
        if fabric is not None:
            gpu["fabric_state"], gpu["fabric_status"], gpu["fabric_health"] = fabric
        gpu["width"] = self._asked(gpu, "PCIe width", nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
        gpu["max_width"] = self._asked(gpu, "largest PCIe width", nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
        gpu["inforom"] = gpu.get("inforom") or self._inforom_damaged(gpu, handle)

    def _recovery(self, handle: Any) -> int:
        nvml = self._nvml
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
        return int(value.value.uiVal)

    def _sram(self, handle: Any) -> bool | None:
        nvml = self._nvml
        status = nvml.c_nvmlEccSramErrorStatus_v1_t()
        try:
            nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
        except nvml.NVMLError as why:
            if why.value == nvml.NVML_ERROR_NO_PERMISSION:
                return None  # the one question that NVML answers to privileged processes only
            raise
        return bool(status.bThresholdExceeded)

    def _reasons(self, handle: Any) -> int:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        except nvml.NVMLError as why:
            if why.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))  # the name before R535

    def _fabric(self, handle: Any) -> tuple[int, int, int]:
        nvml = self._nvml
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info.state, info.status, info.healthMask

    def _inforom_damaged(self, gpu: Answer, handle: Any) -> bool | None:
        """Whether the InfoROM's checksums are wrong. NVML reads the flash for it, so the answer is kept for a while."""
        asked, damaged = self._inforom.get(gpu["index"], (0.0, None))
        if not asked or time.monotonic() - asked >= self._inforom_every:
            question = self._nvml.nvmlDeviceValidateInforom
            self._asked(gpu, "InfoROM", question, handle)
            damaged = gpu.get("inforom")
            self._inforom[gpu["index"]] = (time.monotonic(), damaged)
        return damaged


def main() -> None:
    """Arguments: pynvml's folder, sysfs' PCI devices, seconds between looks at InfoROMs, the parent's process id."""
    binding, devices, inforom_every, parent = sys.argv[1:5]
    die_with(int(parent))
    sys.path.append(binding)
    import pynvml  # noqa: PLC0415 - found only after the line above

    session = Session(pynvml, devices, float(inforom_every))
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(session.answer()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
