"""From a line of a kernel log to evidence, and from evidence to a judged fault.

``parse_line`` is total: any bytes in, ``Evidence | None`` out, never an exception. It knows NVIDIA's XID lines in every
form that logs carry them in; a line that merely talks about an XID (a script, a log shipper's JSON, a monitor's own
report read back) does not match, because nothing but a logger's own prefix may stand before ``NVRM:``.
"""

from __future__ import annotations

import re

from everstep.core.fault_catalog import Catalog, Entry
from everstep.core.health import Evidence, Fault, FaultClass, FirstAction, Severity
from everstep.core.kmsg_record import parse_record

LINE_LIMIT = 512  # characters of a line that evidence keeps
_SCAN_LIMIT = 8192  # a kernel record is at most 1 KiB; a longer line is not one, and costs no more than this

# Every real XID line has it, and a search for bytes costs a thousandth of a regular expression's match.
_PREFILTER = b"NVRM: Xid ("

_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ISO = rb"\d{4}-\d\d-\d\d[T_ ]" + _CLOCK + rb"(?:Z|[+-]\d\d:?\d\d)?"
_MONTH_DAY = rb"[^\W\d_]{3,5}\.?[ ]{1,2}\d{1,2}"  # "Mar 27", "Okt 06", "jan.  5"
_PREFIXES = (
    rb"<\d{1,3}>",  # syslog priority
    rb"\[[ ]*\+?\d{1,12}\.\d{1,9}\]",  # seconds since boot; dmesg -d
    rb"\[[ ]*[TC]\d{1,10}\]",  # CONFIG_PRINTK_CALLER
    rb"\[(?:\w{3} )?" + _MONTH_DAY + rb"[ ]" + _CLOCK + rb"(?: \d{4})?\]",  # dmesg -T
    rb"\[" + _ISO + rb"\]:?",
    rb"(?:\d{1,3}\.){3}\d{1,3}: kern: \w+:",  # Talos
    rb"kern[ ]{0,4}:\w{4,6}[ ]{0,4}:",  # dmesg -x
    rb"(?:" + _MONTH_DAY + rb"[ ]" + _CLOCK + rb"|" + _ISO + rb")(?: [\w.-]{1,255})? kernel:",  # syslog, journalctl
    _ISO,
    rb"(?:[\w.-]{1,255} )?kernel:",
    rb"message repeated \d{1,9} times: \[",  # rsyslog
)
_PREFIX = re.compile(rb"\s*(?:" + rb"|".join(_PREFIXES) + rb")\s*")
_MAX_PREFIXES = 6

_XID = re.compile(
    rb"\s*NVRM: Xid \((?:PCI:)?"
    rb"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    rb"(?: GPU-I:\d{1,3}(?: GPU-CI:\d{1,3})?)?"  # a MIG instance
    rb"\): (?P<code>\d{1,5})(?=[\s,(\]]|$)"
)
_PID = re.compile(rb",? ?pid=(?:'?<unknown>'?|(?P<pid>\d{1,10}))(?=[\s,\]]|$)")
_NAME = re.compile(rb",? ?name=")
_COMM_LIMIT = 15  # Linux cuts a process' name there (TASK_COMM_LEN is 16 with the final NUL)
# How what follows the name begins: a name may itself hold a comma and a blank.
_AFTER_NAME = re.compile(rb"[A-Z]|Ch\b|channel |intr|errorString|engmask|errorStr|[0-9a-f]{4}")
_UNKNOWN_NAMES = frozenset((b"<unknown>", b""))

_TARGET = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to (0x[0-9a-fA-F]+)")
_NVLINK5 = frozenset(("144", "145", "146", "147", "148", "149", "150"))
_SEVERITY_WORD = re.compile(r"\b(Nonfatal|Fatal)\b")


def parse_line(line: bytes | str, *, allow_injected: bool = False) -> Evidence | None:
    """Reads one line, or one ``/dev/kmsg`` record, of a kernel log.

    Args:
        line: any bytes or text. Of several lines (a folded message) the first that is evidence counts.
        allow_injected: accept records that user space wrote (facility other than ``kern``); their evidence is marked.

    Returns:
        What the line says, or None when it says nothing of hardware. Never raises.
    """
    data = line.encode("utf-8", "replace") if isinstance(line, str) else bytes(line)
    if _PREFILTER not in data:
        return None
    record = parse_record(data)
    if record is None:
        return _first_evidence(data, injected=False)
    if not record.from_kernel and not allow_injected:
        return None
    return _first_evidence(record.text, injected=not record.from_kernel)


