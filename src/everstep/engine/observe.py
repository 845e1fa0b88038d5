"""One fresh look at everything that an incident needs, side by side. What could not be asked stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from everstep.core.admission import admit, failing_nodes
from everstep.core.cluster_state import POOL_LABEL, SLURM_CLUSTER_LABEL, NodeView, PodView
from everstep.core.errors import EverstepError, Unreachable
from everstep.core.fleet_incidents import FleetView, fleet_incidents, held_incidents
from everstep.core.foreign import SLURM
from everstep.core.health import NodeReport
from everstep.core.observations import Admission, Observed, OperationSeen, Spare
from everstep.core.policy import Mode, Policy
from everstep.core.remediation_status import JobRecord, Remediation, Stage
from everstep.core.scheduler_state import JobProgress, SchedulerLook, SchedulerSnapshot
from everstep.core.silence import mass_silence
from everstep.engine.sight import Sight
from everstep.engine.world import World

T = TypeVar("T")
PATIENCE = 10.0  # for one read; adapters give up sooner, this bounds a hung one


async def within(call: Awaitable[T], seconds: float = PATIENCE) -> T:
    """The answer, or Unreachable after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as late:
        raise Unreachable(f"no answer within {seconds:.0f} s") from late


async def observe(
    world: World, me: Remediation, fleet: Sequence[Remediation], policy: Policy, sight: Sight
) -> Observed:
    """Raises RetryLater only when the Kubernetes cache cannot be read; everything else is then unknown."""
    nodes, reports = await asyncio.gather(within(world.cluster.nodes()), within(world.cluster.reports()))
    slurm, pods, operation, progress = await asyncio.gather(
        _slurm(world, me, policy), _pods(world, me), _operation(world, me), _progress(world, me)
    )
    look, slurm_error = slurm
    node = next((n for n in nodes if n.name == me.spec.node), None)
    snapshots, silent = _that_concern(me, look, node, pods)
    return Observed(
        node=node,
        pods=pods,
        report=reports.get(me.spec.node),
        slurm=snapshots,
        slurm_error=slurm_error or silent,
        progress=progress,
        spares=_spares(me, nodes, reports),
        operation=operation,
        admission=_admission(world.clock.now(), me, FleetView(nodes, reports, fleet), policy, sight),
        failing=failing_nodes(me, fleet),
    )


def _admission(now: float, me: Remediation, view: FleetView, policy: Policy, sight: Sight) -> Admission:
    if me.status.stage not in (Stage.PENDING, Stage.ADMITTED):
        return Admission(True)
    held: dict[str, str] = {}
    if me.status.stage is Stage.PENDING:
        foreign = sight.foreign(now, view.nodes, policy)
        shared = fleet_incidents(now, replace(view, look=sight.look(now), foreign=foreign), policy)
        held = held_incidents(shared, (r for r in view.known if r.status.stage is Stage.PENDING))
    return admit(now, me, view.known, policy, mass_silence(now, view.nodes, view.reports, policy), held)


async def _slurm(world: World, me: Remediation, policy: Policy) -> tuple[SchedulerLook | None, str]:
    waits = me.status.stage is Stage.PENDING and policy.mode is not Mode.DRY_RUN and me.spec.faults[0].kind != SLURM
    if me.status.resolved or waits:
        return None, "not asked"  # nothing that is decided now depends on it
    try:
        return await within(world.scheduler.snapshots()), ""
    except EverstepError as error:
        return None, str(error)


def _that_concern(
    me: Remediation, look: SchedulerLook | None, node: NodeView | None, pods: Sequence[PodView] | None
) -> tuple[tuple[SchedulerSnapshot, ...] | None, str]:
    """The clusters that answered; None and why while one is silent that may have jobs on the node."""
    if look is None:
        return None, ""
    labels = {**(node.labels if node else {}), POOL_LABEL: me.spec.pool}  # it was in the pool when it broke
    here = {f"{pod.namespace}/{pod.labels.get(SLURM_CLUSTER_LABEL)}" for pod in pods or ()}
    known = here | set(me.status.clusters) | {job.cluster for job in me.status.jobs}
    for cluster in look.silent:
        if cluster.cluster in known or cluster.may_hold(me.spec.node, labels):
            return None, cluster.why
    return look.answered, ""


async def _pods(world: World, me: Remediation) -> tuple[PodView, ...] | None:
    try:
        return tuple(await within(world.cluster.pods_on(me.spec.node)))
    except EverstepError:
        return None


async def _operation(world: World, me: Remediation) -> OperationSeen:
    mark = me.status.operation
    if mark is None or mark.acknowledged_at is not None:
        return OperationSeen()
    try:
        return OperationSeen(asked=True, operation=await within(world.provider.operation(mark.id)))
    except EverstepError as error:
        return OperationSeen(error=str(error))


async def _progress(world: World, me: Remediation) -> Mapping[tuple[str, str], JobProgress]:
    """Only of jobs on their way: that is when their records matter."""
    jobs = [job for job in me.status.jobs if job.asked_at is not None and not job.settled]
    read = await asyncio.gather(*(_progress_of(world, job) for job in jobs))
    return {(job.cluster, job.id): progress for job, progress in zip(jobs, read, strict=True) if progress is not None}


async def _progress_of(world: World, job: JobRecord) -> JobProgress | None:
    try:
        return await within(world.scheduler.progress(job.cluster, job.id, job.user))
    except EverstepError:
        return None


def _spares(me: Remediation, nodes: Sequence[NodeView], reports: Mapping[str, NodeReport]) -> Mapping[str, Spare]:
    taken = {me.status.replacement.node} if me.status.replacement else set()
    ours = taken | set(me.status.rejected_spares)
    return {
        node.name: Spare(node, reports.get(node.name))
        for node in nodes
        if node.name in ours or node.spare_for == me.spec.pool or node.claimed_by == me.name
    }
