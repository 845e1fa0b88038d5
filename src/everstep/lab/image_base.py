"""The Debian base images, made by mmdebstrap: the lab needs no image registry.

Each is loaded into a buildah storage of its own under the official image's name (`docker.io/library/debian:REL-slim`),
so the Containerfiles are the ordinary ones and build from the official base wherever a registry is at hand.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from everstep.lab.errors import LabError

_SLIM = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "info", "locale", "man")]
_APT = ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
# The Release file of testing may be past its date on a mirror that is frozen or slow.
_TESTING = ['--aptopt=Acquire::Check-Valid-Until "false"']
_CONTAINERFILE = 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n'


def base_arguments(release: str) -> list[str]:
    """The mmdebstrap options for one Debian release."""
    return ["--variant=minbase", "--format=tar", *_SLIM, *_APT, *(_TESTING if release == "testing" else [])]


def base_key(release: str) -> str:
    """Changes when the recipe changes. Security updates of Debian do not change it: the lab is no server."""
    return hashlib.sha256("\n".join([release, _CONTAINERFILE, *base_arguments(release)]).encode()).hexdigest()[:16]


class BuildahStorage:
    """A buildah storage under one directory, apart from the user's own; safe for several threads.

    Raises LabError with the end of the tool's output when a command fails; all output goes to the log file given.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._base_locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def run(self, arguments: list[str], log: Path, what: str) -> None:
        """Runs `buildah ARGUMENTS`."""
        options = ["--root", str(self.root / "storage"), "--runroot", str(self.root / "run")]
        # chroot isolation needs no container runtime.
        run_logged(["buildah", *options, *arguments], log, what, {"BUILDAH_ISOLATION": "chroot"})

    def has(self, image: str) -> bool:
        """Whether the storage holds an image of that name."""
        options = ["--root", str(self.root / "storage"), "--runroot", str(self.root / "run")]
        answer = subprocess.run(
            ["buildah", *options, "inspect", "--type", "image", image], check=False, capture_output=True
        )
        return answer.returncode == 0

    def ensure_base(self, release: str, log: Path) -> None:
        """Makes `docker.io/library/debian:RELEASE-slim` unless it is there already."""
        with self._guard:
            lock = self._base_locks.setdefault(release, threading.Lock())
        with lock:
            marker = f"localhost/everstep-base:{release}-{base_key(release)}"
            if self.has(marker):
                return
            with TemporaryDirectory(prefix="everstep-base-") as folder:
                tar = str(Path(folder, "base.tar"))
                run_logged(["mmdebstrap", *base_arguments(release), release, tar], log, f"Debian {release} base")
                Path(folder, "Containerfile").write_text(_CONTAINERFILE)
                names = ["-t", f"docker.io/library/debian:{release}-slim", "-t", marker]
                self.run(["bud", *BUILD_LIMITS, *names, folder], log, f"Debian {release} base image")


# The default asks for more open files than a restricted root may have, and fails.
BUILD_LIMITS = ["--ulimit", "nofile=1024:1024"]


def run_logged(command: list[str], log: Path, what: str, extra_env: dict[str, str] | None = None) -> None:
    """Runs a command with all its output in `log`. Raises LabError with the last lines when it fails."""
    with log.open("ab") as sink:
        start = sink.tell()
        try:
            env = {**os.environ, **(extra_env or {})}
            done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
        except FileNotFoundError:
            raise LabError(f"{command[0]} is not installed; `apt-get install {command[0]}` and try again") from None
    if done.returncode:
        with log.open("rb") as text:
            text.seek(start)
            lines = [line for line in text.read().decode(errors="replace").splitlines() if line.strip()]
        raise LabError(f"{what}: {command[0]} failed ({done.returncode}), log in {log}: " + " | ".join(lines[-3:]))
