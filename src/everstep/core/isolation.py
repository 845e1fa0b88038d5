"""The node's track: tell people, take the node out of Slurm and Kubernetes, and empty it once its jobs have left."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.actions import Cordon, Evict, LeavePool, SlurmDrain, SlurmForget
from everstep.core.cluster_state import PodView
from everstep.core.draft import OUR_PREFIX, Draft
from everstep.core.foreign import SLURM, decided_by_a_person
from everstep.core.optout import forbidden_by, ignored_on_dead_node
from everstep.core.remediation_status import StepName


def isolate(draft: Draft) -> None:
    """Drain in Slurm (seen, and asserted again on every pass), opt-out check, cordon."""
    if draft.handed_over:
        return
    if draft.status.cancelled:
        return
    _drain_in_slurm(draft)
    if not draft.has(StepName.DRAINED):
        _check_opt_out(draft)
    if draft.has(StepName.OPT_OUT_CHECKED) and not draft.status.left_alone:
        _cordon(draft)


def _drain_in_slurm(draft: Draft) -> None:
    if draft.seen.slurm is None:
        draft.wait(
            f"Slurm cannot be asked ({draft.seen.slurm_error}); nothing is done to the node's jobs until it answers"
        )
        return
    holders = draft.seen.slurm_nodes(draft.spec.node)
    clusters = tuple(sorted({*draft.status.clusters, *(cluster for cluster, _ in holders)}))
    draft.status = replace(draft.status, clusters=clusters)
    fault = draft.spec.faults[0]
    for cluster, node in holders:
        if not node.drained_for_good:
            draft.act(
                SlurmDrain(cluster, node.name, f"{OUR_PREFIX} {fault.kind} {fault.code}, {draft.remediation.name}")
            )
    if all(node.drained_for_good for _, node in holders):
        where = " and ".join(cluster for cluster, _ in holders)
        reason = (
            f"node {draft.spec.node} is drained in Slurm cluster {where}" if where else "no Slurm cluster uses the node"
        )
        draft.step(StepName.ISOLATED, reason)
    else:
        draft.wait(f"the drain of node {draft.spec.node} is not seen in Slurm yet")


def _check_opt_out(draft: Draft) -> None:
    pods, keys, dead = draft.seen.pods, draft.policy.opt_out, draft.node_dead
    if pods is None:
        draft.wait("the pods of the node cannot be listed, so nobody knows whether one forbids the replacement")
        return
    why = forbidden_by(draft.seen.node, pods, keys, node_dead=dead)
    if why and not draft.status.left_alone:
        cordoned = ", which stays cordoned" if draft.has(StepName.CORDONED) else ""
        draft.status = replace(
            draft.status, left_alone=f"{why}: the node is drained in Slurm and otherwise left alone{cordoned}"
        )
    if why:
        reason = f"{why}: the node may not be replaced"
    elif dead and (ignored := ignored_on_dead_node(pods, keys)):
        reason = f"the node is dead, so the label on {', '.join(ignored)} has nothing left to protect"
    else:
        reason = "no label forbids the replacement of the node"
    draft.step(StepName.OPT_OUT_CHECKED, reason)


def _cordon(draft: Draft) -> None:
    if not draft.node_is_ours:
        draft.step(StepName.CORDONED, f"node {draft.spec.node} is gone from Kubernetes")
        return
    node = draft.seen.node
    assert node is not None
    if node.unschedulable:
        draft.step(StepName.CORDONED, f"node {node.name} takes no new pods")
    elif not draft.has(StepName.CORDONED):
        draft.act(Cordon(node.name))
        draft.wait(f"node {node.name} is being cordoned")


def notice_cancellation(draft: Draft) -> None:
    """A person who uncordons the node takes it back; so does one who deletes the record.

    Only while the node is still in its pool: after that the heal is brought to its end, and a deleted record is kept
    until then.
    """
    status, node = draft.status, draft.seen.node
    if status.cancelled or draft.has(StepName.DRAINED) or node is None or not draft.node_is_ours or node.out_of_service:
        return
    if draft.remediation.deleting:
        draft.status = replace(status, cancelled="a person deleted the record")
    elif draft.has(StepName.CORDONED) and not node.unschedulable:
        draft.status = replace(status, cancelled=f"a person uncordoned node {node.name}")


def vacate(draft: Draft) -> None:
    """Out of the pool, then evict what is left; starts when the jobs have left and Slurm says so."""
    if draft.halted or draft.handed_over or not draft.has(StepName.CORDONED) or not draft.has(StepName.ISOLATED):
        return
    if draft.jobs_hold_node:
        draft.wait("the jobs of the node have not left it yet")
        return
    if not draft.node_is_ours:
        draft.step(StepName.DRAINED, f"node {draft.spec.node} is gone from Kubernetes")
        return
    node = draft.seen.node
    assert node is not None
    if node.out_of_service is None:
        draft.act(LeavePool(node.name))
        draft.wait(f"node {node.name} is leaving pool {draft.spec.pool}")
    if draft.has(StepName.DRAINED):
        return
    if draft.node_dead:
        draft.step(StepName.DRAINED, f"node {node.name} is dead: nothing runs there that could be evicted")
        return
    if draft.seen.pods is None:
        draft.wait("the pods of the node cannot be listed")
        return
    staying = [pod for pod in draft.seen.pods if evictable(pod)]
    draft.act(*(Evict(pod) for pod in staying if not pod.terminating))
    if staying:
        draft.wait(f"{len(staying)} pods are leaving node {node.name}")
    else:
        draft.step(StepName.DRAINED, f"no job and no pod is left on node {node.name}")


def evictable(pod: PodView) -> bool:
    """What ``kubectl drain --ignore-daemonsets`` would evict."""
    return not pod.finished and pod.owner_kind not in ("DaemonSet", "Node")


def forget_in_slurm(draft: Draft) -> None:
    """Takes the retired machine's record out of Slurm, once: a machine that comes back registers afresh.

    Not one that a person drained, unless that drain was the reason to replace it: what they decided, they undo.
    """
    if not draft.handed_over or any(key == "forget" for key, _ in draft.status.told) or draft.seen.slurm is None:
        return
    if not draft.machine_is_back:
        asked_for = draft.spec.faults[0].kind == SLURM
        draft.act(
            *(
                SlurmForget(cluster, node.name)
                for cluster, node in draft.seen.slurm_nodes(draft.spec.node)
                if asked_for or not decided_by_a_person(node)
            )
        )
    draft.status = replace(draft.status, told=(*draft.status.told, ("forget", "")))
