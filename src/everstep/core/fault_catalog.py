"""The fault catalogue: what each code means and what to do first. It is data (``core/catalog/*.csv``)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from everstep.core.errors import InvalidInput
from everstep.core.health import FaultClass, FirstAction, Severity

COLUMNS = (
    "code", "variant", "mnemonic", "meaning", "scope", "class", "severity", "action", "escalate_to", "escalate_when",
    "repeat", "job_lost", "seen", "vendor_action", "example", "notes", "source",
)  # fmt: skip
REQUIRED = ("code", "meaning", "scope", "class", "severity", "action", "job_lost", "seen", "source")
KINDS = ("xid", "sxid", "amd", "ib", "pcie", "host")
_KIND_NAMES = {
    "xid": "XID", "sxid": "SXid", "amd": "AMD", "ib": "network", "pcie": "PCI Express",
}  # fmt: skip
ANY_CODE = "*"  # the row for a code of its kind that has none of its own
# What NVIDIA's XID catalogue advises, in its words (Oct-2025, and the r590 wording of XID 168) and in plain ones.
VENDOR_BUCKETS = {
    "": "",
    "IGNORE": "nothing has to be done at once",
    "RESTART_APP": "start the program again",
    "RESET_GPU": "reset the GPU",
    "RESTART_BM": "reboot the machine",
    "RESTART_VM": "restart the virtual machine",
    "CONTACT_SUPPORT": "ask its support",
    "UPDATE_SWFW": "update the driver and the firmware",
    "CHECK_UVM": "check the driver of unified memory",
    "CHECK_MECHANICALS": "check the seating and the cables",
    "WORKFLOW_XID_45": "follow its procedure for XID 45",
    "WORKFLOW_XID_48": "follow its procedure for XID 48",
    "WORKFLOW_NVLINK_ERR": "follow its procedure for errors of NVLink",
    "WORKFLOW_NVLINK5_ERR": "follow its procedure for errors of NVLink 5",
    "XID_154": "do what the XID 154 beside it asks for",
    "XID_154_EVAL": "do what the XID 154 beside it asks for",
    "BOOT_REATTEMPT_OR_ENABLE_ECC": "boot again, or enable ECC",
}
SHIPPED = "shipped"

_Word = TypeVar("_Word", bound=StrEnum)
_REPEAT = re.compile(r"([1-9]\d?)/([1-9]\d{0,2})(h|d)(?::(\w+))?")
_SECONDS = {"h": 3600.0, "d": 86400.0}
LONGEST_WINDOW = 7 * 86400.0  # seconds: how long the history of a GPU is kept


class Scope(StrEnum):
    """What is broken, and so what an action has to reach."""

    APPLICATION = "application"
    GPU = "gpu"
    NODE = "node"
    FABRIC = "fabric"
    STORAGE = "storage"


class Seen(StrEnum):
    """Where a row's fault shows."""

    LINE = "line"  # one line of the kernel log
    COMPANION = "companion"  # a line that goes with another one; alone it counts after a while
    TRACE = "trace"  # a line and the records that follow it
    MERGED = "merged"  # several lines of one device taken together
    STATE = "state"  # what a driver or a counter says when asked


