"""A site's own rows of the fault catalogue: codes that it adds, and shipped rows of which it changes cells."""

from __future__ import annotations

from dataclasses import fields

from everstep.core.errors import InvalidInput
from everstep.core.fault_catalog import (
    COLUMNS,
    KINDS,
    Catalog,
    Entry,
    entry_of,
    require_ordinary_rows,
    table_rows,
)

_DEFAULTS = {"scope": "node", "seen": "line"}  # of a row that the site adds


def with_site_rows(catalog: Catalog, text: str, origin: str) -> Catalog:
    """The catalogue with a site's rows.

    The table has the columns ``kind`` and ``code`` and any others of the shipped tables. A row whose kind, code and
    variant are shipped changes the cells that it fills and keeps the others; any other row is added and must be whole.
    Where no ``source`` is given, the table's own name stands for it.

    Args:
        text: CSV.
        origin: name of the site's table; it is shown with every row that comes from it.

    Raises:
        InvalidInput: as for the shipped tables; the text names the table and the row.
    """
    entries = dict(catalog.entries)
    replaced = dict(catalog.replaced)
    own: set[tuple[str, str, str]] = set()
    for number, row in table_rows(origin, text, ("kind", "code"), ("kind", *COLUMNS)):
        where = f"{origin} row {number}"
        if row["kind"] not in KINDS:
            raise InvalidInput(f"{where}: kind {row['kind']!r} is none of {', '.join(KINDS)}")
        key = (row["kind"], row["code"].strip(), row.get("variant", ""))
        if key in own:
            raise InvalidInput(f"{where}: {key[0]} {key[1]} variant {key[2]!r} stands twice")
        own.add(key)
        shipped = entries.get(key)
        cells = _cells(shipped) if shipped else {**dict.fromkeys(COLUMNS, ""), **_DEFAULTS, "source": origin}
        filled = {column: row[column] for column in COLUMNS if row.get(column)}
        if shipped and "action" in filled and "escalate_to" not in filled and filled["action"] == cells["escalate_to"]:
            cells["escalate_to"] = cells["escalate_when"] = cells["repeat"] = ""  # the first step is now the next one
        entries[key] = entry_of(row["kind"], {**cells, **filled, "code": key[1]}, where, origin)
        if shipped:
            replaced[key] = shipped
    require_ordinary_rows(entries)
    return Catalog(entries, replaced)


def changes(catalog: Catalog) -> list[tuple[Entry, Entry | None]]:
    """Every row of the site with the shipped row that it replaces, or None for one that it added."""
    return [
        (entry, catalog.replaced.get((entry.kind, entry.code, entry.variant)))
        for entry in catalog.entries.values()
        if entry.origin != "shipped"
    ]


def _cells(entry: Entry) -> dict[str, str]:
    """An entry as the cells that would give it."""
    cells: dict[str, str] = {}
    for item in fields(Entry):
        column = "class" if item.name == "fault_class" else item.name
        if column in COLUMNS:
            cells[column] = _cell(getattr(entry, item.name))
    if entry.repeat and entry.repeat.action is not entry.escalate_to:
        cells["repeat"] += f":{entry.repeat.action}"
    return cells


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
