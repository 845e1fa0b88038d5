"""When a case is over: on proof only, or when something that accuses nobody has not come back for a day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from everstep.core.correlation.casebook import Case, Casebook, code_of
from everstep.core.health import Gpu

QUIET = 86400.0  # seconds after which a case that accuses nobody is forgotten; its history is not


def with_proof(
    book: Casebook, gpus: Sequence[Gpu], boot_id: str, *, passed: bool, now: float, accuses: Callable[[Case], bool]
) -> Casebook:
    """Takes one answer of the driver and the node's own check in.

    Args:
        gpus: every GPU of the node as the driver reports it now, lost ones marked.
        passed: whether the node's check found nothing wrong in this boot. None of it is proof while False.
        accuses: whether a case takes its node out of service.
    """

    def over(case: Case) -> bool:
        if not accuses(case) and now - case.last_seen > QUIET:
            return True
        return _proved(case, gpus, boot_id, passed)

    return replace(book, cases=tuple(case for case in book.cases if not over(case)))


def _proved(case: Case, gpus: Sequence[Gpu], boot_id: str, passed: bool) -> bool:
    """Another boot in which the check passes and the GPU is well; or the driver asked for a recovery and has had it."""
    if case.boot_id != boot_id:
        return passed and bool(gpus) and all(_well(gpu) for gpu in gpus if _concerns(case, gpu))
    if case.gpu_serial is None or not any(code_of(item) == "xid:154" for item in (case.cause, *case.members)):
        return False
    mine = [gpu for gpu in gpus if _concerns(case, gpu)]
    return passed and bool(mine) and all(_well(gpu) for gpu in mine)


def _concerns(case: Case, gpu: Gpu) -> bool:
    """Whether a GPU's state says something of the case; all do when it names none."""
    return case.gpu_serial is None or gpu.serial in (case.gpu_serial, *case.devices)


def _well(gpu: Gpu) -> bool:
    return not gpu.lost and gpu.recovery_action == "none"
