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
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .agreement import Message
from .durable import erase, fsync_directory, fsync_file, replace_file, write_file
from .errors import InvalidCheckpointError, SupersededError, UnreadableCheckpointError
from .manifest import (
    FORMAT,
    MANIFEST,
    Checkpoint,
    rank_manifest_name,
    read_manifest,
    read_rank_seconds,
    shard_name,
    step_name,
    verify,
)
from .shard import hash_file, read_shard, write_shard
from .snapshot import Snapshot

log = logging.getLogger("everstep_checkpoint")

_NAME = re.compile(r"step_([0-9]{8,})")
_AGAIN = 1.0  # seconds until a checkpoint that cannot be read is looked at once more
_LOOKS = 3
_LEFT_OVER = re.compile(r"\.[a-z-]+(?:\.json)?\.[0-9]+-[0-9a-f]{8}|hub-[0-9a-f]{16}\.json")
_LEFT_FOR = 86400.0  # seconds
_INVALID_KEPT = 1  # failed directories kept for a look; more would fill the disk of who never looks


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
        try:
            replace_file(self.own / "owner", self._token.encode())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.sweep()  # what fills the disk may be what a dead attempt left
            try:
                replace_file(self.own / "owner", self._token.encode())
            except OSError as still:
                raise OSError(still.errno, os.strerror(still.errno or errno.ENOSPC), str(self.own)) from still

    def published(self) -> list[tuple[int, str]]:
        """(step, name) of everything with a checkpoint's name, oldest first. Raises OSError."""
        found = [(int(match[1]), name) for name in os.listdir(self.directory) if (match := _NAME.fullmatch(name))]
        return sorted(found)

    def newest_valid(self) -> Checkpoint | None:
        """Verify from the newest down, return the first that is sound; failed ones lose their name.

        One that cannot be read is passed over and keeps its name. Raises UnreadableCheckpointError when there are only
        such, for that is no reason to begin anew, and OSError.
        """
        unread: UnreadableCheckpointError | None = None
        for _, name in reversed(self.published()):
            try:
                found = self._verified_in_time(name, looks=_LOOKS if unread is None else 1)
            except UnreadableCheckpointError as error:
                log.warning("passing over a checkpoint, which stays where it is: %s", error)
                unread = unread or error
                continue
            except InvalidCheckpointError as error:
                log.warning("not resuming from a damaged checkpoint: %s", error)
                self._rename_away(name, "invalid")
                continue
            self._sound.add(name)
            self._resumed = name
            return found
        if unread is not None:
            raise unread
        return None

    def _verified_in_time(self, name: str, looks: int) -> Checkpoint:
        for _ in range(looks - 1):
            try:
                return self.verified(name)
            except UnreadableCheckpointError as error:
                log.warning("cannot read a checkpoint, trying again: %s", error)
                time.sleep(_AGAIN)
        return self.verified(name)

    def sweep(self) -> None:
        """Remove what dead attempts left behind: half-written and half-deleted directories, old invalid ones."""
        names = sorted(os.listdir(self.directory))
        invalid = [name for name in names if name.startswith(".invalid-")]
        invalid.sort(key=lambda name: name.rsplit("-", 1)[-1])
        stale = invalid[:-_INVALID_KEPT] + [name for name in names if name.startswith((".tmp-", ".trash-"))]
        for name in stale:
            erase(self.directory / name)
        for folder in (self.directory, self.own):
            self._sweep_small_files(folder)

    def _sweep_small_files(self, folder: Path) -> None:
        """What a process that was killed in `replace_file`, or as rank 0, has left; not what one is just writing."""
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = folder / name
                if _LEFT_OVER.fullmatch(name) and path.lstat().st_mtime < time.time() - _LEFT_FOR:
                    path.unlink()

    def manifest(self, name: str) -> Checkpoint:
        """See `read_manifest`. `name` may come from another rank: it is one, and no way out of the directory."""
        if not _NAME.fullmatch(name):
            raise InvalidCheckpointError(f"{name!r} is not the name of a checkpoint")
        return read_manifest(self.directory / name)

    def verified(self, name: str) -> Checkpoint:
        """See `verify`."""
        return verify(self.directory / name)

    def write_rank(self, step: int, rank: int, snapshot: Snapshot, unwanted: Callable[[], bool]) -> Message:
        """One rank's shard and its manifest, durable when this returns; the report for rank 0.

        Raises OSError, and GivenUpError once `unwanted` says so.
        """
        began, staged = time.monotonic(), self.staging(step)
        staged.mkdir(exist_ok=True)
        try:
            self.check_room(snapshot.bytes)
            size, sha256 = write_shard(staged / shard_name(rank), snapshot, unwanted)
        except BaseException:
            # Rank 0 removes the folder as well, but may have done so before this rank began: nothing is to stay.
            with contextlib.suppress(OSError):
                (staged / shard_name(rank)).unlink(missing_ok=True)
                staged.rmdir()
            raise
        took = round(time.monotonic() - began, 3)
        manifest = json.dumps({"step": step, "rank": rank, "size": size, "sha256": sha256, "seconds": took}).encode()
        write_file(staged / rank_manifest_name(rank), manifest)
        fsync_directory(staged)
        return {"t": "written", "manifest": hashlib.sha256(manifest).hexdigest(), "bytes": size}

    def read_rank(self, found: Checkpoint, rank: int) -> tuple[Any, float | None]:
        """(one rank's state, how many seconds it took to write). Raises InvalidCheckpointError, OSError."""
        name = shard_name(rank)
        captured = read_shard(found.path / name, *found.files[name])
        return captured, read_rank_seconds(found.path / rank_manifest_name(rank))

    def staging(self, step: int) -> Path:
        """Where the ranks write the checkpoint of `step` before it has its name."""
        return self.directory / f".tmp-{step_name(step)}-{self._token}"

    def check_room(self, size: int) -> None:
        """Raises OSError (ENOSPC) when `size` bytes will not fit: known before they are written, not after."""
        if shutil.disk_usage(self.directory).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pin(self, step: int, name: str | None) -> None:
        """Keep the checkpoint of `step`, published or not yet, until somebody removes its pin. Raises OSError."""
        pins = self.own / "pins"
        pins.mkdir(exist_ok=True)
        replace_file(pins / step_name(step), (name or "").encode())

    def pinned(self) -> set[str]:
        """Names of checkpoints that are never deleted. Raises OSError."""
        pins = self.own / "pins"
        return set(os.listdir(pins)) if pins.is_dir() else set()

    def publish(self, step: int, reports: dict[int, str], about: dict[str, Any]) -> Checkpoint:
        """Check every rank's manifest and give the staged checkpoint its name; durable when this returns.

        `reports` maps each rank to the SHA-256 of the manifest it says it wrote. Raises InvalidCheckpointError when a
        rank's files are not what it reported, SupersededError when a newer attempt owns the directory, OSError.
        """
        staged = self.staging(step)
        files: dict[str, dict[str, int | str]] = {}
        for rank, reported in sorted(reports.items()):
            data = (staged / rank_manifest_name(rank)).read_bytes()
            size = (staged / shard_name(rank)).stat().st_size
            files |= self.checked(step, rank, reported, data, size)
        return self._give_name(step, len(reports), about, files)

    def checked(self, step: int, rank: int, reported: str, data: bytes, size: int) -> dict[str, dict[str, int | str]]:
        """One rank's two entries, from its manifest's bytes and its shard's size. Raises InvalidCheckpointError."""
        name, shard = rank_manifest_name(rank), shard_name(rank)
        digest, manifest = hashlib.sha256(data).hexdigest(), json.loads(data)
        if digest != reported or (manifest["step"], manifest["rank"]) != (step, rank):
            raise InvalidCheckpointError(f"{name} of step {step} is not the manifest that rank {rank} reported")
        if size != int(manifest["size"]):
            raise InvalidCheckpointError(f"{shard} of step {step} is not as long as rank {rank} reported")
        sha256 = str(manifest["sha256"])
        return {name: {"size": len(data), "sha256": digest}, shard: {"size": size, "sha256": sha256}}

    def whole(self, step: int, world_size: int, about: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
        """The manifest of a checkpoint."""
        head = {"format": FORMAT, "step": step, "world_size": world_size, "launch": self._token, "time": time.time()}
        return head | about | {"files": files}

    def publish_foreign(self, step: int, world_size: int, about: dict[str, Any]) -> Checkpoint:
        """Publish what the program itself wrote into the staged directory, whatever it is. As `publish`."""
        staged = self.staging(step)
        files: dict[str, dict[str, int | str]] = {}
        if os.path.lexists(staged / MANIFEST):
            raise InvalidCheckpointError(f"{staged / MANIFEST}: this name is taken, call your file something else")
        for path in sorted(staged.rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InvalidCheckpointError(f"{path} is neither a file nor a folder: only those can be verified later")
            if path.is_dir():
                fsync_directory(path)
                continue
            fsync_file(path)
            size, sha256 = hash_file(path)
            files[str(path.relative_to(staged))] = {"size": size, "sha256": sha256}
        if not files:
            raise InvalidCheckpointError(f"{staged} is empty: write the checkpoint there before you commit it")
        return self._give_name(step, world_size, about | {"foreign": True}, files)

    def _give_name(
        self, step: int, world_size: int, about: dict[str, Any], files: dict[str, dict[str, int | str]]
    ) -> Checkpoint:
        staged = self.staging(step)
        write_file(staged / MANIFEST, json.dumps(self.whole(step, world_size, about, files), indent=1).encode())
        fsync_directory(staged)
        self._still_owner()
        final = self.directory / step_name(step)
        try:
            os.rename(staged, final)
        except OSError:
            if not final.is_dir():
                raise
            # An older attempt published this very step after we began. What is published is never overwritten.
            if (found := self._standing(final)) is not None:
                self.discard(step)
                self._sound.add(final.name)
                return found
            os.rename(staged, final)
        fsync_directory(self.directory)
        self._sound.add(final.name)
        self._hint(final.name)
        return read_manifest(final)

    def _standing(self, final: Path) -> Checkpoint | None:
        """What has the name already; None, and the name is free, when it is damaged."""
        try:
            return verify(final)
        except UnreadableCheckpointError:
            raise
        except InvalidCheckpointError as error:
            log.warning("a damaged checkpoint makes way: %s", error)
            self._rename_away(final.name, "invalid")
            return None

    def discard(self, step: int) -> None:
        """Remove the staged files of `step`, if any; never raises, a later sweep finds what is left."""
        if self.staging(step).is_dir():
            with contextlib.suppress(OSError):
                self._rename_away(self.staging(step).name, "trash")
        self._empty_trash()

    def retain(self, keep: int) -> list[str]:
        """Delete old checkpoints; returns the names removed. Raises OSError.

        Kept: the newest `keep`, the one resumed from, the pinned ones (which do not count among `keep`), and whatever
        else it takes for the two newest sound ones to stay.
        """
        pinned = self.pinned()
        names = [name for _, name in reversed(self.published()) if name not in pinned]
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
            check = self.manifest if name in self._sound else self.verified
            check(name)
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
                erase(self.directory / name)

    def _still_owner(self) -> None:
        try:
            owner = (self.own / "owner").read_text(errors="replace")
        except FileNotFoundError:
            owner = ""
        if not owner:  # somebody cleaned up: whoever takes the directory over leaves a name
            self.open()
        elif owner != self._token:
            raise SupersededError(f"attempt {owner} has taken over {self.directory}: this one no longer saves")

    def _hint(self, name: str) -> None:
        """Tools and people look for `latest`; nothing here ever reads it."""
        with contextlib.suppress(OSError):
            replace_file(self.directory / "latest", f"{name}\n".encode())
