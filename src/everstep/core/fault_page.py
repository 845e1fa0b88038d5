"""The reference page of the fault catalogue, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from everstep.core.fault_advice import difference
from everstep.core.fault_catalog import ANY_CODE, KINDS, SHIPPED, Catalog, Entry, Seen, code_name

_INTRODUCTION = """\
# Faults

Made from the fault catalogue by `everstep faults list --markdown`; do not edit. `everstep faults explain CODE` says
more about one code, notes and sources included.

- **class** says who is to blame. `application` and `suspect` never take a node out of service by themselves.
- **first** is what to do first, **then** the next step and when it is due. `[2/7d]` means that two episodes on one
  device within seven days are enough for it, whatever the node is called by then; `[2/7d: replaceNode]` that they call
  for another step than that.
- **job** says whether the job that uses the device is lost.
- **seen**: `line` one line of the kernel log; `companion` a line that counts only when no other explains it; `trace` a
  line and those after it; `merged` several lines of one device; `state` an answer of a driver or a counter.
- **variant** is what in the line, or with it, selects the row. `*` stands for any code that has no row of its own.

A site adds rows and changes cells with a table of its own (columns `kind`, `code` and any of: variant, meaning,
scope, class, severity, action, escalate_to, escalate_when, repeat, job_lost, seen, vendor_action, example, notes,
source), given with `--site FILE` or `EVERSTEP_SITE_FAULTS`, and to the agents by the chart
([how](../how-to/operate.md#change-what-a-fault-means-here)). `everstep faults list --changed` shows what it changed.
"""
_TITLES = {
    "xid": "XID: NVIDIA GPUs", "sxid": "SXid: NVSwitch", "amd": "AMD GPUs", "ib": "InfiniBand, EFA and Ethernet",
    "pcie": "PCI Express", "host": "The host, and what NVIDIA's driver says without an XID",
}  # fmt: skip


def render(catalog: Catalog) -> str:
    """The page. Rows are in the order of their codes."""
    parts = [_INTRODUCTION]
    for kind in KINDS:
        rows = sorted((entry for entry in catalog.entries.values() if entry.kind == kind), key=_order)
        parts.append(f"\n## {_TITLES[kind]}\n\n" + "\n".join(_table(rows)) + "\n")
    return "".join(parts)


def _order(entry: Entry) -> tuple[int, int, str, str]:
    number = int(entry.code) if entry.code.isdigit() else -1 if entry.code == ANY_CODE else 0
    return list(Seen).index(entry.seen) if entry.seen is Seen.STATE else 0, number, entry.code, entry.variant


def _table(rows: list[Entry]) -> Iterator[str]:
    yield "| code | variant | meaning | scope | class | severity | first | then | job | seen | vendor |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        cells = (
            row.code,
            row.variant,
            row.meaning,
            row.scope,
            row.fault_class,
            row.severity,
            row.action,
            _then(row),
            "lost" if row.job_lost else "goes on",
            row.seen,
            row.vendor_action,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def _then(row: Entry) -> str:
    if row.escalate_to is None:
        return ""
    count = f" [{row.repeat}]" if row.repeat else ""
    if row.repeat and row.repeat.action is not row.escalate_to:
        count = f" [{row.repeat}: {row.repeat.action}]"
    return f"{row.escalate_to}: {row.escalate_when}{count}" if row.escalate_when else f"{row.escalate_to}{count}"


def changed_rows(catalog: Catalog) -> list[str]:
    """One line for every row of the site: what it is and what it changes."""
    return [
        f"{code_name(entry.kind, entry.code)}{' ' + entry.variant if entry.variant else ''} ({entry.origin}): "
        + difference(catalog.replaced.get((entry.kind, entry.code, entry.variant)), entry)
        for entry in catalog.entries.values()
        if entry.origin != SHIPPED
    ]
