"""Is this node fit for work, now? What its sources answered, as one verdict for each and one in all.

A source that could not be asked is unknown. Unknown is never fit: it keeps new work away, and kills nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from everstep.core.fault_catalog import Catalog
from everstep.core.faults import classify
from everstep.core.health import Evidence, Fault, Severity, accuses
from everstep.core.plain_text import plain

REASON_LIMIT = 4000  # bytes; a terminal shows less


class Fitness(StrEnum):
    """What a check finds."""

    FIT = "fit"
    UNFIT = "unfit"
    UNKNOWN = "unknown"


EXIT_CODES = {Fitness.FIT: 0, Fitness.UNFIT: 1, Fitness.UNKNOWN: 3}  # 2 is left to wrong usage


@dataclass(frozen=True, slots=True)
class Answer:
    """What one source said.

    Attributes:
        faults: judged by the catalogue, those that accuse nobody included.
        problem: why the source could not be asked; None when it answered.
        remark: what else a reader of the check wants to know of this source.
    """

    source: str
    faults: tuple[Fault, ...] = ()
    problem: str | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one source, or on the whole node, in one word and one sentence, printable and not endless."""

    source: str
    fitness: Fitness
    reason: str
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason, REASON_LIMIT))


def faults_of(catalog: Catalog, reading: Iterable[Evidence]) -> tuple[Fault, ...]:
    """A reading judged by the catalogue, without what is only worth a count."""
    judged = (classify(catalog, evidence) for evidence in reading)
    return tuple(fault for fault in judged if fault.severity is not Severity.INFO)


def finding(answer: Answer) -> Finding:
    """Unfit when a fault accuses the node; else unknown when the source could not be asked; else fit."""
    accusing = [fault for fault in answer.faults if accuses(fault)]
    if accusing:
        return Finding(answer.source, Fitness.UNFIT, "; ".join(map(told, accusing)), answer.faults)
    if answer.problem is not None:
        return Finding(answer.source, Fitness.UNKNOWN, answer.problem, answer.faults)
    reason = answer.remark or "nothing is wrong"
    if answer.faults:
        reason = f"noted, accuses nobody: {'; '.join(map(told, answer.faults))}"
    return Finding(answer.source, Fitness.FIT, reason, answer.faults)


def in_all(findings: Sequence[Finding]) -> Finding:
    """One verdict of all sources. A fault that is certain counts, whatever else could not be asked."""
    unfit = [item for item in findings if item.fitness is Fitness.UNFIT]
    unknown = [item for item in findings if item.fitness is Fitness.UNKNOWN]
    faults = tuple(fault for item in findings for fault in item.faults)
    if unfit:
        return Finding("node", Fitness.UNFIT, "; ".join(dict.fromkeys(item.reason for item in unfit)), faults)
    if unknown:
        why: dict[str, list[str]] = {}
        for item in unknown:
            why.setdefault(item.reason, []).append(item.source)
        reason = "; ".join(f"{', '.join(names)} cannot be asked: {text}" for text, names in why.items())
        return Finding("node", Fitness.UNKNOWN, reason, faults)
    if not findings:
        return Finding("node", Fitness.UNKNOWN, "no source was asked")
    return Finding("node", Fitness.FIT, f"all {len(findings)} sources answer, none accuses the node", faults)


def told(fault: Fault) -> str:
    """A fault in a few words: what it is and on which device."""
    where = f"GPU {fault.gpu_index}" if fault.gpu_index is not None else fault.pci
    return f"{fault.reason} ({where})" if where else fault.reason
