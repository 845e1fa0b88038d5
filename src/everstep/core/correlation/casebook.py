"""One node's cases: what is wrong, merged and counted, and what has been before. A value; every change is a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from everstep.core.correlation.groups import (
    CAUSED_BY_WINDOW,
    COMPANION_WAIT,
    DETAIL_WINDOW,
    ENDED_BY,
    SAME_CODE_WINDOW,
    SOLO_WAIT,
    SYMPTOMS,
    WINDOW,
    group_of,
    rank,
    shared_group,
)
from everstep.core.correlation.history import kept, with_occurrence
from everstep.core.correlation.sighting import Job, Sighting
from everstep.core.health import Evidence, Part
from everstep.core.occurrences import Occurrence

MAX_CASES = 64  # a bound on what is stored; a node with more open cases than that is not helped by another one
MAX_MEMBERS = 8  # codes that a case remembers beside its cause; all cases together must fit into one object of 1 MB
MAX_NAMES = 16  # devices and jobs that a case remembers
_SEEN_BY_ALL = ("nvlink", "bus")
COMPANIONS_THAT_STAND = frozenset(
    ("host:gpu_fell_off", "host:gpu_wpr2_up", "host:gpu_reset_required", "host:gsp_rate_limit")
)  # alone they still mean a broken GPU; other companions alone mean nothing


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is wrong with a node, however many lines and devices tell of it.

    Attributes:
        key: its identity, ``kind:code@device``; it stays once somebody may have acted on it.
        cause: the evidence closest to the cause; ``members`` are all others, one for each code.
        device: where the cause was seen; ``devices`` are all that reported.
        count: how many messages told of it. Logs fold and drop lines, so it is no severity.
        pending_until: Unix seconds until which another line may yet explain it; 0 when it stands.
        source: name of the state source that shows the cause, "" for a line of a log.
    """

    key: str
    cause: Evidence
    device: str
    first_seen: float
    last_seen: float
    boot_id: str
    count: int = 1
    gpu_index: int | None = None
    gpu_serial: str | None = None
    members: tuple[Evidence, ...] = ()
    devices: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    pending_until: float = 0.0
    source: str = ""

    @property
    def code(self) -> str:
        """``kind:code`` of the cause."""
        return code_of(self.cause)


@dataclass(frozen=True, slots=True)
class Casebook:
    """All open cases of a node, and the history by which repeats are known.

    The history belongs to the devices, not to the node: :func:`everstep.core.correlation.history.joined` takes it over
    to wherever the device turns up next.
    """

    cases: tuple[Case, ...] = ()
    history: tuple[Occurrence, ...] = ()


def code_of(evidence: Evidence) -> str:
    """``kind:code``."""
    return f"{evidence.kind}:{evidence.code}"


def ends_cases(evidence: Evidence) -> bool:
    """Whether it says that something is over: a link that is up again, a driver that takes its wish back."""
    code = code_of(evidence)
    return code in ENDED_BY or (code == "xid:154" and ") to 0x0 " in evidence.line)


def with_sighting(book: Casebook, seen: Sighting, accuses: Callable[[Case], bool]) -> Casebook:
    """Takes one sighting in: it ends cases, joins one, or opens one.

    Args:
        accuses: whether a case, as it stands, would take its node out of service; the key of such a case is not
            changed any more, because an incident may bear its name.
    """
    code = code_of(seen.evidence)
    book = _ended(book, seen, code)
    if ends_cases(seen.evidence):
        return book
    index = _home(book, seen, code)
    if index is not None:
        return _joined(book, index, seen, accuses)
    companion = seen.evidence.part is Part.COMPANION
    if seen.evidence.part is Part.DETAIL or (companion and code not in COMPANIONS_THAT_STAND):
        return book
    if code == "xid:45" and seen.cancelled:
        return book
    wait = COMPANION_WAIT if companion else SOLO_WAIT if code == "xid:45" else 0.0
    return _opened(book, seen, wait, accuses)


def settled(book: Casebook, now: float) -> Casebook:
    """Ends the waiting of cases for another explanation: they join one that came, or stand. Call it now and then."""
    history = kept(book.history, now)
    waiting = [case for case in book.cases if case.pending_until and _waited_enough(case, now)]
    if not waiting and history is book.history:
        return book
    cases = [case for case in book.cases if case not in waiting]
    for case in waiting:
        index = next((at for at, other in enumerate(cases) if _explains(other, case)), None)
        if index is not None:
            cases[index] = _absorbing(cases[index], case)
            continue
        cases.append(replace(case, pending_until=0.0))
        history = with_occurrence(history, _occurrence(case, case.first_seen))
    return Casebook(tuple(cases), history)


def _waited_enough(case: Case, now: float) -> bool:
    """A clock that was set back meanwhile must not keep a fault silent. Lines may be out of order by a little."""
    return now >= case.pending_until or case.pending_until - now > SOLO_WAIT + WINDOW


