"""The demo with another framework: PyTorch's wheels are installed once, and every lab's user sees them in the homes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from everstep.lab.demo.stage import CLUSTER, USER, DemoOptions, Scene, Show
from everstep.lab.errors import LabError
from everstep.lab.image_context import PythonPackages, install, installed, requirements
from everstep.lab.images import RECIPES, project_root
from everstep.lab.layout import cache_dir
from everstep.lab.progress import Progresses

FRAMEWORKS = ("numpy", "torch")
# Measured with torch 2.15, whose CUDA build is the only one on PyPI: 5.4 GB installed, and as much again in uv's cache.
NEEDED_BYTES = 12_000_000_000
# Where a site keeps its software: on the file server, beside the homes, and not the user's to write.
IN_PODS = "/home/software/torch"
# The first `import torch` compiles 1,500 files and reads a gigabyte, on a machine that runs a whole cluster beside it.
IMPORT_SECONDS = 600.0

Prepare = Callable[[Scene, Show], None]


def framework_of(name: str, options: DemoOptions) -> tuple[DemoOptions, Prepare]:
    """The options of the demo with that framework, and what is to be done when its user can log in.

    Installs what the framework needs, which takes minutes the first time. Raises LabError for a framework that we have
    no example of, and when it cannot be installed for the Python of the Slurm release.
    """
    if name == "numpy":
        return options, lambda scene, show: None
    if name != "torch":
        raise LabError(f"no example for {name!r}: choose one of {', '.join(FRAMEWORKS)}")
    return with_torch(options), partial(_bring_torch, install_torch(options.slurm))


def with_torch(options: DemoOptions) -> DemoOptions:
    """examples/train_torch_ddp.py: two nodes, two ranks on each."""
    environment = {
        "PYTHONPATH": IN_PODS,
        "PYTHONPYCACHEPREFIX": f"/home/{USER}/.cache/python",  # compiled once, not by every rank at every start
        "OMP_NUM_THREADS": "1",  # a sum in another number of parts has other bits
    }
    return replace(
        options,
        program="train_torch_ddp.py",
        script="train-torch.sbatch",
        ranks=4,
        training=("--step-time", "0.15"),
        environment=environment,
        patience=4.0,
    )


def install_torch(slurm: str) -> Path:
    """The folder with the locked torch for the Python of that Slurm release's image, made once. Raises LabError."""
    image = RECIPES.get(f"slurm-{slurm}")
    if image is None or image.packages is None:
        raise LabError(f"no image for Slurm {slurm}, so no Python to install torch for")
    packages = PythonPackages(("torch",), image.packages.python)
    cache = cache_dir() / "torch"
    cache.mkdir(parents=True, exist_ok=True)
    log = cache / "install.log"
    locked = requirements(packages, project_root(), cache, log, package="everstep-checkpoint")
    if installed(packages, locked, cache).is_dir():
        return installed(packages, locked, cache)
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        raise LabError(f"torch needs {NEEDED_BYTES / 1e9:.0f} GB of disk below {cache}, {free / 1e9:.1f} GB are free")
    with Progresses("Installing PyTorch, 5.4 GB from PyPI; this is done once") as progress:
        progress.tell("torch", f"for Python {packages.python}; log in {log}")
        try:
            folder = install(packages, locked, cache, log)
        except LabError as error:
            raise LabError(
                f"Slurm {slurm} comes with Python {packages.python}, for which torch cannot be installed: {error}"
            ) from error
        progress.tell("torch", "built")
    return folder


def _bring_torch(folder: Path, scene: Scene, show: Show) -> None:
    """Puts the packages on the lab's file server and lets the user import them. Raises LabError if that fails."""
    claim = scene.lab.get("persistentvolumeclaim", f"{CLUSTER}-home", "--namespace", scene.namespace)
    homes = scene.lab.layout.shared / claim["spec"]["volumeName"]
    share(folder, homes / Path(IN_PODS).relative_to("/home"))
    show.phase("the first `import torch` on the login node")
    environment = (f"{name}={value}" for name, value in with_torch(DemoOptions()).environment.items())
    scene.login.run("env", *environment, "python3", "-c", "import torch", seconds=IMPORT_SECONDS)


def share(folder: Path, target: Path) -> None:
    """Shows the folder's files at ``target`` too: as hard links, or as copies when that is another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)
    probe = target.with_name(f"{target.name}.probe")
    some_file = next(path for path in folder.rglob("*") if path.is_file())
    try:
        os.link(some_file, probe)
    except OSError:
        shutil.copytree(folder, target, symlinks=True)
    else:
        probe.unlink()
        shutil.copytree(folder, target, symlinks=True, copy_function=os.link)
