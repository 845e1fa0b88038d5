"""From evidence to a judged fault: which variant of its code a line shows, and what the catalogue says of it."""

from __future__ import annotations

import re

from everstep.core.fault_catalog import ANY_CODE, Catalog, Entry, code_name
from everstep.core.health import Evidence, Fault, FaultClass, FirstAction, Severity

_TARGET = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to (0x[0-9a-fA-F]+)")
_NVLINK5 = frozenset(("144", "145", "146", "147", "148", "149", "150"))
_NVLINK5_TEXT = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{2,30})\s+(?P<word>Nonfatal|Fatal)\b"
    r"(?:[^(]{0,60}\((?P<info>0x[0-9a-fA-F]{1,8})(?:\s+(?P<status>0x[0-9a-fA-F]{1,8}))?)?"
)
# Drivers from R575 on print other names for some units; the reason in the first word did not move.
_UNIT_NAMES = {"NETIR_INT": "NETIR", "NETIR_LINK_DOWN": "NETIR_LINK_EVT", "NVLPW": "NVLPW_CTRL"}
_PIPE = re.compile(r"_PIPE\d$")
_REGISTERS = re.compile(r"\bon link \d{1,2} ?\(((?:0x[0-9a-fA-F]{1,8}(?:, ?)?){1,7})\)")
# Workflow of XID 74 in NVIDIA's XID catalogue (Oct-2025): bits of the first register word, the gravest first.
_NVLINK_BITS = {
    "parity": frozenset((4, 5)),
    "link-hardware": frozenset((8, 9, 12, 16, 17, 24, 28)),
    "signal": frozenset((21, 22)),
    "sympathetic": frozenset((1, 20)),
    "ignore": frozenset((0, 23, 30)),
}
_MILD_BITS = _NVLINK_BITS["sympathetic"] | _NVLINK_BITS["ignore"]
_LINK_EVENT = "NETIR_LINK_EVT"
_LINK_ROWS = "netir_link_evt/"  # a lost link, so fatal to it whatever is to be done
_FATAL = re.compile(r"\bFatal\b")
_VERDICT = re.compile(r": 0*\d+, (Fatal|Non-fatal)\b")
_COUNT = re.compile(r"(\d+) (?:new )?uncorrectable hardware errors")
_NO_COUNT = 0xFFFF0  # posted from healthy GPUs that repeat it at every query; no counter of real errors gets there
# As everstep.adapters.gpu.nvml_reading writes what NVML wants; a plain reset is the ordinary case.
_RECOVERY = re.compile(r"\brecovery_action=(?:system-)?(reboot|drain-peers|recover-imex|unknown)\b")
_CPER = re.compile(r"event severity: (corrected|fatal)\b")


def variants_of(evidence: Evidence) -> tuple[str, ...]:
    """Which variants of its code a line shows, the most specific first; empty for the ordinary one."""
    match evidence.kind, evidence.code:
        case "xid", "154":
            # The hex code, not the words: drivers from 610 on print other words for the same codes.
            target = _TARGET.search(evidence.line)
            return (f"to-{target[1].lower()}",) if target else ("to-unknown",)
        case "xid", code if code in _NVLINK5:
            return _nvlink5(evidence.line)
        case "xid", "74":
            return _nvlink(evidence.line)
        case "xid", "94":
            return ("reset-required",) if re.search(r"[ .]RST: Yes", evidence.line) else ()
        case "xid", "45":
            return ("caused-by-previous",) if "caused by previous Xid" in evidence.line else ()
        case "sxid", _:
            verdict = _VERDICT.search(evidence.line)
            return (verdict[1].lower(),) if verdict else ()
        case "amd", "ras_uncorrectable":
            count = _COUNT.search(evidence.line)
            return ("constant",) if count and int(count[1]) >= _NO_COUNT else ()
        case "ib", "health_syndrome":
            return ("high-temperature",) if "synd 0x10:" in evidence.line else ()
        case "host", ("gpu_recovery" | "cper_severity") as code:
            word = (_RECOVERY if code == "gpu_recovery" else _CPER).search(evidence.line)
            return (word[1],) if word else ()
        case _:
            return ()


