"""A kernel log as it is followed: records in, evidence out, and what says the same again costs next to nothing.

A driver that storms repeats itself: of 800,000 XID lines that one node wrote, 29 were different (NVSentinel 1120). So
the meaning of the latest texts is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.core.health import Evidence
from everstep.core.kernel_lines.folding import NOTHING, follow
from everstep.core.kernel_lines.prefilter import may_be_fault

MEMORY = 512  # texts whose meaning is remembered; a record is at most 1 KiB, so this is half a megabyte
_TEXT_LIMIT = 1024
_LARGEST = 2**63 - 1  # of a number in Kubernetes' objects


@dataclass(frozen=True, slots=True)
class Heard:
    """What one record told.

    Attributes:
        sequence: number of the record in this boot.
        microseconds: the kernel's time of it.
    """

    evidence: Evidence
    sequence: int
    microseconds: int


class RecordStream:
    """Follows one log. Any bytes may come in; a record that cannot be judged is counted and passed over.

    Args:
        allow_injected: count records that user space wrote, marked as injected.
        not_before: the kernel's time in microseconds; older records are passed over.
    """

    def __init__(self, *, allow_injected: bool = False, not_before: int = 0) -> None:
        self._allow_injected = allow_injected
        self._not_before = not_before
        self._begun = NOTHING  # what the records so far have begun to tell
        self._meanings: dict[tuple[bytes, bool], Evidence | None] = {}
        self.skipped = 0

    def restart(self) -> None:
        """The log begins anew: what was half told is not continued."""
        self._begun = NOTHING

    def take(self, records: Iterable[bytes], after: int = -1) -> list[Heard]:
        """What the records tell, other than those up to number ``after``, which are known already."""
        found: list[Heard] = []
        for record in records:
            if self._begun is NOTHING and not may_be_fault(record):
                continue
            try:
                heard = self._heard(record)
            except Exception:  # a parser that fails on one record must not be deaf to all that follow
                self._begun = NOTHING
                self.skipped += 1
                continue
            if heard is not None and heard.sequence > after and heard.microseconds >= self._not_before:
                found.append(heard)
        return found

    def _heard(self, record: bytes) -> Heard | None:
        head, _, text = record.partition(b";")
        fields = head.split(b",", 3)
        if len(fields) < 3 or not (fields[0].isdigit() and fields[1].isdigit() and fields[2].isdigit()):
            return None
        sequence, microseconds = int(fields[1]), int(fields[2])
        if sequence > _LARGEST or microseconds > _LARGEST:
            return None  # no kernel counts that far, and no object could hold it
        meaning = self._meaning(record, text, from_kernel=int(fields[0]) < 8)
        return None if meaning is None else Heard(meaning, sequence, microseconds)

    def _meaning(self, record: bytes, text: bytes, *, from_kernel: bool) -> Evidence | None:
        alone = self._begun is NOTHING
        key = (text, from_kernel)
        if alone and key in self._meanings:
            return self._meanings[key]
        self._begun, evidence = follow(self._begun, record, allow_injected=self._allow_injected, companions=True)
        if alone and self._begun is NOTHING and len(text) <= _TEXT_LIMIT:
            if len(self._meanings) >= MEMORY:
                self._meanings.clear()
            self._meanings[key] = evidence
        return evidence
