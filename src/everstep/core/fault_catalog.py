"""The fault catalogue: what each code means and what to do first. It is data (``core/catalog/*.csv``)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from everstep.core.errors import InvalidInput
from everstep.core.health import FaultClass, FirstAction, Severity

COLUMNS = (
    "code", "variant", "mnemonic", "meaning", "class", "severity", "action",
    "escalate_to", "escalate_when", "job_lost", "vendor_action", "notes", "source",
)  # fmt: skip
_REQUIRED = ("code", "meaning", "class", "severity", "action", "job_lost", "source")
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row.

    Attributes:
        kind: as in :class:`everstep.core.health.Evidence`; the name of the file that the row stands in.
        variant: what in the line selects this row; "" for the code's ordinary meaning.
        escalate_to, escalate_when: next step when the first action did not help; "" where there is none.
        job_lost: whether the job that used the device cannot go on by itself.
        vendor_action: what the vendor's own table advises, in its words.
        source: where the row comes from.
    """

    kind: str
    code: str
    variant: str
    mnemonic: str
    meaning: str
    fault_class: FaultClass
    severity: Severity
    action: FirstAction
    escalate_to: FirstAction | None
    escalate_when: str
    job_lost: bool
    vendor_action: str
    notes: str
    source: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """All rows, found by kind, code and variant."""

    entries: Mapping[tuple[str, str, str], Entry] = field(default_factory=dict)

    def find(self, kind: str, code: str, variant: str = "") -> Entry | None:
        """The row for the variant, else the code's ordinary row, else None."""
        return self.entries.get((kind, code, variant)) or self.entries.get((kind, code, ""))


def load_catalog(tables: Mapping[str, str]) -> Catalog:
    """Reads CSV tables, by kind, into one catalogue.

    Raises:
        InvalidInput: a column is missing or unknown, a row repeats a key, a word is not known, a required cell is
            empty, or a code has variants but no ordinary row. The text names the table and the row (the header is 1).
    """
    entries: dict[tuple[str, str, str], Entry] = {}
    for kind, text in tables.items():
        for line, entry in _rows(kind, text):
            key = (kind, entry.code, entry.variant)
            if key in entries:
                raise InvalidInput(f"{kind}.csv row {line}: code {entry.code} variant {entry.variant!r} stands twice")
            entries[key] = entry
    for kind, code, variant in entries:
        if variant and (kind, code, "") not in entries:
            raise InvalidInput(f"{kind}.csv: code {code} has the variant {variant!r} but no row without a variant")
    return Catalog(entries)


def _rows(kind: str, text: str) -> Iterable[tuple[int, Entry]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise InvalidInput(f"{kind}.csv row 1: the columns must be {','.join(COLUMNS)}")
    try:
        for number, row in enumerate(reader, start=2):
            where = f"{kind}.csv row {number}"
            if None in row or None in row.values():
                raise InvalidInput(f"{where}: {len(COLUMNS)} cells are needed")
            yield number, _entry(kind, row, where)
    except csv.Error as error:
        raise InvalidInput(f"{kind}.csv line {reader.line_num}: {error}") from None


def _entry(kind: str, row: Mapping[str, str], where: str) -> Entry:
    for column in _REQUIRED:
        if not row[column].strip():
            raise InvalidInput(f"{where}: the column {column!r} is empty")
    if row["job_lost"] not in ("yes", "no"):
        raise InvalidInput(f"{where}: job_lost must be yes or no, not {row['job_lost']!r}")
    if kind == "xid" and not row["code"].isdigit():
        raise InvalidInput(f"{where}: an XID is a number, not {row['code']!r}")
    return Entry(
        kind=kind,
        code=row["code"],
        variant=row["variant"],
        mnemonic=row["mnemonic"],
        meaning=row["meaning"],
        fault_class=_word(FaultClass, row["class"], where),
        severity=_word(Severity, row["severity"], where),
        action=_word(FirstAction, row["action"], where),
        escalate_to=_word(FirstAction, row["escalate_to"], where) if row["escalate_to"] else None,
        escalate_when=row["escalate_when"],
        job_lost=row["job_lost"] == "yes",
        vendor_action=row["vendor_action"],
        notes=row["notes"],
        source=row["source"],
    )


def _word(words: type[_Word], text: str, where: str) -> _Word:
    try:
        return words(text)
    except ValueError:
        raise InvalidInput(f"{where}: {text!r} is none of {', '.join(words)}") from None
