"""What an agent knows about its node, as a value, and the rules by which observations change it.

The diagnosis is stored whole in NodeHealth, log position included, in one write. So an agent that is killed at any
moment starts from a state in which every record up to ``sequence`` has been counted once, and none beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from everstep.core.correlation.casebook import Case, Casebook, code_of, settled, with_sighting
from everstep.core.correlation.groups import ENDED_BY
from everstep.core.correlation.history import joined
from everstep.core.correlation.proof import Answer, Mark, is_shown, with_proof, without_states
from everstep.core.correlation.sighting import Job, Sighting, placed_sighting
from everstep.core.correlation.verdicts import accusing, faults
from everstep.core.fault_catalog import Catalog
from everstep.core.faults import judge
from everstep.core.gpu_inventory import merged, unwell
from everstep.core.health import REASON_LIMIT, Evidence, Fault, Gpu, Part, Severity, Verdict, accuses
from everstep.core.occurrences import Occurrence
from everstep.core.plain_text import plain

GPUS = "GPUs"  # the source that is the inventory; nothing is proof while it cannot be asked
UNREAD = "it has not been asked yet"
# What the driver shows of a GPU that a line explains is no second fault.
_EXPLAINED = frozenset(("host:gpu_lost", "host:gpu_missing", "host:gpu_recovery"))


@dataclass(frozen=True, slots=True)
class Source:
    """One source of evidence.

    Attributes:
        broken: why it cannot be read now; "" while it works.
        restarts: how often it was started again since the agent started.
    """

    name: str
    broken: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """The last answer of a state source: what counts as there, and what was there for the first time."""

    source: str
    shown: frozenset[Mark] = frozenset()
    once: frozenset[Mark] = frozenset()


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that lines of the log told, and when.

    Attributes:
        at: Unix seconds of the agent's own clock.
        jobs: jobs that used the device then, where that is known.
    """

    evidence: Evidence
    at: float
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything an agent would say of its node.

    Attributes:
        boot_id: the boot that ``sequence`` counts in.
        sequence: number of the last kernel record that changed the book; -1 before the first.
        numbering: how the log that it was read from numbers its records.
        book: the open cases, and what the devices had before.
        faults: what the catalogue makes of the book; see :func:`judged`.
        gpus: last inventory; a GPU that vanished stays in it, marked lost.
        sources: all sources of this node and how they are.
        lost_records: kernel records of this boot that were overwritten before they were read.
        skipped_records: kernel records that could not be judged; they are passed over.
        readings: of the state sources. Not stored, because they are asked again.
        asked_at: when the driver was last asked with success. Not stored.
        behind: whether the log holds lines from before the agent's start that it has not read yet. Until then nothing
            stands for itself: what explains it may be among them. Not stored.
    """

    boot_id: str
    sequence: int = -1
    numbering: str = ""
    book: Casebook = field(default_factory=Casebook)
    faults: tuple[Fault, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    sources: tuple[Source, ...] = ()
    lost_records: int = 0
    skipped_records: int = 0
    readings: tuple[Reading, ...] = ()
    asked_at: float = 0.0
    behind: bool = False

    @property
    def verdict(self) -> Verdict:
        """Faulty when a critical fault accuses the node; else Unknown while a source is broken; else Healthy."""
        if any(accuses(fault) for fault in self.faults):
            return Verdict.FAULTY
        return Verdict.UNKNOWN if self.broken else Verdict.HEALTHY

    @property
    def broken(self) -> tuple[tuple[str, str], ...]:
        """Sources that cannot be read now, each with the reason."""
        return tuple((source.name, source.broken) for source in self.sources if source.broken)

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        accusers = [fault for fault in self.faults if accuses(fault)]
        if accusers:
            where = f" (GPU {accusers[0].gpu_index})" if accusers[0].gpu_index is not None else ""
            more = f", and {len(accusers) - 1} more" if len(accusers) > 1 else ""
            return f"{plain(accusers[0].reason, REASON_LIMIT - 50)}{where}{more}"
        if self.broken:
            same: dict[str, list[str]] = {}  # GPUs and NVML break together, and one sentence says it
            for name, why in self.broken:
                same.setdefault(why, []).append(name)
            return plain(
                "; ".join(f"{', '.join(who)} cannot be read: {why}" for why, who in same.items()), REASON_LIMIT
            )
        match len(self.faults):
            case 0:
                noted = "no fault is active"
            case 1:
                noted = "1 fault is noted, it does not accuse the node"
            case number:
                noted = f"{number} faults are noted, none accuses the node"
        return f"{len(self.gpus)} GPUs answer, {noted}"


def resumed(stored: Diagnosis | None, boot_id: str, sources: Sequence[str] = ()) -> Diagnosis:
    """The diagnosis to start from: the stored one in the same boot; after a reboot its cases wait for proof.

    Args:
        sources: names of all sources of this node. Each is as good as broken until it was asked once.
    """
    fresh = Diagnosis(boot_id, sources=tuple(Source(name, UNREAD) for name in sources), behind=True)
    if stored is None:
        return fresh
    fresh = replace(fresh, book=stored.book, faults=stored.faults, gpus=stored.gpus)
    if stored.boot_id != boot_id:
        return fresh
    return replace(
        fresh,
        sequence=stored.sequence,
        numbering=stored.numbering,
        lost_records=stored.lost_records,
        skipped_records=stored.skipped_records,
    )


def numbered(diagnosis: Diagnosis, numbering: str) -> Diagnosis:
    """The diagnosis for a log with this numbering. A position that was counted in another one means nothing in it."""
    if diagnosis.numbering == numbering:
        return diagnosis
    return replace(diagnosis, numbering=numbering, sequence=-1)


def caught_up(diagnosis: Diagnosis, catalog: Catalog, now: float) -> Diagnosis:
    """The log has been read to its end."""
    return judged(replace(diagnosis, behind=False), catalog, now) if diagnosis.behind else diagnosis


def with_source(diagnosis: Diagnosis, name: str, why: str | None) -> Diagnosis:
    """Notes that a source is broken for the reason ``why``, or (None) that it works. Each failed try is a restart."""
    before = next((source for source in diagnosis.sources if source.name == name), Source(name))
    after = replace(before, broken=plain(why or "", REASON_LIMIT), restarts=before.restarts + (why is not None))
    if after == before:
        return diagnosis
    others = [source for source in diagnosis.sources if source.name != name]
    return replace(diagnosis, sources=tuple(sorted((*others, after), key=lambda source: source.name)))


def judged(diagnosis: Diagnosis, catalog: Catalog, now: float) -> Diagnosis:
    """The diagnosis as it stands at ``now``: what waited for an explanation is settled, what is proven over is gone."""
    book = diagnosis.book if diagnosis.behind else settled(diagnosis.book, now)
    passed = diagnosis.asked_at > 0 and not diagnosis.broken and not _check_fails(diagnosis, book, catalog, now)
    answer = Answer(diagnosis.gpus, diagnosis.boot_id, diagnosis.asked_at, passed, _shown(diagnosis))
    book = with_proof(book, answer, now, accusing(book, catalog, now))
    return replace(diagnosis, book=book, faults=faults(book, catalog, now))


def _check_fails(diagnosis: Diagnosis, book: Casebook, catalog: Catalog, now: float) -> bool:
    """Whether a state that is there now accuses the node, or one that was there for the first time might."""
    if any(reading.once for reading in diagnosis.readings):
        return True
    accuser = accusing(book, catalog, now)
    states = (case for case in book.cases if case.source and case.boot_id == diagnosis.boot_id)
    return any(accuser(case) for case in states)


def with_lines(diagnosis: Diagnosis, sequence: int, told: Sequence[Told], catalog: Catalog, now: float) -> Diagnosis:
    """Takes in what the log told up to record ``sequence``.

    The position moves only with the book. What changed nothing may be read again: it will change nothing then, too.
    """
    book = diagnosis.book
    accuser = accusing(book, catalog, now)
    for item in told:
        if _worth_a_case(item.evidence, catalog):
            seen = placed_sighting(item.evidence, item.at, diagnosis.boot_id, diagnosis.gpus, item.jobs)
            book = settled(book, item.at)
            book = with_sighting(book, seen, accuser)
    if book == diagnosis.book:
        return diagnosis
    return judged(replace(diagnosis, book=book, sequence=max(sequence, diagnosis.sequence)), catalog, now)


def _worth_a_case(evidence: Evidence, catalog: Catalog) -> bool:
    """Not what was corrected or merely goes on record. A word that ends other cases is, though it is no fault."""
    if evidence.kind == "xid" or f"{evidence.kind}:{evidence.code}" in ENDED_BY:
        return True
    if evidence.part is Part.COMPANION:
        return True
    entry = judge(catalog, evidence)
    return entry is None or entry.severity is not Severity.INFO


def with_reading(
    diagnosis: Diagnosis, source: str, found: Sequence[Evidence], catalog: Catalog, now: float
) -> Diagnosis:
    """Takes in one whole answer of a state source.

    What is there twice in a row counts: once may be a node that was busy for a moment. What is gone is over.
    """
    after = _with_answer(diagnosis, source, found, catalog, now)
    book = without_states(after.book, source, _shown(after))
    return judged(replace(with_source(after, source, None), book=book), catalog, now)


def with_part(diagnosis: Diagnosis, source: str, found: Sequence[Evidence], catalog: Catalog, now: float) -> Diagnosis:
    """Takes in an answer that is not whole: what it holds is there, the rest is unknown, so nothing ends."""
    before = _reading(diagnosis, source)
    after = _with_answer(diagnosis, source, found, catalog, now)
    part = _reading(after, source)
    reading = Reading(source, part.shown | before.shown, part.once)
    return judged(_with(after, reading), catalog, now)


def _with_answer(
    diagnosis: Diagnosis, source: str, found: Sequence[Evidence], catalog: Catalog, now: float
) -> Diagnosis:
    """With the reading, and with cases for what counts and has none."""
    sightings = [
        replace(placed_sighting(evidence, now, diagnosis.boot_id, diagnosis.gpus), source=source) for evidence in found
    ]
    by_mark = {(code_of(seen.evidence), seen.device): seen for seen in sightings}
    before = _reading(diagnosis, source)
    counts = {mark for mark in by_mark if mark in before.shown or mark in before.once or _open(diagnosis, mark)}
    book = diagnosis.book
    for mark, seen in by_mark.items():
        if mark in counts and not _open(diagnosis, mark) and not _explained(diagnosis, seen):
            book = with_sighting(book, seen, accusing(book, catalog, now))
    reading = Reading(source, frozenset(counts), frozenset(by_mark.keys() - counts))
    return replace(_with(diagnosis, reading), book=book)


def _reading(diagnosis: Diagnosis, source: str) -> Reading:
    return next((reading for reading in diagnosis.readings if reading.source == source), Reading(source))


def _with(diagnosis: Diagnosis, reading: Reading) -> Diagnosis:
    others = (other for other in diagnosis.readings if other.source != reading.source)
    return replace(diagnosis, readings=(*others, reading))


def _shown(diagnosis: Diagnosis) -> frozenset[Mark]:
    """States that are there now, once or longer."""
    return frozenset(mark for reading in diagnosis.readings for mark in (*reading.shown, *reading.once))


def unconfirmed(diagnosis: Diagnosis, source: str) -> bool:
    """Whether the last answer of a source holds something that counts only when it is there again."""
    return bool(_reading(diagnosis, source).once)


def with_gpus(diagnosis: Diagnosis, reading: Sequence[Gpu], catalog: Catalog, asked_at: float, now: float) -> Diagnosis:
    """Takes in one answer of the driver: new inventory, faults that only the driver shows, and proof of repair."""
    found = replace(diagnosis, gpus=merged(diagnosis.gpus, reading), asked_at=asked_at)
    return with_reading(found, GPUS, unwell(reading), catalog, now)


def with_history(diagnosis: Diagnosis, inherited: Sequence[Occurrence], catalog: Catalog, now: float) -> Diagnosis:
    """Takes over what the GPUs of this node had while they were in other nodes; the rest of it is not this node's."""
    mine = {gpu.serial for gpu in diagnosis.gpus}
    known = frozenset((item.device, item.code, item.at) for item in diagnosis.book.history)
    theirs = tuple(item for item in inherited if item.device in mine and (item.device, item.code, item.at) not in known)
    if not theirs:
        return diagnosis
    book = replace(diagnosis.book, history=joined((diagnosis.book.history, theirs), now))
    return judged(replace(diagnosis, book=book), catalog, now)


def _open(diagnosis: Diagnosis, mark: Mark) -> bool:
    """Whether a case of this boot tells of the state already."""
    return any(case.boot_id == diagnosis.boot_id and _tells(case, mark) for case in diagnosis.book.cases)


def _tells(case: Case, mark: Mark) -> bool:
    code, device = mark
    return device in case.devices and (is_shown(case, {mark}) or any(code_of(item) == code for item in case.members))


def _explained(diagnosis: Diagnosis, seen: Sighting) -> bool:
    """Whether a fault of this boot already accuses the GPU."""
    if code_of(seen.evidence) not in _EXPLAINED or seen.gpu_serial is None:
        return False
    accusers = {fault.key for fault in diagnosis.faults if accuses(fault)}
    mine = (case for case in diagnosis.book.cases if case.boot_id == diagnosis.boot_id)
    return any(case.key in accusers and seen.device in case.devices for case in mine)
