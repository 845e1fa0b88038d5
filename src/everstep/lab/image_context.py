"""What an image's build context carries beside its folder: locked Python packages and the project's own code."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from everstep.lab.image_base import run_logged

# One date for every file of a context: an unchanged file is an unchanged layer.
_EPOCH = 1_577_836_800  # 2020-01-01
# Parts of the package that no container runs. Left out so that work on them rebuilds no image.
_HOST_ONLY = frozenset({"lab", "sim", "testing"})


@dataclass(frozen=True)
class PythonPackages:
    """The locked dependencies of some extras of `everstep`, for one Python version (`3.13`)."""

    extras: tuple[str, ...]
    python: str


def requirements(packages: PythonPackages, project: Path, cache: Path, log: Path, package: str = "everstep") -> Path:
    """The locked requirements (with hashes) as a file, exported from uv.lock once per state of the lock."""
    lock = digest([(project / "uv.lock").read_bytes(), (project / "pyproject.toml").read_bytes()])
    out = cache / f"requirements-{'-'.join(packages.extras)}-{lock}.txt"
    if not out.exists():
        part = out.with_suffix(f".{os.getpid()}")
        extras = [word for extra in packages.extras for word in ("--extra", extra)]
        flags = ["--frozen", "--package", package, "--no-dev", "--no-emit-workspace", "--no-header", "--no-annotate"]
        command = ["uv", "export", "--project", str(project), *flags, *extras, "--output-file", str(part), "--quiet"]
        run_logged(command, log, "locked requirements")
        part.rename(out)
    return out


def install(packages: PythonPackages, locked: Path, cache: Path, log: Path) -> Path:
    """The packages in a directory, installed once per set of requirements and Python version (wheels only)."""
    out = installed(packages, locked, cache)
    if not out.is_dir():
        part = Path(mkdtemp(dir=cache))
        version = ["--python-version", packages.python, "--only-binary", ":all:", "--link-mode", "copy"]
        checks = ["--no-deps", "--require-hashes", "--quiet"]
        command = ["uv", "pip", "install", "--target", str(part), *version, *checks, "--requirement", str(locked)]
        try:
            run_logged(command, log, f"Python {packages.python} packages")
        except BaseException:  # Ctrl-C too: half of PyTorch is gigabytes that nobody would find
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(part / "bin", ignore_errors=True)
        (part / ".lock").unlink(missing_ok=True)
        part.chmod(0o755)
        part.rename(out)
    return out


def installed(packages: PythonPackages, locked: Path, cache: Path) -> Path:
    """Where `install` puts them."""
    return cache / f"python-{packages.python}-{digest([locked.read_bytes()])}"


def code_files(project: Path) -> Iterator[tuple[Path, str]]:
    """(file, path inside the context) of the project's own code."""
    package = project / "src" / "everstep"
    for file in tree(package):
        relative = file.relative_to(package)
        if relative.parts[0] not in _HOST_ONLY:
            yield file, f"code/everstep/{relative}"


def checkpoint_files(project: Path) -> Iterator[tuple[Path, str]]:
    """(file, path inside the context) of the training SDK."""
    package = project / "checkpoint" / "src" / "everstep_checkpoint"
    for file in tree(package):
        yield file, f"checkpoint/everstep_checkpoint/{file.relative_to(package)}"


def tree(root: Path) -> list[Path]:
    """Every file under `root`, sorted, without what Python leaves behind."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def assemble(files: Iterable[tuple[Path, str]], folders: Iterable[tuple[Path, str]], context: Path) -> None:
    """Copies files and whole folders into a context, with one fixed date everywhere."""
    for source, name in folders:
        shutil.copytree(source, context / name, dirs_exist_ok=True, symlinks=True)
    for source, name in files:
        target = context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    for path in [context, *context.rglob("*")]:
        if not path.is_symlink():
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, (_EPOCH, _EPOCH))


def digest(parts: Iterable[bytes]) -> str:
    """A short content key; the parts' boundaries count."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:16]
