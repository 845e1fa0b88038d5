"""What a batch of records says several times, said once with a count. A storm of one fault then costs one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from everstep.core.correlation.casebook import code_of, ends_cases
from everstep.core.faults import variants_of
from everstep.core.health import Evidence
from everstep.core.kernel_lines.stream import Heard

SPAN = 1_000_000  # microseconds of the kernel's time that one tally takes; no window of the casebook is so short

_Key = tuple[str, str | None, str | None, str, bool, tuple[str, ...], str]


def tallied(heard: Sequence[Heard]) -> list[Heard]:
    """The records in the order in which each thing was first told; ``evidence.count`` says how often it was.

    Equal are those of one code on one device that the catalogue judges alike. What ends cases (a link that comes up)
    parts what was told before from what is told after it. So does a second: a log that is read late spans days.
    """
    begun = 0
    order: list[Heard] = []
    counts: list[int] = []
    known: dict[_Key, int] = {}
    by_object: dict[int, int] = {}  # texts that repeat come as the same object
    for item in heard:
        if abs(item.microseconds - begun) > SPAN:
            begun = item.microseconds
            known.clear()
            by_object.clear()
        evidence = item.evidence
        index = by_object.get(id(evidence))
        if index is None:
            key = _key(evidence)
            index = known.get(key)
            if index is None:
                index = len(order)
                order.append(item)
                counts.append(0)
                if ends_cases(evidence):
                    known.clear()
                    by_object.clear()
                else:
                    known[key] = index
            if index == known.get(key):
                by_object[id(evidence)] = index
        counts[index] += evidence.count
    return [_counted(item, count) for item, count in zip(order, counts, strict=True)]


def _counted(item: Heard, count: int) -> Heard:
    return item if count == item.evidence.count else replace(item, evidence=replace(item.evidence, count=count))


def _key(evidence: Evidence) -> _Key:
    named = evidence.line.partition("caused by previous ")[2][:8] if evidence.code == "45" else ""
    return (
        code_of(evidence),
        evidence.pci,
        evidence.subject,
        evidence.part,
        evidence.injected,
        variants_of(evidence),
        named,
    )


def last_sequence(heard: Iterable[Heard], default: int) -> int:
    """Number of the last record."""
    return max((item.sequence for item in heard), default=default)
