"""Makes everything that a lab is made of, side by side, once: Kubernetes and the images."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.lab.binaries import binaries_dir, built, ensure_binaries
from everstep.lab.images import RECIPES, build_images
from everstep.lab.layout import LabConfig, LabPlan

ALL_IMAGES = tuple(RECIPES)


def images_for(config: LabConfig) -> list[str]:
    """What the nodes of a lab hold, as keys of images.RECIPES."""
    return ["pause", "coredns", "everstep", *([f"slurm-{config.slurm}"] if config.slurm else [])]


def plan_lab(config: LabConfig) -> LabPlan:
    """Builds what the lab needs and is not there yet, with progress on the terminal if that takes long."""
    binaries, archives = ensure(images_for(config))
    return LabPlan(config=config, binaries=str(binaries), archives=[str(path) for path in archives.values()])


def ensure_all() -> None:
    """Everything that any lab of this checkout may want."""
    ensure(ALL_IMAGES)


def ensure(images: Sequence[str]) -> tuple[Path, dict[str, Path]]:
    """The binaries' folder, and name -> archive for each image. Raises LabError with the first failure."""
    target = binaries_dir()
    if not built(target):
        ensure_binaries(print)
    return target, build_images(images, lambda name, line: None, binaries=target)
