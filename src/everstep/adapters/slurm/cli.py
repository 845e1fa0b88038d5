"""The one transport to Slurm: its command line, as argument lists, bounded in time and output.

A Slurm of any release from 22.05 on understands these commands in the same words; its REST interface has no node update
in 22.05 and no requeue before 26.05.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from everstep.core.errors import Unreachable
from everstep.core.slurm_text import error_of

# 5,000 nodes print 3 MB; a hundred thousand would still fit.
OUTPUT_LIMIT = 64 * 1024 * 1024
ERROR_LIMIT = 64 * 1024
# A client that finds no controller gives up by itself after 9 s; the callers of the gateway wait for 10 s.
TIMEOUT_SECONDS = 8.0


class Commands(Protocol):
    """Whoever runs scontrol, squeue and scancel: the real programs, or a model of Slurm in tests."""

    async def run(self, program: str, *arguments: str) -> str: ...


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """Runs scontrol, squeue and scancel of one Slurm cluster.

    Attributes:
        conf: the slurm.conf to use; five lines are enough (ClusterName, SlurmctldHost, SlurmctldPort, AuthType,
            AuthAltTypes=auth/jwt).
        token: yields a Slurm token; it goes into the child's environment only, never into its arguments.
        path: where the programs are looked up.
    """

    conf: Path
    token: Callable[[], str]
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    timeout: float = TIMEOUT_SECONDS

    async def run(self, program: str, *arguments: str) -> str:
        """Standard output of a command that succeeded; otherwise the typed error of :func:`error_of`.

        Raises Unreachable when it cannot be started, takes too long or prints too much.
        """
        # The environment is built from nothing: SQUEUE_* and SLURM_* of the caller would change what is printed.
        environment = {
            "PATH": self.path,
            "SLURM_CONF": str(self.conf),
            "SLURM_JWT": self.token(),
            "SLURM_TIME_FORMAT": "%s",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        name = " ".join([program, *[a for a in arguments if a[0] != "-"][:1]])
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            raise Unreachable(f"cannot run {program}: {error.strerror}") from None
        try:
            async with asyncio.timeout(self.timeout):
                output, errors = await _read_all(process, name)
                code = await process.wait()
        except TimeoutError:
            raise Unreachable(f"{name}: no answer from Slurm within {self.timeout:g} s") from None
        finally:
            await _end(process)
        if code != 0:
            raise error_of(name, errors.decode(errors="replace") + output.decode(errors="replace"))
        return output.decode(errors="replace")


async def _read_all(process: asyncio.subprocess.Process, name: str) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_read(process.stdout, OUTPUT_LIMIT))
        errors = group.create_task(_read(process.stderr, ERROR_LIMIT))
    if len(output.result()) > OUTPUT_LIMIT:
        raise Unreachable(f"{name} printed more than {OUTPUT_LIMIT} bytes")
    return output.result(), errors.result()[:ERROR_LIMIT]


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Keeps one byte more than the limit, so that the caller sees the overflow; reads on so the child never blocks."""
    kept = bytearray()
    while chunk := await stream.read(256 * 1024):
        kept += chunk[: max(0, limit + 1 - len(kept))]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