def _nvlink(line: str) -> tuple[str, ...]:
    """What the first register word of XID 74 says. The gravest bit decides; a mild one only if no other word is set."""
    words = _REGISTERS.search(line)
    if words is None:
        return ()
    first, *others = (int(word, 16) for word in words[1].replace(" ", "").split(",") if word)
    bits = {bit for bit in range(32) if first >> bit & 1}
    for variant, meant in _NVLINK_BITS.items():
        mild = variant in ("sympathetic", "ignore")
        if bits & meant and not (mild and (any(others) or bits - _MILD_BITS)):
            return (variant,)
    return ()


def _nvlink5(line: str) -> tuple[str, ...]:
    """Unit and status of an NVLink5 line, then its own word. 149 gives the reason of a lost link in bits 20-25."""
    text = _NVLINK5_TEXT.search(line)
    if text is None:
        return ()
    word = text["word"].lower()
    unit = _PIPE.sub("", _UNIT_NAMES.get(text["unit"], text["unit"]))
    if unit == _LINK_EVENT and text["info"]:
        return f"{_LINK_ROWS}{int(text['info'], 16) >> 20 & 0x3F}", word
    if text["status"]:
        return f"{unit.lower()}/{int(text['status'], 16):#x}", word
    return (word,)


def judge(catalog: Catalog, evidence: Evidence) -> Entry | None:
    """The row that fits the evidence best; None when the catalogue has none.

    The device's own verdict is never changed by a row: a row for an NVLink5 status counts only when it is as fatal as
    the line, and an SXid that its switch calls fatal is at least what the row for any fatal one says.
    """
    variants = variants_of(evidence)
    entry = next((found for variant in variants if (found := _exact(catalog, evidence, variant))), None)
    if evidence.kind != "sxid":
        return entry or catalog.find(evidence.kind, evidence.code)
    entry = entry or catalog.find("sxid", evidence.code, *variants)
    if "fatal" in variants and entry is not None and entry.severity is not Severity.CRITICAL:
        return catalog.exact("sxid", ANY_CODE, "fatal") or entry
    return entry


def _exact(catalog: Catalog, evidence: Evidence, variant: str) -> Entry | None:
    entry = catalog.exact(evidence.kind, evidence.code, variant)
    if entry is None or "/" not in variant:
        return entry
    row_is_fatal = entry.severity is Severity.CRITICAL or variant.startswith(_LINK_ROWS)
    return entry if row_is_fatal == bool(_FATAL.search(evidence.line)) else None


def variant_of(evidence: Evidence) -> str:
    """The most specific variant that a line shows; "" for the ordinary one."""
    return next(iter(variants_of(evidence)), "")


def classify(catalog: Catalog, evidence: Evidence) -> Fault:
    """Judges one piece of evidence by the catalogue. Time, boot and GPU are the caller's to add.

    A code that the catalogue does not know is suspect and wants a person: it is neither ignored nor acted upon.
    """
    entry = judge(catalog, evidence)
    if entry is None:
        return unknown_fault(evidence)
    return fault_of(evidence, entry)


def fault_of(evidence: Evidence, entry: Entry) -> Fault:
    """The fault that a row makes of the evidence."""
    return _judged(evidence, entry.fault_class, entry.severity, entry.action, entry.meaning)


def unknown_fault(evidence: Evidence) -> Fault:
    """The fault of a code that no row knows."""
    return _judged(evidence, FaultClass.SUSPECT, Severity.WARNING, FirstAction.CALL_HUMAN, "not in the fault catalogue")


def _judged(
    evidence: Evidence, fault_class: FaultClass, severity: Severity, action: FirstAction, meaning: str
) -> Fault:
    return Fault(
        key=f"{evidence.kind}:{evidence.code}@{evidence.pci or evidence.subject or 'node'}",
        kind=evidence.kind,
        code=evidence.code,
        fault_class=fault_class,
        severity=severity,
        action=action,
        reason=f"{code_name(evidence.kind, evidence.code)}: {meaning}",
        pci=evidence.pci,
        line=evidence.line,
        count=evidence.count,
        injected=evidence.injected,
    )
