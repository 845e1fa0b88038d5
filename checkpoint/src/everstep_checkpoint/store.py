"""Checkpoints in an object store or any other file system that fsspec knows: s3://, gcs://, memory://, ...

    <url>/step_00000120/<launch>/rank-0000.shard, rank-0000.json, ...
    <url>/step_00000120/MANIFEST.json     written last: what makes it a checkpoint

Object stores cannot rename, but they replace one object in one step. So a checkpoint is one whose manifest is there and
whose files match it; it is deleted by deleting the manifest first. The small files that ranks share (key, owner, pins,
counter) stay in the run's directory. Two attempts that live at once are told apart by the owner file there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .agreement import Message
from .errors import InvalidCheckpointError
from .manifest import MALFORMED, MANIFEST, Checkpoint, parse_manifest, rank_manifest_name, shard_name, step_name
from .reading import problem
from .remote import Remote
from .shard import CHUNK, hashing_of, unpack
from .snapshot import Snapshot
from .vault import Vault

log = logging.getLogger("everstep_checkpoint")

_NAME = re.compile(r"step_(\d{8,})")


class StoreVault(Vault):
    """The same promises as a `Vault`, without renames. Raises OSError where a Vault does."""

    def __init__(self, directory: Path, token: str, url: str) -> None:
        super().__init__(directory, token)
        self._remote = Remote(url)
        self._root = self._remote.root

    def published(self) -> list[tuple[int, str]]:
        found = []
        for name in self._remote.names(self._root):
            match = _NAME.fullmatch(name)
            if match and self._remote.has(f"{self._root}/{name}/{MANIFEST}"):
                found.append((int(match[1]), name))
        return sorted(found)

    def manifest(self, name: str) -> Checkpoint:
        """Read and check the manifest, names and sizes. Raises InvalidCheckpointError."""
        path = Path(f"{self._root}/{name}")
        try:
            raw = json.loads(self._remote.read(f"{self._root}/{name}/{MANIFEST}"))
            found = parse_manifest(path, raw)
            for file, (size, _) in found.files.items():
                actual = self._remote.size(self._file(name, raw["launch"], file))
                if actual != size:
                    raise InvalidCheckpointError(f"{path}/{file} has {actual} bytes, the manifest says {size}")
        except (OSError, *MALFORMED) as error:
            raise problem(path, error) from error
        return found

    def verified(self, name: str) -> Checkpoint:
        """Check every byte. Raises InvalidCheckpointError."""
        found = self.manifest(name)
        for file, (size, sha256) in found.files.items():
            digest, count = hashlib.sha256(), 0
            try:
                for chunk in self._remote.chunks(self._file(name, self._launch_of(name), file), CHUNK):
                    digest.update(chunk)
                    count += len(chunk)
            except (OSError, ValueError) as error:
                raise problem(found.path / file, error) from error
            if (count, digest.hexdigest()) != (size, sha256):
                raise InvalidCheckpointError(f"{found.path}/{file} does not match its manifest")
        return found

    def sweep(self) -> None:
        """Remove what dead attempts left behind: files whose manifest was never written, or is deleted already."""
        super().sweep()
        for name in self._remote.names(self._root):
            if _NAME.fullmatch(name) and not self._remote.has(f"{self._root}/{name}/{MANIFEST}"):
                self._remove(f"{self._root}/{name}")

    def write_rank(self, step: int, rank: int, snapshot: Snapshot, unwanted: Callable[[], bool]) -> Message:
        began, folder = time.monotonic(), self._folder(step)
        hashing = hashing_of(snapshot)
        try:
            size = self._remote.stream(f"{folder}/{shard_name(rank)}", hashing.pieces(), unwanted)
            sha256 = hashing.result()
        except BaseException:
            hashing.cancel()
            raise
        took = round(time.monotonic() - began, 3)
        manifest = json.dumps({"step": step, "rank": rank, "size": size, "sha256": sha256, "seconds": took}).encode()
        self._remote.write(f"{folder}/{rank_manifest_name(rank)}", manifest)
        return {"t": "written", "manifest": hashlib.sha256(manifest).hexdigest(), "bytes": size}

    def read_rank(self, found: Checkpoint, rank: int) -> tuple[Any, float | None]:
        name, file = found.path.name, shard_name(rank)
        launch = self._launch_of(name)
        data = bytearray(self._remote.read(self._file(name, launch, file)))
        size, sha256 = found.files[file]
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise InvalidCheckpointError(f"{found.path}/{file} does not match its manifest")
        about = json.loads(self._remote.read(self._file(name, launch, rank_manifest_name(rank))))
        return unpack(data, f"{found.path}/{file}"), float(about.get("seconds") or 0) or None

    def publish(self, step: int, reports: dict[int, str], about: dict[str, Any]) -> Checkpoint:
        folder = self._folder(step)
        files: dict[str, dict[str, int | str]] = {}
        for rank, reported in sorted(reports.items()):
            data = self._remote.read(f"{folder}/{rank_manifest_name(rank)}")
            size = self._remote.size(f"{folder}/{shard_name(rank)}")
            files |= self.checked(step, rank, reported, data, size)
        whole = self.whole(step, len(reports), about, files)
        self._still_owner()
        name, mark = step_name(step), f"{self._root}/{step_name(step)}/{MANIFEST}"
        if self._remote.has(mark):
            # An older attempt published this very step after we began. What is published is never overwritten.
            found = self.verified(name)
            self.discard(step)
        else:
            self._remote.put(mark, json.dumps(whole, indent=1).encode())
            found = self.manifest(name)
        self._sound.add(name)
        return found

    def discard(self, step: int) -> None:
        """Remove what this attempt has written of `step` without publishing it; never raises, see `sweep`."""
        try:
            published = self._launch_of(step_name(step)) == self._token
        except FileNotFoundError:
            published = False
        except (OSError, *MALFORMED) as error:
            # It may well be published: the store took the manifest, and its answer was lost.
            log.warning("not removing what was written of step %d: %s", step, error)
            return
        if not published:
            self._remove(self._folder(step))

    def check_room(self, size: int) -> None:
        """Nobody can ask a store how much it still takes."""

    def _rename_away(self, name: str, why: str) -> None:
        """Here: delete, the manifest first. A damaged one that failed its check only loses its manifest."""
        mark = f"{self._root}/{name}/{MANIFEST}"
        if why == "invalid":
            self._remote.write(f"{self._root}/.invalid-{name}.json", self._remote.read(mark))
        self._remote.remove(mark)
        if why != "invalid":
            self._remove(f"{self._root}/{name}")

    def _empty_trash(self) -> None:
        """There is none: see `_rename_away` and `sweep`."""

    def _folder(self, step: int) -> str:
        return f"{self._root}/{step_name(step)}/{self._token}"

    def _launch_of(self, name: str) -> str:
        return str(json.loads(self._remote.read(f"{self._root}/{name}/{MANIFEST}"))["launch"])

    def _file(self, name: str, launch: object, file: str) -> str:
        return f"{self._root}/{name}/{launch}/{file}"

    def _remove(self, folder: str) -> None:
        try:
            self._remote.remove_tree(folder)
        except OSError as error:
            log.warning("could not remove %s: %s", folder, error)
