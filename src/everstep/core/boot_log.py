"""The kernel log of this boot, read from its start as if an agent had watched it all the time.

What the log says counts by the casebook's rules: what belongs together is one case, and a case is over on proof, such
as a link that came back or a driver that no longer wants a recovery. So an old line does not speak against the node
for ever, and a broken adapter is not forgotten because its line is an hour old.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from everstep.core.correlation.casebook import Casebook, settled, with_sighting
from everstep.core.correlation.groups import SOLO_WAIT
from everstep.core.correlation.proof import Answer, with_proof
from everstep.core.correlation.sighting import placed_sighting
from everstep.core.correlation.verdicts import accusing, faults
from everstep.core.fault_catalog import Catalog
from everstep.core.health import Fault, Gpu, Severity
from everstep.core.kernel_lines.folding import NOTHING, Unfinished, follow
from everstep.core.kmsg_record import parse_record

_THIS = "this boot"  # no line of another one is in the log, so its id is of no matter


@dataclass(frozen=True, slots=True)
class Boot:
    """What the lines of a log are read against.

    Attributes:
        started: Unix seconds at which the kernel's own clock stood at 0.
        gpus: the inventory; empty when the driver does not answer.
        since: Unix seconds; what is older is passed over.
        allow_injected: whether records that programs wrote count.
    """

    catalog: Catalog
    started: float
    gpus: tuple[Gpu, ...] = ()
    since: float = 0.0
    allow_injected: bool = False


@dataclass(frozen=True, slots=True)
class BootLog:
    """What has been read so far; a value that is passed on from batch to batch."""

    book: Casebook = field(default_factory=Casebook)
    begun: Unfinished = NOTHING
    records: int = 0
    first: int | None = None  # number of the oldest record: what the ring buffer has overwritten before it


def with_records(log: BootLog, records: Iterable[bytes], boot: Boot) -> BootLog:
    """Reads the next records of ``/dev/kmsg``. Bytes that are no record are counted and say nothing."""
    book, begun, count, first = log.book, log.begun, log.records, log.first
    for data in records:
        count += 1
        begun, evidence = follow(begun, data, allow_injected=boot.allow_injected, companions=True)
        if evidence is None and first is not None:
            continue
        record = parse_record(data)
        if record is None:
            continue
        first = record.sequence if first is None else first
        at = boot.started + record.microseconds / 1e6
        if evidence is not None and at >= boot.since:
            seen = placed_sighting(evidence, at, _THIS, boot.gpus)
            book = with_sighting(settled(book, at), seen, accusing(book, boot.catalog, at))
    return BootLog(book, begun, count, first)


def standing(log: BootLog, boot: Boot, gpus: Sequence[Gpu], *, passed: bool, now: float) -> tuple[Fault, ...]:
    """The faults that are not over.

    Args:
        gpus: what the driver says now; what it finds well can be the proof that a case is over.
        passed: whether every other source answered and accuses nobody; without that, there is no such proof.
    """
    book = settled(log.book, now + SOLO_WAIT)  # the check waits for no further line: what nothing explains stands
    answer = Answer(gpus, _THIS, asked_at=now, passed=passed)
    book = with_proof(book, answer, now, accusing(book, boot.catalog, now))
    return tuple(fault for fault in faults(book, boot.catalog, now) if fault.severity is not Severity.INFO)


def remark(log: BootLog) -> str:
    """How much of the boot was read, for the reader of a check."""
    overwritten = f"; the first {log.first} were overwritten before" if log.first else ""
    return f"nothing is wrong in {log.records} records of this boot{overwritten}"
