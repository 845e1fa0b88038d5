"""Makes everything that a lab is made of, side by side, once: Kubernetes from Go modules, the images."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from everstep.lab.binaries import binaries_dir, built, ensure_binaries
from everstep.lab.driver import ensure_driver
from everstep.lab.errors import LabError
from everstep.lab.images import RECIPES, build_images
from everstep.lab.layout import LabConfig, LabPlan
from everstep.lab.progress import Progresses

# program -> the Debian package that has it; scripts/setup installs them
PROGRAMS = {
    "runc": "runc", "ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux", "openssl": "openssl",
    "sysctl": "procps", "mmdebstrap": "mmdebstrap", "buildah": "buildah", "gcc": "gcc",
}  # fmt: skip
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def images_for(config: LabConfig) -> list[str]:
    """What the nodes of a lab hold, as keys of images.RECIPES. Raises LabError for a Slurm that we have no image of."""
    slurm = f"slurm-{config.slurm}"
    if config.slurm and slurm not in RECIPES:
        known = ", ".join(name.removeprefix("slurm-") for name in RECIPES if name.startswith("slurm-"))
        raise LabError(f"no image for Slurm {config.slurm}: choose one of {known}")
    return ["pause", "coredns", "everstep", *([slurm] if config.slurm else [])]


def plan_lab(config: LabConfig) -> LabPlan:
    """Builds what the lab needs and is not there yet, with progress on the terminal if that takes long."""
    config.check()
    binaries, archives = ensure(images_for(config))
    return LabPlan(config=config, binaries=str(binaries), archives=[str(path) for path in archives.values()])


def ensure_all() -> tuple[Path, dict[str, Path]]:
    """Everything that any lab of this checkout may want; as `ensure` says."""
    return ensure(list(RECIPES))


def ensure(images: Sequence[str]) -> tuple[Path, dict[str, Path]]:
    """The binaries' folder, and name -> archive for each image. Raises LabError with the first failure."""
    check_programs()
    ensure_driver()
    with Progresses("Making what a lab is made of (only what changed; all of it takes about ten minutes)") as progress:
        report = progress.tell
        apart = [name for name in images if not RECIPES[name].binaries]
        with ThreadPoolExecutor(max_workers=2) as pool:
            others = pool.submit(build_images, apart, report)
            binaries = pool.submit(_binaries, progress)
            # An image that carries one of the binaries waits for them, the others do not.
            archives = build_images([name for name in images if name not in apart], report, binaries=binaries.result())
            archives.update(others.result())
    return binaries.result(), {name: archives[name] for name in images}


def _binaries(progress: Progresses) -> Path:
    if built(binaries_dir()):
        return binaries_dir()
    made = ensure_binaries(partial(progress.tell, "Kubernetes"))
    progress.tell("Kubernetes", "built")
    return made


def check_programs() -> None:
    """Raises LabError naming every Debian package that is missing."""
    missing = {package for program, package in PROGRAMS.items() if not shutil.which(program)}
    if not any((folder / "bridge").exists() for folder in _CNI_FOLDERS):
        missing.add("containernetworking-plugins")
    if missing:
        raise LabError(f"missing Debian packages: {' '.join(sorted(missing))}; run `scripts/setup`")
