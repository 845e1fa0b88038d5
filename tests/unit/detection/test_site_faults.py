"""A site's own rows: cells that it changes, codes that it adds, and tables that are wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import catalog_with, shipped_catalog
from everstep.core.errors import InvalidInput
from everstep.core.fault_catalog import COLUMNS, Repeat, Scope
from everstep.core.health import FaultClass, FirstAction, Severity
from everstep.core.site_faults import changes, with_site_rows

SHIPPED = shipped_catalog()
NEW = (
    "kind,code,meaning,class,severity,action,escalate_to,repeat,job_lost\n"
    "xid,990,our own code,suspect,warning,none,callHuman,3/24h,no\n"
)


def test_a_row_changes_only_the_cells_that_it_fills() -> None:
    catalog = with_site_rows(SHIPPED, "kind,code,severity,action\nxid,63,,replaceNode\n", "site.csv")
    before, after = SHIPPED.entries["xid", "63", ""], catalog.entries["xid", "63", ""]
    assert after.action is FirstAction.REPLACE_NODE
    assert (after.meaning, after.severity, after.source) == (before.meaning, before.severity, before.source)
    assert after.origin == "site.csv"
    assert changes(catalog) == [(after, before)]
    assert SHIPPED.entries["xid", "63", ""] == before


def test_the_first_step_does_not_stay_the_next_one_too() -> None:
    after = with_site_rows(SHIPPED, "kind,code,action\nxid,79,replaceNode\n", "s").entries["xid", "79", ""]
    assert (after.escalate_to, after.repeat) == (None, None)


def test_a_variant_is_changed_alone() -> None:
    catalog = with_site_rows(SHIPPED, "kind,code,variant,action\nxid,154,to-0x1,rebootNode\n", "s")
    assert catalog.entries["xid", "154", "to-0x1"].action is FirstAction.REBOOT_NODE
    assert catalog.entries["xid", "154", ""] == SHIPPED.entries["xid", "154", ""]


def test_a_code_of_the_sites_own() -> None:
    catalog = with_site_rows(SHIPPED, NEW, "site.csv")
    entry = catalog.find("xid", "990")
    assert entry is not None
    assert (entry.fault_class, entry.severity, entry.scope) == (FaultClass.SUSPECT, Severity.WARNING, Scope.NODE)
    assert entry.repeat == Repeat(3, 86400.0, FirstAction.CALL_HUMAN)
    assert entry.source == "site.csv"
    assert changes(catalog) == [(entry, None)]


def test_every_shipped_row_survives_being_written_and_read() -> None:
    """A row that changes nothing leaves the row as it was, so no cell is lost on the way through text."""
    for key, entry in SHIPPED.entries.items():
        again = with_site_rows(SHIPPED, f"kind,code,variant\n{key[0]},{key[1]},{key[2]}\n", "shipped").entries[key]
        assert again == entry


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("code,action\n79,none\n", "site.csv row 1: the column 'kind' is missing"),
        ("kind,action\nxid,none\n", "row 1: the column 'code' is missing"),
        ("kind,code,colour\nxid,79,red\n", "row 1: the column 'colour' is none of kind,code"),
        ("kind,code,code\nxid,79,79\n", "row 1: a column stands twice"),
        ("kind,code,action\ngpu,79,none\n", "row 2: kind 'gpu' is none of xid"),
        ("kind,code,action\nxid,79,explode\n", "row 2: 'explode' is none of none, restartJob"),
        ("kind,code,action\nxid,79,none\nxid,79,resetGPU\n", "row 3: xid 79 variant '' stands twice"),
        ("kind,code,action\nxid,990,none\n", "row 2: the column 'meaning' is empty"),
        (
            "kind,code,variant,meaning,class,severity,action,job_lost\nxid,990,x,m,suspect,info,none,no\n",
            "no row without",
        ),
        ("kind,code,vendor_action\nxid,79,RESET_ALL\n", "row 2: the bucket 'RESET_ALL'"),
        ("kind,code,repeat\nxid,79,twice\n", "row 2: repeat must look like"),
        ("kind,code,repeat\nxid,79,2/7d:explode\n", "row 2: 'explode' is none of"),
        ("kind,code,repeat\nxid,79,2/30d\n", "row 2: repeat reaches back further"),
        ("kind,code,repeat\nxid,14,2/7d\n", "row 2: repeat says when to escalate, but"),
        ("kind,code\nxid\n", "row 2: 2 cells"),
    ],
)
def test_a_wrong_table_names_the_row(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        with_site_rows(SHIPPED, text, "site.csv")


def test_the_columns_are_those_of_the_shipped_tables() -> None:
    header = ",".join(("kind", *COLUMNS))
    assert with_site_rows(SHIPPED, header + "\n", "site.csv").entries == SHIPPED.entries


@given(st.lists(st.tuples(st.integers(0, len(NEW) - 1), st.sampled_from('",\n\r\0-/é')), max_size=6))
def test_a_damaged_table_is_understood_or_refused(damage: list[tuple[int, str]]) -> None:
    table = list(NEW)
    for at, char in damage:
        table[at] = char
    with contextlib.suppress(InvalidInput):  # no other error may come out of a site's typing
        with_site_rows(SHIPPED, "".join(table), "site.csv")


def test_a_bare_carriage_return_in_the_header_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"site\.csv row 1: new-line character"):
        with_site_rows(SHIPPED, NEW.replace("meaning", "mea\rning"), "site.csv")


def test_a_table_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    table = tmp_path / "site.csv"
    table.write_bytes(b"\xef\xbb\xbf" + NEW.replace("\n", "\r\n").encode())
    assert catalog_with(table).find("xid", "990") is not None
