"""A real Slurm cluster in the hands of a contract test, through whatever runs commands on one of its machines."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from everstep.core.errors import Refused
from everstep.ports import Scheduler
from everstep.testing.slurm_training import JobSpec

Shell = Callable[[Sequence[str]], Awaitable[str]]

# The direct task of srun traps SIGTERM itself: a shell between them would die of it and take the task along.
_TASK = """trap 'sleep {save}; exit {code}' TERM
for i in $(seq {ticks}); do sleep 0.1; done
exit {code}"""
_DEAF_TASK = "trap '' TERM; for i in $(seq {ticks}); do sleep 0.1; done"
_FOR_EVER = 100_000


@dataclass(slots=True)
class RealSlurm:
    """Implements :class:`everstep.testing.slurm_world.SlurmWorld`.

    Attributes:
        shell: runs an argument list where sbatch, scancel and scontrol work with administrator's rights, and returns
            what it printed; raises when it fails.
        width: nodes of each job; twice as many must be idle.
        off, on: cut a node's power, and give it back.
    """

    scheduler: Scheduler
    cluster: str
    kill_wait: float
    shell: Shell
    off: Callable[[str], Awaitable[None]]
    on: Callable[[str], Awaitable[None]]
    width: int = 2

    def now(self) -> float:
        return time.time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def submit(self, spec: JobSpec) -> str:
        arguments = ["sbatch", "--parsable", "--output=/dev/null", f"--job-name={spec.name}", f"--nodes={spec.nodes}"]
        arguments += ["--ntasks-per-node=1", f"--gpus-per-node={spec.gpus_per_node}", "--chdir=/tmp"]
        if not spec.requeue:
            arguments.append("--no-requeue")
        elif spec.expedite:
            arguments.append("--requeue=expedite")
        # One word, so that it survives any number of shells on its way.
        script = base64.b64encode(_task(spec).encode()).decode()
        arguments.append(f'--wrap=exec srun bash -c "$(echo {script} | base64 -d)"')
        try:
            return (await self.shell(arguments)).strip().split(";")[0]
        except Exception as error:
            if spec.expedite:  # unknown before 26.05, and off unless enable_expedited_requeue is set
                raise Refused(f"sbatch --requeue=expedite: {error}") from None
            raise

    async def cancel(self, job: str) -> None:
        await self.shell(["scancel", job])

    async def power_off(self, node: str) -> None:
        await self.off(node)

    async def power_on(self, node: str) -> None:
        await self.on(node)

    async def drain_by_hand(self, node: str, reason: str) -> None:
        await self.shell(["scontrol", "update", f"nodename={node}", "state=DRAIN", f"reason={reason}"])


def _task(spec: JobSpec) -> str:
    steps = spec.total_steps or _FOR_EVER
    if not spec.heeds_sigterm:
        return _DEAF_TASK.format(ticks=steps)
    return _TASK.format(save=spec.save_seconds, code=spec.exit_code, ticks=steps)
