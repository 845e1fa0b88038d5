"""The lab's own libnvidia-ml.so.1: compiled once, and put where a node's agent loads it from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from everstep.lab import image_context as context
from everstep.lab.errors import LabError
from everstep.lab.hardware.driver_state import DRIVER_FOLDER
from everstep.lab.layout import cache_dir

LIBRARY = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).parent / "hardware" / "nvml" / "libnvidia-ml.c"
_COMPILE = ("gcc", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


def ensure_driver() -> Path:
    """Compiles the library if there is none of this source. Raises LabError with the compiler's first complaint."""
    key = context.digest([_SOURCE.read_bytes(), repr(_COMPILE).encode(), platform.machine().encode()])
    library = cache_dir() / "driver" / key / LIBRARY
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / LIBRARY
        try:
            done = subprocess.run(
                [*_COMPILE, "-o", str(made), str(_SOURCE)], capture_output=True, text=True, timeout=120, check=False
            )
        except FileNotFoundError:
            raise LabError("there is no gcc to compile the simulated GPU driver: run `scripts/setup`") from None
        if done.returncode:
            complaints = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
            raise LabError(f"the simulated GPU driver cannot be compiled: {complaints[0]}")
        os.replace(made, library)
    return library


def install_driver(run_directory: Path) -> None:
    """Gives a node the library; the hardware writes the state of the GPUs beside it."""
    folder = run_directory / DRIVER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ensure_driver(), folder / LIBRARY)
