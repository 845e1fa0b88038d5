"""What a colleague who knows the hardware would say about a fault, made from its row of the catalogue."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from everstep.core.fault_catalog import ANY_CODE, SHIPPED, VENDOR_BUCKETS, Catalog, Entry, Scope, Seen, code_name
from everstep.core.health import FaultClass, FirstAction, Severity

WIDTH = 88

_BLAME = {
    FaultClass.APPLICATION: (
        "The program, in all likelihood. The hardware is not accused for it, until two unrelated jobs hit the same "
        "{thing}."
    ),
    FaultClass.SUSPECT: "Not clear from this alone. It is noted and counted; by itself it takes no node out.",
    FaultClass.HARDWARE: "The hardware. Nothing in a user's program causes this, and nothing in it will mend it.",
    FaultClass.FABRIC: "A link of the fabric, its cable, or either end. The first device to report is the best lead.",
    FaultClass.STORAGE: "Storage. When several nodes say it at once it is the server, and no node is to blame.",
}
_THING = {
    Scope.APPLICATION: "GPU",
    Scope.GPU: "GPU",
    Scope.NODE: "node",
    Scope.FABRIC: "link",
    Scope.STORAGE: "disk or file system",
}
_FIRST = {
    FirstAction.NONE: "Nothing. Keep an eye on how often it comes.",
    FirstAction.RESTART_JOB: "Start the job again. The same nodes will do.",
    FirstAction.RESET_GPU: "Reset the GPU once nothing runs on it. Where one cannot be reset alone, reboot the node.",
    FirstAction.REBOOT_NODE: (
        "Take the node out of service and reboot it; a reset of the GPU does not reach far enough. If a spare is at "
        "hand, swap the node and reboot this one at leisure."
    ),
    FirstAction.REPLACE_NODE: "Replace the node. No reset and no reboot mends this part.",
    FirstAction.CALL_HUMAN: "Have a person look before anything is restarted or replaced.",
}
_NEXT = {
    FirstAction.NONE: "watch it",
    FirstAction.RESTART_JOB: "start the job again",
    FirstAction.RESET_GPU: "reset the GPU",
    FirstAction.REBOOT_NODE: "reboot the node",
    FirstAction.REPLACE_NODE: "replace the node",
    FirstAction.CALL_HUMAN: "call a person",
}
_SUB_CODE = re.compile(r"^[A-Z_]+ (?:status|reason) \w+: ")  # of NVLink5 errors: the variant says it already
_SEEN = {
    Seen.COMPANION: "This line goes with another one. It counts by itself when nothing else explains it within 5 s.",
    Seen.TRACE: "It takes a line and the frames that follow it to tell.",
    Seen.MERGED: "No single line says it: it is what several lines on one GPU mean together.",
    Seen.STATE: "It stands in no log; it is read from the driver or from a counter.",
}


def name_of(entry: Entry) -> str:
    """How people call it: ``XID 79``, ``SXid 12028``, ``host gpu_lost``."""
    return code_name(entry.kind, "of any code not listed" if entry.code == ANY_CODE else entry.code)


def advice(catalog: Catalog, entries: Sequence[Entry]) -> str:
    """All that is known about one code. ``entries`` are its rows, the ordinary one first."""
    first, *others = entries
    lines = [f"{name_of(first)}: {first.meaning}", ""]
    for label, text in _paragraphs(first):
        lines += _block(label, text)
    if others:
        lines += ["", "It also comes like this:"]
    for line in _forms(first, others):
        lines += textwrap.wrap(line, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    lines += _changes(catalog, entries)
    return "\n".join(lines) + "\n"


def _paragraphs(entry: Entry) -> Iterator[tuple[str, str]]:
    if entry.mnemonic:
        yield "The driver's name", entry.mnemonic
    yield "Who is to blame", _BLAME[entry.fault_class].format(thing=_THING[entry.scope])
    yield "The job", _job(entry)
    yield "Do first", _FIRST[entry.action]
    if entry.escalate_to:
        when = f" ({entry.escalate_when})" if entry.escalate_when else ""
        yield "If that is not enough", f"{_sentence(_NEXT[entry.escalate_to])}{when}."
    if entry.seen in _SEEN:
        yield "Where it shows", _SEEN[entry.seen]
    if entry.notes:
        yield "Good to know", entry.notes
    if entry.vendor_action:
        words = VENDOR_BUCKETS.get(entry.vendor_action)
        yield "The vendor says", f"{_sentence(words)} ({entry.vendor_action})." if words else entry.vendor_action
    if entry.example:
        yield "It looks like", entry.example
    yield "Known from", entry.source.replace(" | ", "; ")


def _job(entry: Entry) -> str:
    if entry.job_lost:
        return "Whatever ran on it is lost and has to go on from its last checkpoint."
    if entry.severity is Severity.INFO:
        return "Goes on and will not notice."
    return "Goes on; let it come to its end, or to its next checkpoint, before you act."


def _forms(ordinary: Entry, others: Sequence[Entry]) -> Iterator[str]:
    """One line for all forms that say the same: a reader of thirty sub-codes wants the five answers, not thirty."""
    same: dict[str, list[str]] = {}
    for entry in others:
        same.setdefault(_form(ordinary, entry), []).append(entry.variant)
    for text, variants in same.items():
        yield f"{', '.join(_shortened(variants))}: {text}"


def _form(ordinary: Entry, entry: Entry) -> str:
    meaning = _SUB_CODE.sub("", entry.meaning.removeprefix(f"{ordinary.meaning}, "))
    if meaning == ordinary.meaning:
        meaning = "the same"
    then = f", then {_NEXT[entry.escalate_to]} ({entry.escalate_when})" if entry.escalate_to else ""
    lost = "the job is lost" if entry.job_lost else "the job goes on"
    notes = f" {entry.notes}" if entry.notes else ""
    first = _sentence(_NEXT[entry.action])
    return f"{meaning} [{entry.severity}]. {first}{then}; {lost}.{notes}"


def _shortened(variants: Sequence[str]) -> Iterator[str]:
    """``netir_link_evt/2, /10``: in the order of the numbers, and what the one before begins with is not said again."""
    before = ""
    for variant in sorted(variants, key=_numbers):
        family, slash, _ = variant.rpartition("/")
        yield variant.removeprefix(family) if slash and family == before else variant
        before = family


def _numbers(variant: str) -> tuple[str, int, str]:
    family, _, code = variant.rpartition("/")
    return family, int(code, 0) if re.fullmatch(r"0x[0-9a-f]+|\d+", code) else 0, code


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _changes(catalog: Catalog, entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry.origin == SHIPPED:
            continue
        before = catalog.replaced.get((entry.kind, entry.code, entry.variant))
        yield ""
        yield from textwrap.wrap(f"Changed here by {entry.origin}: {difference(before, entry)}", WIDTH)


def difference(before: Entry | None, after: Entry) -> str:
    """What a site's row changes, in words; ``before`` None is a row that the site added."""
    if before is None:
        return "this row is the site's own."
    cells = ("meaning", "scope", "fault_class", "severity", "action", "escalate_to", "escalate_when", "job_lost")
    changed = [
        f"{name} is {getattr(after, name) or 'empty'} (shipped: {getattr(before, name) or 'empty'})"
        for name in cells
        if getattr(after, name) != getattr(before, name)
    ]
    return "; ".join(changed) + "." if changed else "nothing that counts."


def _block(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"{label + ':':<23}", subsequent_indent=" " * 23)
