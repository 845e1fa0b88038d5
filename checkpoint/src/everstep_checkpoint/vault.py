"""The directory of a run: which checkpoints it holds, which of them are sound, how one is published, which may go.

    <dir>/step_00000120/rank-0000.shard, rank-0000.json, ..., MANIFEST.json    a whole checkpoint
    <dir>/.tmp-step_00000120-<launch>/    being written
    <dir>/.trash-...                      being deleted
    <dir>/.invalid-...                    failed its check; the newest is kept for a look
    <dir>/.everstep/                      the SDK's own small files

A name under `step_` is only ever created by one rename and only ever removed by one rename. Names are not trusted when
resuming: sizes and SHA-256 decide.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .durable import fsync_directory, replace_file, write_file
from .errors import InvalidCheckpointError, SupersededError
from .shard import hash_file

log = logging.getLogger("everstep_checkpoint")

MANIFEST = "MANIFEST.json"
FORMAT = 1
_NAME = re.compile(r"step_(\d{8,})")
_INVALID_KEPT = 1  # failed directories kept for a look; more would fill the disk of who never looks


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint. `step` counts completed steps; `files` maps name -> (bytes, SHA-256)."""

    path: Path
    step: int
    world_size: int
    files: dict[str, tuple[int, str]]

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def shard_name(rank: int) -> str:
    return f"rank-{rank:04d}.shard"


