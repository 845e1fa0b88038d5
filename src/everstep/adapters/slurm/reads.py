"""What Slurm says now: one job, one node, or everything at one moment."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from everstep.adapters.slurm.cli import Commands
from everstep.core.errors import NotFound, RetryLater
from everstep.core.scheduler_state import SchedulerSnapshot, SlurmNode
from everstep.core.slurm_text import JobRecord, job_format, parse_jobs, parse_nodes, parse_version

# The controller can be upgraded under a running gateway; a minute is soon enough to notice.
_VERSION_SECONDS = 60.0
# Seconds. A client whose connection breaks says so at once; one that finds no controller, after 9 s.
_AT_ONCE = 1.0


@dataclass(slots=True)
class SlurmReads:
    """Reads of one Slurm cluster; every method raises Unreachable when it could not be asked."""

    commands: Commands
    now: Callable[[], float] = time.time
    _version: str = field(default="", init=False)
    _version_at: float = field(default=float("-inf"), init=False)

    async def version(self) -> str:
        """The controller's version, such as ``24.11.5``."""
        if self.now() - self._version_at > _VERSION_SECONDS:
            self._version = parse_version(await self._ask("scontrol", "show", "config"))
            self._version_at = self.now()
        return self._version

    async def snapshot(self, cluster: str) -> SchedulerSnapshot:
        """All nodes and jobs; finished jobs too, for as long as Slurm remembers them (MinJobAge)."""
        taken_at = self.now()
        nodes, jobs, version = await asyncio.gather(
            self._ask("scontrol", "-a", "show", "node", "-d", "-o"), self._jobs(), self.version()
        )
        return SchedulerSnapshot(
            cluster=cluster,
            version=version,
            taken_at=taken_at,
            nodes=parse_nodes(nodes),
            jobs=tuple(record.job for record in jobs),
        )

    async def job(self, job_id: str) -> JobRecord:
        """Raises NotFound when Slurm says that it does not know the id."""
        # squeue -j 17 also lists the elements of the array 17.
        with contextlib.suppress(NotFound):
            for record in await self._jobs("-j", job_id):
                if record.job.id == job_id:
                    return record
        raise NotFound(f"Slurm does not know job {job_id}")

    async def node(self, name: str) -> SlurmNode:
        """Raises NotFound when Slurm says that it does not know the node."""
        with contextlib.suppress(NotFound):
            for node in parse_nodes(await self._ask("scontrol", "-a", "show", "node", name, "-d", "-o")):
                if node.name == name:
                    return node
        raise NotFound(f"Slurm does not know node {name}")

    async def _jobs(self, *selection: str) -> tuple[JobRecord, ...]:
        word = secrets.token_hex(8)
        text = await self._ask("squeue", "-a", "-h", "-t", "all", *selection, "-O", job_format(word))
        return parse_jobs(text, word)

    async def _ask(self, program: str, *arguments: str) -> str:
        """Once more where the answer broke off at once: of a snapshot's many connections, one may break at any time."""
        began = time.monotonic()
        try:
            return await self.commands.run(program, *arguments)
        except RetryLater:
            if time.monotonic() - began > _AT_ONCE:
                raise
        return await self.commands.run(program, *arguments)
