"""The replacement's track: claim a spare, prove it before any work can land on it, put it into service."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.actions import ClaimSpare, JoinPool, LeavePool, SlurmResume
from everstep.core.cluster_state import NodeView
from everstep.core.draft import OUR_PREFIX, Draft
from everstep.core.foreign import foreign_faults
from everstep.core.health import Verdict
from everstep.core.observations import Spare
from everstep.core.remediation_status import Replacement, StepName


def replace_node(draft: Draft) -> None:
    """One pass of the track; it runs beside the jobs' saving."""
    _put_rejected_away(draft)
    if draft.halted or not draft.has(StepName.CORDONED):
        return
    if draft.status.replacement is None and not _take(draft):
        return
    taken = draft.status.replacement
    assert taken is not None
    spare = draft.seen.spares.get(taken.node)
    if taken.in_service_at is None:
        if spare is None:
            _reject(draft, f"spare {taken.node} has vanished")
            return
        _bring_in(draft, taken, spare)
    _record_replaced(draft)


def _put_rejected_away(draft: Draft) -> None:
    for name in draft.status.rejected_spares:
        spare = draft.seen.spares.get(name)
        if spare and spare.node.claimed_by == draft.remediation.name:
            draft.act(LeavePool(name))


def _take(draft: Draft) -> bool:
    candidates = [s for s in draft.seen.spares.values() if _eligible(draft, s)]
    if not candidates:
        draft.wait(f"no healthy spare of pool {draft.spec.pool} is free: the node is replaced when one appears")
        if draft.now - (draft.status.admitted_at or draft.now) > draft.policy.spare_deadline:
            draft.stuck(f"no spare of pool {draft.spec.pool} appeared in {draft.policy.spare_deadline:.0f} s")
        return False
    best = min(candidates, key=lambda s: (s.node.claimed_by is None, s.node.name))
    draft.status = replace(draft.status, replacement=Replacement(best.node.name, draft.now))
    return True


def _eligible(draft: Draft, spare: Spare) -> bool:
    node = spare.node
    same_machine = node.name == draft.spec.node and node.boot_id == draft.spec.boot_id
    return (
        node.spare_for == draft.spec.pool
        and node.claimed_by in (None, draft.remediation.name)
        and node.name not in draft.status.rejected_spares
        and not same_machine
        and not _fault_of(draft, spare)
        and not (node.unschedulable and node.out_of_service is None)  # a person's cordon; ours comes with the label
    )


def _fault_of(draft: Draft, spare: Spare) -> str:
    """Why the spare cannot be trusted with work now, in one sentence; "" when everything is proven."""
    node, report, need = spare.node, spare.report, draft.spec.gpus
    if node.ready is not True:
        return f"Kubernetes does not report node {node.name} as Ready"
    if report is None or report.verdict is not Verdict.HEALTHY:
        said = report.reason or str(report.verdict) if report else "it has said nothing"
        return f"the agent of node {node.name} does not call it healthy ({said})"
    if report.boot_id and node.boot_id and report.boot_id != node.boot_id:
        return f"the agent of node {node.name} has not reported since its last boot"
    if report.heartbeat is None or draft.now - report.heartbeat > draft.policy.heartbeat_fresh:
        return f"the heartbeat of node {node.name}'s agent is not fresh"
    if foreign := foreign_faults(draft.now, node, draft.policy):
        return foreign[0].reason
    if not node.gpus_allocatable == node.gpus_capacity == need:
        return f"node {node.name} offers {node.gpus_allocatable} of {node.gpus_capacity} GPUs, and {need} are needed"
    return ""


def _bring_in(draft: Draft, taken: Replacement, spare: Spare) -> None:
    node = spare.node
    joined = node.pool == draft.spec.pool and node.spare_for is None
    if node.claimed_by not in (None, draft.remediation.name) or (joined and taken.validated_at is None):
        draft.status = replace(draft.status, replacement=None)
        draft.wait(f"spare {node.name} was taken by somebody else; another one is looked for")
        return
    fault = _fault_of(draft, spare)
    if draft.now - taken.since > draft.policy.validate_deadline:
        _reject(draft, fault or f"spare {node.name} did not come into service")
    elif spare.report and spare.report.verdict is Verdict.FAULTY:
        _reject(draft, fault)
    elif joined:
        _await_service(draft, taken, node)
    elif node.claimed_by is None:
        draft.act(ClaimSpare(node.name))
        draft.wait(f"spare {node.name} is being claimed")
    elif fault:
        draft.wait(fault)
    else:
        validated = replace(taken, validated_at=taken.validated_at or draft.now)
        draft.status = replace(draft.status, replacement=validated)
        proof = f"node {node.name} is Ready, its agent calls it healthy, and all {draft.spec.gpus} GPUs are offered"
        draft.step(StepName.VALIDATED, proof)
        draft.act(JoinPool(node.name, draft.spec.pool))
        draft.wait(f"node {node.name} is joining pool {draft.spec.pool}")


def _await_service(draft: Draft, taken: Replacement, node: NodeView) -> None:
    """In Kubernetes it is in the pool; in every Slurm that used the old node it must answer and take work."""
    if draft.seen.slurm is None:
        draft.wait(f"Slurm cannot be asked whether node {node.name} is in service")
        return
    known = dict(draft.seen.slurm_nodes(node.name))
    for cluster in draft.status.clusters:
        slurm = known.get(cluster)
        if slurm is None or not slurm.responding:
            draft.wait(f"node {node.name} has not registered with Slurm cluster {cluster} yet")
            return
        if slurm.drained_for_good:
            if slurm.reason.startswith(OUR_PREFIX):  # left from an earlier life of the same machine
                draft.act(SlurmResume(cluster, node.name))
            draft.wait(f"node {node.name} is drained in Slurm cluster {cluster} ({slurm.reason})")
            return
    draft.status = replace(draft.status, replacement=replace(taken, in_service_at=draft.now))


def _record_replaced(draft: Draft) -> None:
    taken, node = draft.status.replacement, draft.seen.node
    if taken is None or taken.in_service_at is None:
        return
    left = not draft.node_is_ours or (node is not None and node.out_of_service is not None)
    if left:
        draft.step(
            StepName.REPLACED,
            f"node {taken.node} is in service in pool {draft.spec.pool} in place of {draft.spec.node}",
        )


def _reject(draft: Draft, why: str) -> None:
    taken = draft.status.replacement
    assert taken is not None
    rejected = (*draft.status.rejected_spares, taken.node)
    draft.status = replace(draft.status, replacement=None, rejected_spares=rejected)
    draft.act(LeavePool(taken.node))
    draft.wait(f"spare {taken.node} is put aside: {why}")
    if len(rejected) >= draft.policy.max_spares:
        draft.stuck(f"{len(rejected)} spares failed their checks, the last because {why}")
