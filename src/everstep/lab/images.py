"""Container images from `images/*/Containerfile`, as archives that `ctr images import` reads.

Built once per content: the key of an image is the hash of everything that goes into it, and the key is in the name of
the archive. A second call finds the file. A change of our own code rebuilds the last layer only.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from everstep.lab import image_context as context
from everstep.lab.errors import LabError
from everstep.lab.image_base import BUILD_LIMITS, BuildahStorage, base_key
from everstep.lab.image_context import PythonPackages
from everstep.lab.layout import cache_dir

Report = Callable[[str, str], None]


@dataclass(frozen=True)
class Recipe:
    """How one image is built. `folder` is its directory under `images/`, `debian` the release of its base."""

    folder: str
    reference: str
    debian: str | None
    arguments: dict[str, str] = field(default_factory=dict)
    packages: PythonPackages | None = None
    checkpoint: bool = False
    binaries: tuple[str, ...] = ()


def _slurm(version: str, debian: str, auth_package: str, python: str) -> Recipe:
    return Recipe(
        folder="slurm",
        reference=f"docker.io/everstep/slurm:{version}",
        debian=debian,
        arguments={"DEBIAN": debian, "AUTH_PACKAGE": auth_package},
        packages=PythonPackages(("gateway",), python),
        checkpoint=True,
    )


_EVERSTEP_PACKAGES = PythonPackages(("agent", "cluster"), "3.13")
# Debian decides both the Slurm and the Python release: 12 has 22.05.8 and 3.11, 13 has 24.11.5 and 3.13.
RECIPES: dict[str, Recipe] = {
    "everstep": Recipe("everstep", "docker.io/everstep/everstep:dev", "trixie", packages=_EVERSTEP_PACKAGES),
    "slurm-22.05": _slurm("22.05", "bookworm", "munge", "3.11"),
    "slurm-24.11": _slurm("24.11", "trixie", "sackd", "3.13"),
    "slurm-26.05": _slurm("26.05", "testing", "sackd", "3.14"),
    "coredns": Recipe("coredns", "docker.io/everstep/coredns:dev", None, binaries=("coredns",)),
    "pause": Recipe("pause", "docker.io/everstep/pause:dev", "trixie"),
}
SLURM_VERSIONS = ("22.05", "24.11", "26.05")


def build_images(
    names: Sequence[str], report: Report, binaries: Path | None = None, project: Path | None = None
) -> dict[str, Path]:
    """Builds what is missing, side by side, and returns name -> OCI archive (the reference is inside it).

    `names` are keys of RECIPES; `report(name, line)` hears of progress, from several threads; `binaries` is the folder
    with what the Go build made (needed for `coredns`). Raises LabError with one line when an image cannot be built.
    """
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise LabError(f"no such image: {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    builder = _Builder(cache_dir() / "images", project or project_root(), binaries, report)
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="image") as pool:
        return dict(zip(names, pool.map(builder.build, names), strict=True))


def image_references(names: Sequence[str]) -> dict[str, str]:
    """name -> the reference that pods use."""
    return {name: RECIPES[name].reference for name in names}


def project_root() -> Path:
    """The checkout that this package runs from. Raises LabError for an installed package: it has no Containerfiles."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "images").is_dir() or not (root / "uv.lock").is_file():
        raise LabError("images are built from a checkout of Everstep; run this from one (`uv sync` makes it editable)")
    return root


class _Builder:
    def __init__(self, cache: Path, project: Path, binaries: Path | None, report: Report) -> None:
        self._cache = cache
        self._project = project
        self._binaries = binaries
        self._report = report
        self._storage = BuildahStorage(cache)
        self._install_lock = threading.Lock()
        for folder in (cache, cache / "logs", cache / "python"):
            folder.mkdir(parents=True, exist_ok=True)

    def build(self, name: str) -> Path:
        recipe = RECIPES[name]
        log = self._cache / "logs" / f"{name}.log"
        archive = self._archive(name, recipe, log)
        if archive.exists():
            os.utime(archive)  # says "used lately" to whoever tidies the cache
            return archive
        with _exclusive(self._cache / f"{name}.lock"):
            if not archive.exists():
                started = time.monotonic()
                log.write_bytes(b"")
                archive = self._make(name, recipe, log)
                self._report(name, f"built in {time.monotonic() - started:.0f} s")
        return archive

    def _archive(self, name: str, recipe: Recipe, log: Path) -> Path:
        parts = [repr(recipe).encode(), base_key(recipe.debian).encode() if recipe.debian else b""]
        for file, inside in self._files(recipe):
            parts += [inside.encode(), bytes([file.stat().st_mode & 0o100 != 0]), file.read_bytes()]
        if recipe.packages:
            parts.append(self._requirements(recipe.packages, log).read_bytes())
        return self._cache / f"{name}-{context.digest(parts)}.tar"

    def _requirements(self, packages: PythonPackages, log: Path) -> Path:
        with self._install_lock:
            return context.requirements(packages, self._project, self._cache / "python", log)

    def _files(self, recipe: Recipe) -> list[tuple[Path, str]]:
        folder = self._project / "images" / recipe.folder
        files = [(file, str(file.relative_to(folder))) for file in context.tree(folder)]
        if recipe.packages:
            files += context.code_files(self._project)
        if recipe.checkpoint:
            files += context.checkpoint_files(self._project)
        for binary in recipe.binaries:
            if self._binaries is None or not (self._binaries / binary).is_file():
                raise LabError(f"image {recipe.folder} needs the program {binary}; build Kubernetes first")
            files.append((self._binaries / binary, binary))
        return files

    def _make(self, name: str, recipe: Recipe, log: Path) -> Path:
        folders = []
        if recipe.packages:
            self._report(name, f"Python {recipe.packages.python} packages")
            locked = self._requirements(recipe.packages, log)
            with self._install_lock:
                folders.append((context.install(recipe.packages, locked, self._cache / "python", log), "python"))
        if recipe.debian:
            self._report(name, f"Debian {recipe.debian} base")
            self._storage.ensure_base(recipe.debian, log)
        self._report(name, "building")
        with TemporaryDirectory(prefix=f"everstep-{name}-") as folder:
            context.assemble(self._files(recipe), folders, Path(folder))
            archive = self._archive(name, recipe, log)  # again: the code may have been edited while we waited
            arguments = [word for key, value in recipe.arguments.items() for word in ("--build-arg", f"{key}={value}")]
            options = ["--pull=never", "--layers", "--format", "oci", *BUILD_LIMITS, *arguments]
            self._storage.run(["bud", *options, "-t", recipe.reference, folder], log, f"image {name}")
        self._export(name, recipe, archive, log)
        return archive

    def _export(self, name: str, recipe: Recipe, archive: Path, log: Path) -> None:
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        # OCI layers are compressed: containerd imports them in 6 s, plain ones (docker-archive) in 10 s (measured).
        target = f"oci-archive:{part}:{recipe.reference}"
        self._storage.run(["push", "--quiet", recipe.reference, target], log, f"image {name}")
        older = sorted(self._cache.glob(f"{name}-{'?' * 16}.tar"), key=lambda p: p.stat().st_mtime, reverse=True)
        for old in older[_KEEP_ARCHIVES:]:
            if time.time() - old.stat().st_mtime > _KEEP_SECONDS:  # younger: another process may be reading it
                old.unlink()
        part.rename(archive)


_KEEP_ARCHIVES = 2
_KEEP_SECONDS = 1800


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Two processes never build the same image at once; the kernel drops the lock of a process that dies."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