def code_name(kind: str, code: str) -> str:
    """How people call a code: ``XID 79``, ``SXid 12028``, ``host gpu_lost``."""
    return f"{_KIND_NAMES.get(kind, kind)} {code}"


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many episodes on one device within ``seconds`` call for ``action``, which is mostly the row's next step."""

    times: int
    seconds: float
    action: FirstAction

    def __str__(self) -> str:
        """``2/7d``, ``3/24h``."""
        days = self.seconds / _SECONDS["d"]
        return (
            f"{self.times}/{days:.0f}d"
            if days > 1 and days.is_integer()
            else f"{self.times}/{self.seconds / 3600:.0f}h"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One row.

    Attributes:
        kind: as in :class:`everstep.core.health.Evidence`; the name of the file that the row stands in.
        variant: what in the line selects this row; "" for the code's ordinary meaning.
        escalate_to, escalate_when: next step when the first action did not help; "" where there is none.
        repeat: how many sightings alone call for the next step; None where a count says nothing.
        job_lost: whether the job that used the device cannot go on by itself.
        vendor_action: what the vendor's own table advises, in its words.
        example: a line that shows it, where the row is not one of a numbered family.
        source: where the row comes from.
        origin: "shipped", or the name of the site's table that added or changed the row.
    """

    kind: str
    code: str
    variant: str
    mnemonic: str
    meaning: str
    scope: Scope
    fault_class: FaultClass
    severity: Severity
    action: FirstAction
    escalate_to: FirstAction | None
    escalate_when: str
    repeat: Repeat | None
    job_lost: bool
    seen: Seen
    vendor_action: str
    example: str
    notes: str
    source: str
    origin: str = SHIPPED


@dataclass(frozen=True, slots=True)
class Catalog:
    """All rows, found by kind, code and variant.

    Attributes:
        replaced: the shipped rows that a site's table has changed.
    """

    entries: Mapping[tuple[str, str, str], Entry] = field(default_factory=dict)
    replaced: Mapping[tuple[str, str, str], Entry] = field(default_factory=dict)

    def find(self, kind: str, code: str, variant: str = "") -> Entry | None:
        """The row for the variant, else the code's ordinary row, else the kind's row for any code, else None."""
        for key in ((kind, code, variant), (kind, code, ""), (kind, ANY_CODE, variant), (kind, ANY_CODE, "")):
            entry = self.entries.get(key)
            if entry is not None:
                return entry
        return None

    def exact(self, kind: str, code: str, variant: str) -> Entry | None:
        """The row for exactly this variant of this code, or None."""
        return self.entries.get((kind, code, variant))

    def of_code(self, code: str) -> list[Entry]:
        """Every row of a code, in every kind, ordinary ones first."""
        return sorted(
            (entry for entry in self.entries.values() if entry.code == code),
            key=lambda entry: (KINDS.index(entry.kind), entry.variant),
        )


def load_catalog(tables: Mapping[str, str]) -> Catalog:
    """Reads CSV tables, by kind, into one catalogue.

    Raises:
        InvalidInput: a column is missing or unknown, a row repeats a key, a word is not known, a required cell is
            empty, or a code has variants but no ordinary row. The text names the table and the row (the header is 1).
    """
    entries: dict[tuple[str, str, str], Entry] = {}
    for kind, text in tables.items():
        if kind not in KINDS:
            raise InvalidInput(f"{kind}.csv: {kind!r} is none of {', '.join(KINDS)}")
        for line, row in table_rows(f"{kind}.csv", text, COLUMNS, COLUMNS):
            where = f"{kind}.csv row {line}"
            entry = entry_of(kind, row, where)
            key = (kind, entry.code, entry.variant)
            if key in entries:
                raise InvalidInput(f"{where}: code {entry.code} variant {entry.variant!r} stands twice")
            entries[key] = entry
    require_ordinary_rows(entries)
    return Catalog(entries)


def require_ordinary_rows(entries: Mapping[tuple[str, str, str], Entry]) -> None:
    """InvalidInput when a code has variants but no row without a variant: an unknown variant would then have none."""
    for kind, code, variant in entries:
        if variant and (kind, code, "") not in entries:
            raise InvalidInput(f"{kind}.csv: code {code} has the variant {variant!r} but no row without a variant")


def table_rows(
    name: str, text: str, needed: tuple[str, ...], allowed: tuple[str, ...]
) -> Iterable[tuple[int, dict[str, str]]]:
    """The rows of a CSV table with their numbers, the header being row 1. InvalidInput names the table and the row."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        columns = tuple(reader.fieldnames or ())
    except csv.Error as error:
        raise InvalidInput(f"{name} row 1: {error}") from None
    if needed == allowed and columns != needed:
        raise InvalidInput(f"{name} row 1: the columns must be {','.join(needed)}")
    if missing := [column for column in needed if column not in columns]:
        raise InvalidInput(f"{name} row 1: the column {missing[0]!r} is missing")
    if unknown := [column for column in columns if column not in allowed]:
        raise InvalidInput(f"{name} row 1: the column {unknown[0]!r} is none of {','.join(allowed)}")
    if len(set(columns)) != len(columns):
        raise InvalidInput(f"{name} row 1: a column stands twice")
    try:
        for number, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise InvalidInput(f"{name} row {number}: {len(columns)} cells are needed")
            yield number, row
    except csv.Error as error:
        raise InvalidInput(f"{name} line {reader.line_num}: {error}") from None


def entry_of(kind: str, row: Mapping[str, str], where: str, origin: str = SHIPPED) -> Entry:
    """One row as an entry. InvalidInput says which cell is wrong; ``where`` names the table and the row."""
    for column in REQUIRED:
        if not row[column].strip():
            raise InvalidInput(f"{where}: the column {column!r} is empty")
    if row["job_lost"] not in ("yes", "no"):
        raise InvalidInput(f"{where}: job_lost must be yes or no, not {row['job_lost']!r}")
    if kind in ("xid", "sxid") and not row["code"].isdigit() and (kind, row["code"]) != ("sxid", ANY_CODE):
        raise InvalidInput(f"{where}: an {kind.upper()} is a number, not {row['code']!r}")
    if kind == "xid" and row["vendor_action"] not in VENDOR_BUCKETS:
        raise InvalidInput(f"{where}: the bucket {row['vendor_action']!r} is none of NVIDIA's")
    if row["repeat"] and not row["escalate_to"]:
        raise InvalidInput(f"{where}: repeat says when to escalate, but escalate_to is empty")
    return Entry(
        kind=kind,
        code=row["code"],
        variant=row["variant"],
        mnemonic=row["mnemonic"],
        meaning=row["meaning"],
        scope=_word(Scope, row["scope"], where),
        fault_class=_word(FaultClass, row["class"], where),
        severity=_word(Severity, row["severity"], where),
        action=_word(FirstAction, row["action"], where),
        escalate_to=_word(FirstAction, row["escalate_to"], where) if row["escalate_to"] else None,
        escalate_when=row["escalate_when"],
        repeat=_repeat(row["repeat"], row["escalate_to"], where),
        job_lost=row["job_lost"] == "yes",
        seen=_word(Seen, row["seen"], where),
        vendor_action=row["vendor_action"],
        example=row["example"],
        notes=row["notes"],
        source=row["source"],
        origin=origin,
    )


def _word(words: type[_Word], text: str, where: str) -> _Word:
    try:
        return words(text)
    except ValueError:
        raise InvalidInput(f"{where}: {text!r} is none of {', '.join(words)}") from None


def _repeat(text: str, next_step: str, where: str) -> Repeat | None:
    if not text:
        return None
    match = _REPEAT.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{where}: repeat must look like 2/7d, 3/24h or 2/7d:replaceNode, not {text!r}")
    seconds = int(match[2]) * _SECONDS[match[3]]
    if seconds > LONGEST_WINDOW:
        raise InvalidInput(f"{where}: repeat reaches back further than the 7 days that are kept: {text!r}")
    return Repeat(int(match[1]), seconds, _word(FirstAction, match[4] or next_step, where))
