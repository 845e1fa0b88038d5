"""When a case is over: on proof only, or when something that accuses nobody has not come back for a day."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from everstep.core.correlation.casebook import Case, Casebook, code_of
from everstep.core.health import Gpu

QUIET = 86400.0  # seconds after which a case that accuses nobody is forgotten; its history is not
ASKED_AFTER = 5.0  # seconds from the last line to the question that may end its case: the driver marks the GPU late

Mark = tuple[str, str]  # ``kind:code`` and device


@dataclass(frozen=True, slots=True)
class Answer:
    """What the driver and the node's own check say now.

    Attributes:
        gpus: every GPU of the node as the driver reports it, lost ones marked.
        boot_id: this boot.
        asked_at: Unix seconds at which the driver was asked.
        passed: whether the node's check finds nothing wrong. While False, none of it is proof.
        shown: states that are there now; what lasts is not forgotten, however long ago it began.
    """

    gpus: Sequence[Gpu]
    boot_id: str
    asked_at: float
    passed: bool
    shown: Set[Mark] = frozenset()


def with_proof(book: Casebook, answer: Answer, now: float, accuses: Callable[[Case], bool]) -> Casebook:
    """Without the cases that are over by this answer.

    Args:
        accuses: whether a case takes its node out of service.
    """

    def over(case: Case) -> bool:
        if now - case.last_seen > QUIET and not is_shown(case, answer.shown) and not accuses(case):
            return True
        return answer.passed and _proved(case, answer)

    left = tuple(case for case in book.cases if not over(case))
    return book if len(left) == len(book.cases) else replace(book, cases=left)


def without_states(book: Casebook, source: str, shown: Set[Mark]) -> Casebook:
    """Without the states of ``source`` that are not among ``shown`` any more.

    A case that lines tell of too, under another code, does not end like that: they never take themselves back.
    """
    cases: list[Case] = []
    for case in book.cases:
        if case.source != source or case.members:
            cases.append(case)
        elif left := tuple(device for device in case.devices if (case.code, device) in shown):
            cases.append(case if left == case.devices else replace(case, devices=left))
    return replace(book, cases=tuple(cases))


def is_shown(case: Case, shown: Set[Mark]) -> bool:
    """Whether the cause of a case is among the states that are there now."""
    return any((case.code, device) in shown for device in case.devices)


def _proved(case: Case, answer: Answer) -> bool:
    """Another boot in which the GPU is well; or the driver asked for a recovery and has had it."""
    mine = [gpu for gpu in answer.gpus if _concerns(case, gpu)]
    well = all(_well(gpu) for gpu in mine)
    if is_shown(case, answer.shown):
        return False
    if case.boot_id != answer.boot_id:
        return well and bool(answer.gpus)
    asked = any(code_of(item) == "xid:154" for item in (case.cause, *case.members))
    late = answer.asked_at - case.last_seen >= ASKED_AFTER
    return asked and late and well and bool(mine) and case.gpu_serial is not None


def _concerns(case: Case, gpu: Gpu) -> bool:
    """Whether a GPU's state says something of the case; all do when it names none."""
    return case.gpu_serial is None or gpu.serial in (case.gpu_serial, *case.devices)


def _well(gpu: Gpu) -> bool:
    return not gpu.lost and gpu.recovery_action == "none"
