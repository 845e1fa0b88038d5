"""Keys and configuration, copied with the owners that Slurm and munge insist on (a Secret's files belong to root)."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from everstep.apps.slurm_pod import layout
from everstep.core.errors import Unreachable

_MUNGE_SECONDS = 30.0


def install(sources: Iterable[Path], folder: Path, owner: str, mode: int) -> None:
    """Copies files into `folder` as the owner's; a reader never sees half a file or a key that others can read."""
    account = pwd.getpwnam(owner)
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        part = folder / f".{source.name}.new"
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        shutil.copyfile(source, part)
        os.chown(part, account.pw_uid, account.pw_gid)
        part.chmod(mode)
        part.rename(folder / source.name)


def give(folder: Path, owner: str, mode: int) -> None:
    """Makes a mounted folder the owner's."""
    account = pwd.getpwnam(owner)
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, account.pw_uid, account.pw_gid)
    folder.chmod(mode)


def uses_munge() -> bool:
    """Whether this cluster authenticates by munge (Slurm before 23.11)."""
    return (layout.KEYS / "munge.key").exists()


def wait_for_munge() -> None:
    """Waits for the socket of munged, which runs in the container beside this one. Raises Unreachable."""
    deadline = time.monotonic() + _MUNGE_SECONDS
    while uses_munge() and not layout.MUNGE_SOCKET.exists():
        if time.monotonic() > deadline:
            raise Unreachable(f"munged made no socket in {layout.MUNGE_FOLDER} within {_MUNGE_SECONDS:.0f} s")
        time.sleep(0.05)


def become(owner: str, *argv: str) -> None:
    """Becomes the program, as that user. Does not return."""
    account = pwd.getpwnam(owner)
    if account.pw_uid != os.getuid():
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    os.execvp(argv[0], argv)  # noqa: S606 - the point: the daemon takes this process's place
