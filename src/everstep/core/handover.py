"""The machine's track: hand the empty, faulty machine to its provider, exactly once.

The dispatch mark is persisted before the request is sent. Whatever happens afterwards, the provider is asked about the
mark's id: known = done; "I do not know it" = send (again); no answer = wait, and call a person rather than repeat.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.core.actions import RetireMachine
from everstep.core.draft import Draft
from everstep.core.machine_state import OperationState
from everstep.core.remediation_status import OperationMark, StepName


def hand_over(draft: Draft) -> None:
    """One pass of the track; also runs on when a person is called for another reason, to learn how it ended."""
    mark = draft.status.operation
    if mark is None:
        if _may_start(draft):
            draft.status = replace(
                draft.status, operation=OperationMark(f"{draft.remediation.uid}-retire", draft.spec.machine, draft.now)
            )
            draft.wait(f"machine {draft.spec.machine} is about to be handed to its provider")
        return
    if mark.acknowledged_at is not None:
        return
    seen = draft.seen.operation
    if seen.asked and seen.operation is not None:
        state = seen.operation.state
        known = replace(mark, state=state.value, acknowledged_at=draft.now)
        if state.ended:
            known = replace(known, ended_at=draft.now, message=seen.operation.message)
        draft.status = replace(draft.status, operation=known)
        if state is OperationState.FAILED:
            draft.stuck(
                f"the provider could not take machine {mark.machine}: {seen.operation.message or 'no reason given'}"
            )
        return
    if seen.asked and not draft.halted and _still_empty(draft):
        draft.act(RetireMachine(mark.id, mark.machine))
    why = seen.error or "it has not acknowledged the request"
    draft.wait(f"machine {mark.machine} is being handed to its provider")
    if draft.now - mark.marked_at > draft.policy.retire_deadline:
        draft.stuck(f"nobody can tell whether the provider took machine {mark.machine} ({why}); it is not asked again")


def _may_start(draft: Draft) -> bool:
    node = draft.seen.node
    left = not draft.node_is_ours or (node is not None and node.out_of_service is not None)
    return draft.has(StepName.DRAINED) and left and not draft.halted and _still_empty(draft)


def _still_empty(draft: Draft) -> bool:
    """Slurm was asked in this very pass and has no job there."""
    return not draft.jobs_hold_node
