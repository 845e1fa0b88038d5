"""Image stores: the images are imported and unpacked once, and every node gets a store that shares the layers.

A store is a containerd root with the images in it. A node's own store has its own databases and a symlink for each
layer and blob: a few milliseconds and no disk, on any file system. Layers are only ever lower directories of an
overlay, so a node cannot change what it shares; when it deletes one, it deletes its symlink.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from everstep.lab.errors import LabError
from everstep.lab.layout import cache_dir
from everstep.lab.processes import run, run_now

_SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_BLOBS = "io.containerd.content.v1.content/blobs/sha256"
_KEPT = 2  # stores kept beside those in use: the last ones, so that a change and its revert are both quick


def _key(archives: Sequence[Path]) -> str:
    """Archives are written once under a name that carries their content's hash, so path and size name the content."""
    digest = hashlib.sha256(b"store 2")
    for archive in sorted(path.resolve() for path in archives):
        digest.update(f"{archive} {archive.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


async def ensure_store(archives: Sequence[Path], binaries: Path, scratch: Path, report: Callable[[str], None]) -> Path:
    """Returns the store that holds the OCI archives, importing them if nobody has yet (about 1 s per 30 MB).

    `scratch` is a folder that may be made for a moment, `report` gets a sentence when there is something to wait for.
    Raises LabError.
    """
    stores = cache_dir() / "stores"
    stores.mkdir(parents=True, exist_ok=True)
    store = stores / _key(archives)
    with (stores / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        if not (store / "complete").exists():
            await asyncio.to_thread(shutil.rmtree, store, ignore_errors=True)
            base = await asyncio.to_thread(_start_from, stores, store)
            new = [archive for archive in archives if str(archive.resolve()) not in base]
            report(f"unpacking {len(new)} of {len(archives)} images (once)")
            await _import(new, binaries, store, scratch)
            (store / "complete").write_text(json.dumps([str(archive.resolve()) for archive in archives]))
        os.utime(store)
    return store


def _start_from(stores: Path, store: Path) -> list[str]:
    """Copies the latest store as hard links, if there is one; returns the archives that are in it already.

    After a change of one image only that one is unpacked. What it replaces goes by containerd's own garbage collection,
    and an image that this store does not need does no harm.
    """
    complete = sorted(stores.glob("*/complete"), key=lambda path: path.parent.stat().st_mtime)
    (store / "root").mkdir(parents=True)
    if not complete:
        return []
    base = complete[-1].parent
    try:
        known: list[str] = json.loads(complete[-1].read_text())
    except ValueError:
        return []
    run_now("cp", "-al", f"{base}/root/.", f"{store}/root", seconds=120)
    for database in (store / "root").glob("*/*.db"):  # written in place, so not shared
        database.unlink()
        shutil.copy2(base / database.relative_to(store), database)
    return known


async def _import(archives: Sequence[Path], binaries: Path, store: Path, scratch: Path) -> None:
    socket, log = f"{scratch}/socket", store / "import.log"
    _write_config(scratch, store / "root", socket)
    with log.open("wb") as output:
        daemon = await asyncio.create_subprocess_exec(
            "unshare", "--mount", "--propagation", "private",
            str(binaries / "containerd"), "--config", f"{scratch}/config.toml",
            stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"},
        )  # fmt: skip
    try:
        ctr = (str(binaries / "ctr"), "--address", socket, "--namespace", "k8s.io")
        await _until_answers(*ctr, "version", log=log)
        for archive in archives:
            await run(*ctr, "images", "import", str(archive), seconds=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.terminate()
        await daemon.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def _write_config(scratch: Path, root: Path, socket: str) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.toml").write_text(
        f'version = 3\nroot = "{root}"\nstate = "{scratch}/run"\n[grpc]\n  address = "{socket}"\n'
    )


async def _until_answers(*argv: str, log: Path) -> None:
    for _ in range(200):
        with contextlib.suppress(LabError):
            await run(*argv, seconds=5)
            return
        await asyncio.sleep(0.05)
    raise LabError(f"containerd does not start: see {log}")


def prune_stores(keep: Path) -> None:
    """Deletes old stores beside `keep` that no lab holds; nothing happens while somebody makes one."""
    stores = keep.parent
    with (stores / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _prune(stores, keep)


def _prune(stores: Path, keep: Path) -> None:
    others = [path for path in stores.iterdir() if path.is_dir() and path != keep]
    for store in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        with hold(store, exclusive=True) as held:
            if held is not None:
                shutil.rmtree(store, ignore_errors=True)


@contextlib.contextmanager
def hold(store: Path, *, exclusive: bool = False) -> Iterator[int | None]:
    """Locks the store against deletion; yields the descriptor, or None if somebody else's hold forbids ours.

    The descriptor is handed to every node's first process: the hold lasts as long as any of them lives.
    """
    with (store / "held").open("w") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file.fileno()


def clone_store(store: Path, target: Path) -> None:
    """Makes the node's own containerd root at `target` (which must not exist) from a store."""
    source = store / "root"
    shared = {source / _SNAPSHOTS, source / _BLOBS}
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        mine = target / here.relative_to(source)
        mine.mkdir(parents=True)
        if here in shared:
            for entry in [*folders, *files]:
                (mine / entry).symlink_to(here / entry)
            folders.clear()
            continue
        for name in files:
            shutil.copy2(here / name, mine / name)