def _explains(other: Case, waiting: Case) -> bool:
    """Whether a fabric or bus case, which many devices see, is what a removed channel on one of them tells of."""
    near = other.first_seen - WINDOW <= waiting.last_seen and waiting.first_seen <= other.last_seen + WINDOW
    same = other.boot_id == waiting.boot_id and not other.pending_until
    return same and near and waiting.code in SYMPTOMS and _seen_by_all(other)


def _absorbing(case: Case, other: Case) -> Case:
    return replace(
        case,
        count=case.count + other.count,
        members=_with_member(case.members, other.cause)[:MAX_MEMBERS],  # a symptom wipes out nothing
        devices=_with(case.devices, other.device),
        last_seen=max(case.last_seen, other.last_seen),
    )


def _ended(book: Casebook, seen: Sighting, code: str) -> Casebook:
    """Without the cases of which this sighting is the proof that they are over."""
    if not ends_cases(seen.evidence):
        return book
    ended = ENDED_BY.get(code)
    cases = []
    for case in book.cases:
        concerned = case.cause.kind in ("xid", "host") if ended is None else case.code in ended
        if not concerned or seen.device not in case.devices:
            cases.append(case)
        elif left := tuple(device for device in case.devices if device != seen.device):
            cases.append(replace(case, devices=left))  # others that reported it have not come back yet
    return replace(book, cases=tuple(cases))


def _home(book: Casebook, seen: Sighting, code: str) -> int | None:
    """Which open case a sighting belongs to: the one that has it already, else the latest that it goes with."""
    best: tuple[bool, float, int] | None = None
    key, named = f"{code}@{seen.device}", _named_cause(seen.evidence)
    alone = named is None and group_of(code) is None and code not in SYMPTOMS  # goes with nothing on other devices
    for index, case in enumerate(book.cases):
        if case.boot_id != seen.boot_id:
            continue
        same_device = seen.device in case.devices
        if alone and not same_device and case.code != code and case.key != key:
            continue
        # The one that has this code on this device already, however long ago.
        has = case.key == key or (same_device and _tells_of(case, code))
        if (has or _goes_with(case, seen, code, named)) and (best is None or (has, case.last_seen, index) > best):
            best = (has, case.last_seen, index)
    return None if best is None else best[2]


def _tells_of(case: Case, code: str) -> bool:
    return case.code == code or any(code_of(member) == code for member in case.members)


def _goes_with(case: Case, seen: Sighting, code: str, named: str | None) -> bool:
    """Whether the sighting is another side of what the case tells; ``named``: the code that its line blames."""
    age = abs(seen.at - case.last_seen)
    if named is not None:
        return age <= CAUSED_BY_WINDOW and _tells_of(case, named)
    if age > (DETAIL_WINDOW if seen.evidence.part is Part.DETAIL else WINDOW):
        return False
    case_code = case.code
    same_device = seen.device in case.devices
    if seen.evidence.part is not Part.DETAIL:
        if code == case_code and age <= SAME_CODE_WINDOW:
            return True
        if code in SYMPTOMS or case_code in SYMPTOMS:
            return _seen_by_all(case) or (same_device and case.cause.kind == seen.evidence.kind == "xid")
        if "xid:154" in (code, case_code):
            return same_device
    group = shared_group(case_code, code)
    if seen.evidence.part is Part.DETAIL:
        return same_device or (group is not None and group.wide)
    return group is not None and (same_device or group.wide)


def _seen_by_all(case: Case) -> bool:
    group = group_of(case.code)
    return group is not None and group.name in _SEEN_BY_ALL


def _named_cause(evidence: Evidence) -> str | None:
    """``xid:145`` for a line that ends in "caused by previous Xid 145"."""
    _, found, rest = evidence.line.partition("caused by previous Xid ")
    number = rest[:5].split(" ")[0].strip(" ,.]")
    return f"xid:{number}" if found and evidence.code == "45" and number.isdigit() else None


def _opened(book: Casebook, seen: Sighting, wait: float, accuses: Callable[[Case], bool]) -> Casebook:
    case = Case(
        key=f"{code_of(seen.evidence)}@{seen.device}",
        cause=seen.evidence,
        device=seen.device,
        first_seen=seen.at,
        last_seen=seen.at,
        boot_id=seen.boot_id,
        count=seen.evidence.count if seen.evidence.part is Part.WHOLE else 1,
        gpu_index=seen.gpu_index,
        gpu_serial=seen.gpu_serial,
        devices=(seen.device,),
        jobs=seen.jobs[:MAX_NAMES],
        pending_until=seen.at + wait if wait else 0.0,
        source=seen.source,
    )
    history = kept(book.history, seen.at)
    if not wait:
        history = with_occurrence(history, _occurrence(case, seen.at))
    # The same fault of an earlier boot that still waits for its proof is now this one.
    cases = [other for other in book.cases if other.key != case.key or other.boot_id == case.boot_id]
    cases.append(case)
    if len(cases) > MAX_CASES:
        del cases[_least_missed(cases, accuses)]
    return Casebook(tuple(cases), history)