def rank_manifest_name(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def read_manifest(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest and check names and sizes, not contents. Raises InvalidCheckpointError."""
    try:
        raw = json.loads((path / MANIFEST).read_bytes())
        if raw["format"] != FORMAT:
            raise InvalidCheckpointError(f"{path}: format {raw['format']} is not one this version can read")
        files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in raw["files"].items()}
        found = Checkpoint(path, int(raw["step"]), int(raw["world_size"]), files)
        wanted = {name for rank in range(found.world_size) for name in (shard_name(rank), rank_manifest_name(rank))}
        if path.name != step_name(found.step) or files.keys() != wanted:
            raise InvalidCheckpointError(f"{path}: the manifest belongs to another directory")
        for name, (size, _) in files.items():
            if (actual := (path / name).stat().st_size) != size:
                raise InvalidCheckpointError(f"{path / name} has {actual} bytes, the manifest says {size}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidCheckpointError(f"{path}: {type(error).__name__}: {error}") from error
    return found


def verify(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint against its manifest. Raises InvalidCheckpointError."""
    found = read_manifest(path)
    for name, (size, sha256) in found.files.items():
        try:
            actual = hash_file(path / name)
        except OSError as error:
            raise InvalidCheckpointError(f"{path / name}: {error}") from error
        if actual != (size, sha256):
            raise InvalidCheckpointError(f"{path / name} does not match its manifest")
    return found


class Vault:
    """The run's directory as one attempt's rank 0 sees it; other ranks only use the paths."""

    def __init__(self, directory: Path, token: str) -> None:
        self.directory = directory
        self.own = directory / ".everstep"
        self._token = re.sub(r"[^A-Za-z0-9.]", "-", token)
        self._sound: set[str] = set()  # names whose content this process has written or verified
        self._resumed: str | None = None

    def open(self) -> None:
        """Make the directory, and take it over from any older attempt that is still alive. Raises OSError."""
        self.own.mkdir(parents=True, exist_ok=True)
        replace_file(self.own / "owner", self._token.encode())

    def published(self) -> list[tuple[int, str]]:
        """(step, name) of everything with a checkpoint's name, oldest first. Raises OSError."""
        found = [(int(match[1]), name) for name in os.listdir(self.directory) if (match := _NAME.fullmatch(name))]
        return sorted(found)

    def newest_valid(self) -> Checkpoint | None:
        """Verify from the newest down, return the first that is sound; failed ones lose their name. Raises OSError."""
        for _, name in reversed(self.published()):
            try:
                found = verify(self.directory / name)
            except InvalidCheckpointError as error:
                log.warning("not resuming from a damaged checkpoint: %s", error)
                self._rename_away(name, "invalid")
                continue
            self._sound.add(name)
            self._resumed = name
            return found
        return None

    def sweep(self) -> None:
        """Remove what dead attempts left behind: half-written and half-deleted directories, old invalid ones."""
        names = sorted(os.listdir(self.directory))
        invalid = [name for name in names if name.startswith(".invalid-")]
        invalid.sort(key=lambda name: name.rsplit("-", 1)[-1])
        stale = invalid[:-_INVALID_KEPT] + [name for name in names if name.startswith((".tmp-", ".trash-"))]
        for name in stale:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def staging(self, step: int) -> Path:
        """Where the ranks write the checkpoint of `step` before it has its name."""
        return self.directory / f".tmp-{step_name(step)}-{self._token}"

    def publish(self, step: int, reports: dict[int, str], about: dict[str, Any]) -> Checkpoint:
        """Check every rank's manifest and give the staged checkpoint its name; durable when this returns.

        `reports` maps each rank to the SHA-256 of the manifest it says it wrote. Raises InvalidCheckpointError when a
        rank's files are not what it reported, SupersededError when a newer attempt owns the directory, OSError.
        """
        staged = self.staging(step)
        files: dict[str, dict[str, int | str]] = {}
        for rank, reported in sorted(reports.items()):
            name = rank_manifest_name(rank)
            data = (staged / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            manifest = json.loads(data)
            if digest != reported or (manifest["step"], manifest["rank"]) != (step, rank):
                raise InvalidCheckpointError(f"{staged / name} is not the manifest that rank {rank} reported")
            shard = shard_name(rank)
            size, sha256 = int(manifest["size"]), str(manifest["sha256"])
            if (staged / shard).stat().st_size != size:
                raise InvalidCheckpointError(f"{staged / shard} is not as long as rank {rank} reported")
            files |= {name: {"size": len(data), "sha256": digest}, shard: {"size": size, "sha256": sha256}}
        whole = {"format": FORMAT, "step": step, "world_size": len(reports), "launch": self._token, "time": time.time()}
        write_file(staged / MANIFEST, json.dumps(whole | about | {"files": files}, indent=1).encode())
        fsync_directory(staged)
        self._still_owner()
        final = self.directory / step_name(step)
        try:
            os.rename(staged, final)
        except OSError:
            if not final.is_dir():
                raise
            # An older attempt published this very step after we began. What is published is never overwritten.
            found = verify(final)
            self.discard(step)
            self._sound.add(final.name)
            return found
        fsync_directory(self.directory)
        self._sound.add(final.name)
        self._hint(final.name)
        return read_manifest(final)

    def discard(self, step: int) -> None:
        """Remove the staged files of `step`, if any; never raises, a later sweep finds what is left."""
        if self.staging(step).is_dir():
            with contextlib.suppress(OSError):
                self._rename_away(self.staging(step).name, "trash")
        self._empty_trash()

    def retain(self, keep: int) -> list[str]:
        """Delete old checkpoints; returns the names removed. Raises OSError.

        Kept: the newest `keep`, the one resumed from, and whatever else it takes for the two newest sound ones to stay.
        """
        names = [name for _, name in reversed(self.published())]
        removed: list[str] = []
        sound = 0
        for position, name in enumerate(names):
            if position >= keep and sound >= 2 and name != self._resumed:
                self._rename_away(name, "trash")
                removed.append(name)
            elif sound < 2:
                sound += self._is_sound(name)
        self._empty_trash()
        return removed

    def _is_sound(self, name: str) -> bool:
        try:
            check = read_manifest if name in self._sound else verify
            check(self.directory / name)
        except InvalidCheckpointError as error:
            log.warning("a damaged checkpoint is not counted among those to keep: %s", error)
            return False
        self._sound.add(name)
        return True

    def _rename_away(self, name: str, why: str) -> None:
        os.rename(self.directory / name, self.directory / f".{why}-{name.lstrip('.')}-{time.time_ns()}")
        fsync_directory(self.directory)

    def _empty_trash(self) -> None:
        for name in os.listdir(self.directory):
            if name.startswith(".trash-"):
                shutil.rmtree(self.directory / name, ignore_errors=True)

    def _still_owner(self) -> None:
        owner = (self.own / "owner").read_text()
        if owner != self._token:
            raise SupersededError(f"attempt {owner} has taken over {self.directory}: this one no longer saves")

    def _hint(self, name: str) -> None:
        """Tools and people look for `latest`; nothing here ever reads it."""
        with contextlib.suppress(OSError):
            replace_file(self.directory / "latest", f"{name}\n".encode())
