"""FakeScheduler: the Scheduler port over models of Slurm. The guarded operations are the gateway's own code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from everstep.adapters.slurm.operations import SlurmOperations
from everstep.core.errors import InvalidInput, NotFound, Unreachable
from everstep.core.scheduler_state import JobProgress, SchedulerLook, SchedulerSnapshot, SilentCluster, SlurmNode
from everstep.core.slurm_names import MAX_MESSAGE, MAX_REASON, job_id, node_name, one_line
from everstep.core.slurm_text import JobRecord
from everstep.testing.slurm_model import SlurmModel


class FakeScheduler:
    """Implements :class:`everstep.ports.Scheduler`.

    Args:
        models: one for each Slurm cluster; tests break and steer them directly.
        sleep: of the same clock as the models' ``now``.

    A cluster may hold any node, unless ``add`` said which.
    """

    def __init__(self, *models: SlurmModel, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._models = {model.cluster: model for model in models}
        self._sleep = sleep
        self._nodes: dict[str, frozenset[str]] = {}
        self._pools: dict[str, tuple[Mapping[str, str], ...]] = {}

    def add(self, model: SlurmModel, *pools: Mapping[str, str]) -> None:
        """One more Slurm cluster, whose pools take the nodes with these labels."""
        self._models[model.cluster] = model
        self._pools[model.cluster] = pools

    async def snapshots(self) -> SchedulerLook:
        answered: list[SchedulerSnapshot] = []
        silent: list[SilentCluster] = []
        for name, model in self._models.items():
            try:
                answered.append(model.snapshot())
                self._nodes[name] = frozenset(model.nodes)
            except Unreachable as why:
                known = self._nodes.get(name, frozenset())
                silent.append(SilentCluster(name, str(why), known, self._pools.get(name)))
        return SchedulerLook(tuple(answered), tuple(silent))

    async def progress(self, cluster: str, job: str, user: str) -> JobProgress:
        model = self._model(cluster)
        model.read()
        found = model.jobs.get(job_id(job))
        if found is None or found.spec.user != user:
            return JobProgress(job)
        return JobProgress(job, found.training.seen_at(model.now()))

    async def drain(self, cluster: str, node: str, reason: str) -> None:
        await self._on(cluster).drain(node_name(node), one_line(reason, "reason", MAX_REASON))

    async def down(self, cluster: str, node: str, reason: str) -> None:
        await self._on(cluster).down(node_name(node), one_line(reason, "reason", MAX_REASON))

    async def resume(self, cluster: str, node: str, reason_prefix: str) -> None:
        await self._on(cluster).resume(node_name(node), one_line(reason_prefix, "reason prefix", MAX_REASON))

    async def forget(self, cluster: str, node: str) -> None:
        await self._on(cluster).forget(node_name(node))

    async def requeue(self, cluster: str, job: str, restarts: int) -> None:
        await self._on(cluster).requeue(job_id(job), restarts)

    async def hold(self, cluster: str, job: str, restarts: int) -> None:
        await self._on(cluster).hold(job_id(job), restarts)

    async def clear_stale_allocation(self, cluster: str, job: str, restarts: int) -> None:
        await self._on(cluster).clear_stale_allocation(job_id(job), restarts)

    async def release(self, cluster: str, job: str, restarts: int) -> None:
        await self._on(cluster).release(job_id(job), restarts)

    async def tell(self, cluster: str, job: str, message: str) -> None:
        await self._on(cluster).tell(job_id(job), one_line(message, "message", MAX_MESSAGE))

    def _model(self, cluster: str) -> SlurmModel:
        model = self._models.get(cluster)
        if model is None:
            raise NotFound(f"there is no Slurm cluster {cluster}")
        return model

    def _on(self, cluster: str) -> SlurmOperations:
        model = self._model(cluster)
        return SlurmOperations(ModelCommands(model), ModelReads(model), model.now, self._sleep)


class ModelReads:
    """What the operations read of a model."""

    def __init__(self, model: SlurmModel) -> None:
        self._model = model

    async def version(self) -> str:
        self._model.read()
        return self._model.version

    async def job(self, job_id: str) -> JobRecord:
        self._model.read()
        return self._model.record(job_id)

    async def node(self, name: str) -> SlurmNode:
        self._model.read()
        node = self._model.nodes.get(name)
        if node is None:
            raise NotFound(f"Slurm does not know node {name}")
        return self._model.node_view(node)


class ModelCommands:
    """The few commands that the operations run, applied to a model."""

    def __init__(self, model: SlurmModel) -> None:
        self._model = model

    async def run(self, program: str, *arguments: str) -> str:
        """Raises InvalidInput for a command that the model does not know: the fake never agrees by accident."""
        self._model.read()
        match (program, *arguments):
            case ("scontrol", "update", target, *changes):
                self._update(target, dict(change.split("=", 1) for change in changes))
            case ("scontrol", "delete", target) if target.startswith("nodename="):
                self._model.delete_node(target.removeprefix("nodename="))
            case ("scontrol", "requeuehold", job):
                self._model.requeue_held(job)
            case ("scontrol", "hold", job):
                self._model.hold(job)
            case ("scontrol", "release", job):
                self._model.release(job)
            case ("scontrol", "notify", job, message):
                self._model.told.append((job, message))
            case ("scancel", job):
                self._model.cancel(job)
            case other:
                raise InvalidInput(f"the model of Slurm knows no command {other}")
        return ""

    def _update(self, target: str, changes: dict[str, str]) -> None:
        kind, _, name = target.partition("=")
        match kind, changes:
            case "nodename", {"state": state}:
                self._model.update_node(name, state, changes.get("reason", ""))
            case "jobid", {"Requeue": "1"}:
                self._model.set_requeue(name)
            case "jobid", {"StartTime": "now"}:
                self._model.start_now(name)
            case _:
                raise InvalidInput(f"the model of Slurm knows no change {changes} of {target}")