def _least_missed(cases: Sequence[Case], accuses: Callable[[Case], bool]) -> int:
    """Which of too many cases goes: of the code with the most of them, the oldest that accuses nobody, else the newest.

    What may have been acted on stays, and so does the one case of its code: a server that 500 mounts miss, or what a
    program can repeat at will, hides nothing else.
    """
    crowds = Counter(case.code for case in cases)
    blameless = [index for index, case in enumerate(cases) if not accuses(case)]
    if blameless:
        return max(blameless, key=lambda index: (crowds[cases[index].code], -index))
    return max(range(len(cases)), key=lambda index: (crowds[cases[index].code], index))


def _joined(book: Casebook, index: int, seen: Sighting, accuses: Callable[[Case], bool]) -> Casebook:
    case = book.cases[index]
    code = code_of(seen.evidence)
    again = code == case.code
    joined = replace(
        case,
        last_seen=max(case.last_seen, seen.at),
        first_seen=min(case.first_seen, seen.at),
        count=case.count + (seen.evidence.count if seen.evidence.part is Part.WHOLE else 0),
        cause=replace(case.cause, injected=case.cause.injected and seen.evidence.injected) if again else case.cause,
        members=case.members if again else _with_member(case.members, seen.evidence),
        devices=_with(case.devices, seen.device),
        jobs=case.jobs + tuple(job for job in seen.jobs if job not in case.jobs)[: MAX_NAMES - len(case.jobs)],
        pending_until=case.pending_until if again and case.pending_until else 0.0,
        source=seen.source and case.source if again else case.source,
    )
    if not again and _is_closer(case, code):
        joined = _with_cause(joined, seen, code, keep_key=accuses(case))
    joined = _bounded(joined, accuses)
    return Casebook((*book.cases[:index], joined, *book.cases[index + 1 :]), _noted(book, case, joined, seen))


def _noted(book: Casebook, case: Case, joined: Case, seen: Sighting) -> tuple[Occurrence, ...]:
    """The history with what a sighting adds to a case: its jobs, a new episode, another device, or a new cause."""
    if joined.pending_until:
        return book.history
    history = kept(book.history, seen.at)
    if joined.code != case.code:  # what stood for the cause so far was a symptom
        symptom = (case.device, case.code, case.first_seen)
        history = tuple(old for old in history if (old.device, old.code, old.at) != symptom)
    at = seen.at if seen.at - case.last_seen > WINDOW else joined.first_seen
    history = with_occurrence(history, _occurrence(joined, at, seen))
    if seen.device != joined.device and code_of(seen.evidence) == joined.code:
        history = with_occurrence(history, replace(_occurrence(joined, at, seen), device=seen.device))
    return history


def _is_closer(case: Case, code: str) -> bool:
    """Whether ``code`` is closer to the cause than what the case holds for it."""
    if code in SYMPTOMS or code == "xid:154":
        return False
    if case.code in SYMPTOMS or case.code == "xid:154":
        return True
    group = shared_group(case.code, code)
    return group is not None and rank(group, code) < rank(group, case.code)


def _with_cause(case: Case, seen: Sighting, code: str, *, keep_key: bool) -> Case:
    members = _with_member(case.members, case.cause)
    return replace(
        case,
        key=case.key if keep_key else f"{code}@{seen.device}",
        cause=seen.evidence,
        device=seen.device,
        gpu_index=seen.gpu_index,
        gpu_serial=seen.gpu_serial,
        source=seen.source,
        members=tuple(member for member in members if code_of(member) != code),
    )


def _with_member(members: tuple[Evidence, ...], evidence: Evidence) -> tuple[Evidence, ...]:
    """One of each code, the latest: the driver's last word on what it wants (154) is the one that holds."""
    others = tuple(member for member in members if code_of(member) != code_of(evidence))
    return (*others, evidence)


def _bounded(case: Case, accuses: Callable[[Case], bool]) -> Case:
    """With no more members than are kept: the oldest goes without which the case still says what it says."""
    while len(case.members) > MAX_MEMBERS:
        members = case.members
        shorter = [replace(case, members=(*members[:at], *members[at + 1 :])) for at in range(len(members))]
        case = next((each for each in shorter if accuses(each) == accuses(case)), shorter[0])
    return case


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names or len(names) >= MAX_NAMES else (*names, name)


def _occurrence(case: Case, at: float, seen: Sighting | None = None) -> Occurrence:
    jobs = case.jobs if seen is None else seen.jobs or case.jobs
    return Occurrence(case.device, case.code, at, case.boot_id, tuple(dict.fromkeys(job.lineage for job in jobs)))
