"""Who we are, as the launcher tells it: rank, number of ranks, where rank 0 listens, which attempt of the job."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

# Below Linux' default range of ephemeral ports (32768-60999), so that no client socket happens to sit on ours.
_FIRST_PORT, _PORTS = 20000, 8000


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of one launch.

    `token` is equal on all ranks of one launch and differs between launches: a rank of an older attempt that still
    lives can never join this one.
    """

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    token: str = "single"  # noqa: S105 - names the launch; the secret is a file
    attempt: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size} ranks: check RANK and WORLD_SIZE")


def side_port(token: str) -> int:
    """A port in 20000-27999 that all ranks of one launch derive alike."""
    return _FIRST_PORT + zlib.crc32(token.encode()) % _PORTS


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: `gpu-[1-2,7],x` -> `gpu-1` (zero padding is kept)."""
    head = re.match(r"\s*([^,\[\s]+)(?:\[([^\]]*)\])?([^,\s]*)", nodelist)
    if head is None:
        raise ValueError(f"not a Slurm node list: {nodelist!r}")
    prefix, ranges, suffix = head.groups()
    first = re.split(r"[,-]", ranges, maxsplit=1)[0] if ranges else ""
    return f"{prefix}{first}{suffix}"


def detect(env: Mapping[str, str]) -> World:
    """Read the launcher's variables: torchrun and its like (RANK, WORLD_SIZE) first, then `srun`, else one rank.

    A program that a batch script starts without srun is one rank, whatever SLURM_NTASKS says: only srun sets
    SLURM_STEP_NUM_TASKS. Raises ValueError when a variable is not the number it should be, or says too little.
    """
    job = env.get("SLURM_JOB_ID", "")
    attempt = _number(env, "SLURM_RESTART_COUNT") if job and env.get("SLURM_RESTART_COUNT") else (0 if job else None)
    launch = f"job{job}.{env.get('SLURM_STEP_ID', '')}.{attempt}" if job else "local"
    if "RANK" in env and "WORLD_SIZE" in env:
        elastic = f"{env.get('TORCHELASTIC_RUN_ID', '')}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        token = f"{launch}.{elastic}.{env.get('MASTER_PORT', '')}"
        host = env.get("MASTER_ADDR", "127.0.0.1")
        return World(_number(env, "RANK"), _number(env, "WORLD_SIZE"), host, side_port(token), token, attempt)
    if env.get("RANK", "0") != "0":
        raise ValueError("RANK is set and WORLD_SIZE is not: every rank would take itself for the only one. Set both")
    if "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env:
        rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_STEP_NUM_TASKS")
        host = env.get("MASTER_ADDR") or _slurm_host(env)
        return World(rank, size, host, side_port(launch), launch, attempt)
    return World(token=launch, attempt=attempt)


def _slurm_host(env: Mapping[str, str]) -> str:
    """Where the first rank runs. Without a list of nodes: here; rank 0 writes its addresses to a file, too."""
    try:
        return first_host(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or "")
    except ValueError:
        return "127.0.0.1"


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{name} is {text!r}, not a number: the launcher sets it, and should be left to")
    return int(text)
