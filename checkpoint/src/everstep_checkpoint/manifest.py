"""What a checkpoint says of itself, and whether that is so: names, sizes and SHA-256 of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InvalidCheckpointError
from .reading import problem, read_own, read_plain
from .shard import hash_file

MANIFEST = "MANIFEST.json"
FORMAT = 1
MALFORMED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)  # a manifest, to Python
_END_OF_TIME = 253_402_300_800  # Unix seconds of the year 10000, which Python's calendar does not have


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint. `step` counts completed steps; `files` maps name -> (bytes, SHA-256).

    `foreign` says that the program wrote the files itself (see `attach`): their names and content are its affair.
    """

    path: Path
    step: int
    world_size: int
    files: dict[str, tuple[int, str]]
    foreign: bool = False
    name: str | None = None
    saved_at: float | None = None  # Unix seconds

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def shard_name(rank: int) -> str:
    return f"rank-{rank:04d}.shard"


def rank_manifest_name(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def read_rank_seconds(path: Path) -> float | None:
    """How long the rank took to write, from its manifest; None when that does not say."""
    try:
        seconds = float(json.loads(read_plain(path))["seconds"])
    except (OSError, *MALFORMED):
        return None
    return seconds if seconds > 0 else None


def step_name(step: int) -> str:
    return f"step_{step:08d}"


def parse_manifest(path: Path, raw: Any) -> Checkpoint:
    """Raises InvalidCheckpointError for a manifest of something else, and what a malformed one makes Python raise."""
    if raw["format"] != FORMAT:
        raise InvalidCheckpointError(f"{path}: format {raw['format']} is not one this version can read")
    files = {str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in raw["files"].items()}
    name, saved_at = raw.get("name"), _moment(raw.get("time"))
    step, size, foreign = int(raw["step"]), int(raw["world_size"]), bool(raw.get("foreign", False))
    if path.name != step_name(step) or size < 1:
        raise InvalidCheckpointError(f"{path}: the manifest belongs to another directory")
    if foreign:
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise InvalidCheckpointError(f"{path}: the manifest names files of another directory")
    elif len(files) != 2 * size or any(
        name not in files for rank in range(size) for name in (shard_name(rank), rank_manifest_name(rank))
    ):
        raise InvalidCheckpointError(f"{path}: the manifest does not name the files of {size} ranks")
    return Checkpoint(path, step, size, files, foreign, str(name) if name else None, saved_at)


def _moment(value: Any) -> float | None:
    """Unix seconds that a calendar has, or None."""
    return float(value) if isinstance(value, int | float) and 0 < value < _END_OF_TIME else None


def read_manifest(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest and check names and sizes, not contents.

    Raises InvalidCheckpointError, or its kind UnreadableCheckpointError when nothing is known.
    """
    try:
        found = parse_manifest(path, json.loads(read_own(path / MANIFEST)))
        for name, (size, _) in found.files.items():
            if (actual := (path / name).stat().st_size) != size:
                raise InvalidCheckpointError(f"{path / name} has {actual} bytes, the manifest says {size}")
    except (OSError, *MALFORMED) as error:
        raise problem(path, error) from error
    return found


def verify(path: Path) -> Checkpoint:
    """Check every byte of a checkpoint against its manifest. Raises as `read_manifest`."""
    found = read_manifest(path)
    for name, (size, sha256) in found.files.items():
        try:
            actual = hash_file(path / name)
        except OSError as error:
            raise problem(path / name, error) from error
        if actual != (size, sha256):
            raise InvalidCheckpointError(f"{path / name} does not match its manifest")
    return found
