"""What `everstep faults` prints, made from lines and from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from everstep.core.errors import NotFound
from everstep.core.fault_catalog import KINDS, SHIPPED, Catalog, Entry
from everstep.core.faults import classify
from everstep.core.health import Evidence
from everstep.core.kernel_lines.folding import NOTHING, follow

_NUMBERED = ("xid", "sxid")
_SPELLING = re.compile(rf"^({'|'.join(KINDS)})(?:[ :]+|(?=\d))")  # XID 79, xid:79, XID79


def read(lines: Iterable[bytes], allow_injected: bool) -> Iterator[Evidence | None]:
    """What each line says, with what the lines before it have begun."""
    state = NOTHING
    for line in lines:
        state, evidence = follow(state, line.rstrip(b"\r\n"), allow_injected=allow_injected)
        yield evidence


def described(catalog: Catalog, evidence: Evidence | None) -> dict[str, Any]:
    """A line as the JSON object that ``parse`` prints for it."""
    if evidence is None:
        names = ("code", "pci", "pid", "process", "class", "severity", "action", "reason")
        return {"kind": "none", **dict.fromkeys(names)}
    fault = classify(catalog, evidence)
    return {
        "kind": evidence.kind,
        "code": int(evidence.code) if evidence.kind in _NUMBERED else evidence.code,
        "pci": evidence.pci,
        "pid": evidence.pid,
        "process": evidence.process,
        "class": fault.fault_class.value,
        "severity": fault.severity.value,
        "action": fault.action.value,
        "reason": fault.reason,
    }


def sentence(catalog: Catalog, evidence: Evidence) -> str:
    """A line that reports a fault, in one line for a person."""
    fault = classify(catalog, evidence)
    where = f" on {evidence.pci or evidence.subject}" if evidence.pci or evidence.subject else ""
    who = f", process {evidence.process or '?'} ({evidence.pid})" if evidence.pid is not None else ""
    times = f", {evidence.count} times" if evidence.count > 1 else ""
    injected = ", written by a program" if evidence.injected else ""
    return (
        f"{fault.severity.upper():<8} {fault.reason}{where}{who}{times}{injected} [{fault.fault_class}, {fault.action}]"
    )


def row(catalog: Catalog, entry: Entry) -> str:
    """A row of the catalogue in one line; one of the site's own table says so."""
    name = f"{entry.kind} {entry.code}{' ' + entry.variant if entry.variant else ''}"
    mark = ""
    if entry.origin != SHIPPED:
        changed = (entry.kind, entry.code, entry.variant) in catalog.replaced
        mark = f"  [{'changed' if changed else 'added'} by {entry.origin}]"
    return f"{name:<34} {entry.fault_class:<11} {entry.severity:<8} {entry.action:<11} {entry.meaning}{mark}"


def rows_of(catalog: Catalog, asked: str) -> list[list[Entry]]:
    """The rows of a code, one group for each kind that knows it. NotFound says how to look."""
    kind, _, code = _SPELLING.sub(r"\1:", asked.strip().lower()).rpartition(":")
    code = str(int(code)) if code.isdecimal() else code
    rows = [entry for entry in catalog.of_code(code) if kind in ("", entry.kind)]
    if not rows:
        raise NotFound(_not_found(catalog, asked, code))
    return [[row for row in rows if row.kind == name] for name in dict.fromkeys(row.kind for row in rows)]


def _not_found(catalog: Catalog, asked: str, code: str) -> str:
    if code in KINDS:
        return f"{code!r} is a kind of fault and no code; `everstep faults list --kind {code}` shows its codes"
    close = get_close_matches(code, {entry.code for entry in catalog.entries.values()} if not code.isdecimal() else ())
    meant = f"; did you mean {' or '.join(close)}?" if close else ";"
    return f"no fault has the code {asked!r}{meant} `everstep faults list` shows all of them"
