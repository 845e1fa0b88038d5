"""What each open case means by the catalogue: the fault that the agent publishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everstep.core.correlation.casebook import Case, Casebook, code_of
from everstep.core.correlation.history import times, unrelated_jobs
from everstep.core.fault_catalog import Catalog, Entry, code_name
from everstep.core.faults import judge
from everstep.core.health import Fault, FaultClass, FirstAction, Severity, accuses

_GRAVITY = {
    FirstAction.NONE: 0,
    FirstAction.RESTART_JOB: 1,
    FirstAction.CALL_HUMAN: 2,
    FirstAction.RESET_GPU: 3,
    FirstAction.REBOOT_NODE: 4,
    FirstAction.REPLACE_NODE: 5,
}
_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_REPAIRS = (FirstAction.RESET_GPU, FirstAction.REBOOT_NODE, FirstAction.REPLACE_NODE)
_ACCUSING = (FaultClass.HARDWARE, FaultClass.FABRIC, FaultClass.STORAGE)


def faults(book: Casebook, catalog: Catalog, now: float) -> tuple[Fault, ...]:
    """The faults of a node, those that accuse it first. Cases that another line may yet explain are none."""
    found = [fault_of_case(book, case, catalog, now) for case in book.cases if not case.pending_until]
    return tuple(sorted(found, key=lambda fault: (not accuses(fault), -_RANK[fault.severity], fault.first_seen)))


def accusing(book: Casebook, catalog: Catalog, now: float) -> Callable[[Case], bool]:
    """For :func:`everstep.core.correlation.casebook.with_sighting`. It judges each case once, by this history."""
    judged: dict[int, tuple[Case, bool]] = {}  # with the case, so that its id stays its own

    def accuser(case: Case) -> bool:
        known = judged.get(id(case))
        if known is None:
            known = judged[id(case)] = case, not case.pending_until and accuses(fault_of_case(book, case, catalog, now))
        return known[1]

    return accuser


def fault_of_case(book: Casebook, case: Case, catalog: Catalog, now: float) -> Fault:
    """One case as a fault.

    The row of the cause decides. What else is told with it can only make it graver: a member that accuses the hardware
    on its own, the driver's wish (154), a repeat that calls for the next step, or unrelated jobs that hit one GPU.
    """
    fault = _by_cause(case, catalog)
    for member in case.members:
        fault = _graver(fault, judge(catalog, member), code_of(member))
    entry = _row(case, catalog)
    if entry is not None:
        fault = _escalated(fault, entry, book, case, now)
    if len(case.devices) > 1:
        fault = replace(fault, reason=f"{fault.reason} ({len(case.devices)} devices report it)")
    return fault


def _row(case: Case, catalog: Catalog) -> Entry | None:
    """The row of the cause, by what was told together with it where a row exists for that."""
    told = {code_of(member) for member in case.members}
    if case.code == "xid:48":
        for other in ("64", "63"):
            if f"xid:{other}" in told and (entry := catalog.exact("xid", "48", f"with-{other}")):
                return entry
    if case.code == "xid:45" and not told and "caused by previous" not in case.cause.line:
        return catalog.exact("xid", "45", "solo") or judge(catalog, case.cause)
    return judge(catalog, case.cause)


def _by_cause(case: Case, catalog: Catalog) -> Fault:
    entry = _row(case, catalog)
    name = code_name(case.cause.kind, case.cause.code)
    return Fault(
        key=case.key,
        kind=case.cause.kind,
        code=case.cause.code,
        fault_class=entry.fault_class if entry else FaultClass.SUSPECT,
        severity=entry.severity if entry else Severity.WARNING,
        action=entry.action if entry else FirstAction.CALL_HUMAN,
        reason=f"{name}: {entry.meaning if entry else 'not in the fault catalogue'}",
        pci=case.cause.pci,
        gpu_index=case.gpu_index,
        gpu_serial=case.gpu_serial,
        line=case.cause.line,
        first_seen=case.first_seen,
        last_seen=case.last_seen,
        count=case.count,
        boot_id=case.boot_id,
        injected=case.cause.injected,
    )


def _graver(fault: Fault, entry: Entry | None, code: str) -> Fault:
    if entry is None or entry.severity is not Severity.CRITICAL or entry.fault_class not in _ACCUSING:
        return fault
    if accuses(fault):
        graver = _GRAVITY[entry.action] > _GRAVITY[fault.action]
        return replace(fault, action=entry.action, reason=f"{fault.reason}; with {code}") if graver else fault
    return replace(
        fault,
        fault_class=entry.fault_class,
        severity=entry.severity,
        action=max(fault.action, entry.action, key=_GRAVITY.__getitem__),
        reason=f"{fault.reason}; with {code}: {entry.meaning}",
    )


def _escalated(fault: Fault, entry: Entry, book: Casebook, case: Case, now: float) -> Fault:
    if entry.fault_class is FaultClass.APPLICATION and not accuses(fault):
        jobs = unrelated_jobs(book.history, case.device, case.code, now)
        if len(jobs) < 2 or case.gpu_serial is None or entry.escalate_to not in _REPAIRS:
            return fault
        return replace(
            fault,
            fault_class=FaultClass.HARDWARE,
            severity=Severity.CRITICAL,
            action=entry.escalate_to,
            reason=f"{fault.reason}; {len(jobs)} unrelated jobs hit it on this GPU within a day",
        )
    if entry.repeat is None:
        return fault
    count = times(book.history, case.device, case.code, entry.repeat, now)
    action = entry.repeat.action
    if count < entry.repeat.times or _GRAVITY[action] <= _GRAVITY[fault.action]:
        return fault
    found = replace(fault, action=action, reason=f"{fault.reason}; {count} times, {entry.repeat} is the limit")
    if action is FirstAction.REPLACE_NODE and fault.fault_class is FaultClass.SUSPECT and case.gpu_serial:
        return replace(found, fault_class=FaultClass.HARDWARE, severity=Severity.CRITICAL)  # that often is the part
    return found