def _first_evidence(data: bytes, injected: bool) -> Evidence | None:
    for part in data[:_SCAN_LIMIT].splitlines():
        if _PREFILTER in part and (evidence := _xid(part, injected)):
            return evidence
    return None


def _xid(line: bytes, injected: bool) -> Evidence | None:
    start = 0
    match = _XID.match(line)
    for _ in range(_MAX_PREFIXES):
        if match is not None or (prefix := _PREFIX.match(line, start)) is None:
            break
        start = prefix.end()
        match = _XID.match(line, start)
    if match is None:
        return None
    pid, process = _process(line[match.end() :])
    return Evidence(
        kind="xid",
        code=str(int(match["code"])),
        pci=match["pci"].decode(),
        pid=pid,
        process=process,
        line=line.decode("utf-8", "replace").strip()[:LINE_LIMIT],
        injected=injected,
    )


def _process(rest: bytes) -> tuple[int | None, str | None]:
    """Process id and name as printed; None for each that is absent or unknown."""
    match = _PID.match(rest)
    if match is None:
        return None, None
    pid = int(match["pid"]) if match["pid"] else None
    name = _NAME.match(rest, match.end())
    if name is None:
        return pid, None
    found = _name(rest[name.end() :]).strip(b"'")
    return pid, None if found in _UNKNOWN_NAMES else found.decode("utf-8", "replace")


def _name(rest: bytes) -> bytes:
    """The process name at the start of ``rest``, which may hold commas, blanks, colons and brackets."""
    first: int | None = None
    at = rest.find(b",")
    while 0 <= at <= _COMM_LIMIT + 2:  # two for quotes
        tail = rest[at + 1 :]
        if not tail.strip() or (tail[:1] == b" " and _AFTER_NAME.match(tail, 1)):
            return rest[:at]
        first = at if first is None else first
        at = rest.find(b",", at + 1)
    return rest[:first] if first is not None else rest[: rest.find(b",")] if b"," in rest else rest.strip()


def variant_of(evidence: Evidence) -> str:
    """Which variant of its code a line shows, by the words of the line alone; "" for the ordinary one."""
    if evidence.kind != "xid":
        return ""
    if evidence.code == "154":
        # The hex code, not the words: drivers from 610 on print other words for the same codes.
        target = _TARGET.search(evidence.line)
        return f"to-{target[1].lower()}" if target else "to-unknown"
    if evidence.code in _NVLINK5:
        word = _SEVERITY_WORD.search(evidence.line)
        return word[1].lower() if word else ""
    if evidence.code == "94" and re.search(r"[ .]RST: Yes", evidence.line):
        return "reset-required"
    if evidence.code == "45" and "caused by previous Xid" in evidence.line:
        return "caused-by-previous"
    return ""


def classify(catalog: Catalog, evidence: Evidence) -> Fault:
    """Judges one piece of evidence by the catalogue. Time, boot and GPU are the caller's to add.

    A code that the catalogue does not know is suspect and wants a person: it is neither ignored nor acted upon.
    """
    entry = catalog.find(evidence.kind, evidence.code, variant_of(evidence))
    if entry is None:
        return _judged(
            evidence, FaultClass.SUSPECT, Severity.WARNING, FirstAction.CALL_HUMAN, _unknown_reason(evidence)
        )
    return _judged(evidence, entry.fault_class, entry.severity, entry.action, _reason(entry))


def _judged(evidence: Evidence, fault_class: FaultClass, severity: Severity, action: FirstAction, reason: str) -> Fault:
    return Fault(
        key=f"{evidence.kind}:{evidence.code}@{evidence.pci or 'node'}",
        kind=evidence.kind,
        code=evidence.code,
        fault_class=fault_class,
        severity=severity,
        action=action,
        reason=reason,
        pci=evidence.pci,
        line=evidence.line,
        injected=evidence.injected,
    )


def _reason(entry: Entry) -> str:
    return f"{entry.kind.upper()} {entry.code}: {entry.meaning}"


def _unknown_reason(evidence: Evidence) -> str:
    return f"{evidence.kind.upper()} {evidence.code}: not in the fault catalogue"
