"""Tables for people on a terminal, and for programs that read along."""

from __future__ import annotations

import pytest
from rich.table import Table

from everstep.lab.terminal import console

LONG = "word " * 60


def test_a_row_is_one_line_for_a_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("name", "text")
    table.add_row("a", LONG)
    out = console()
    out.print(table)
    out.print(f"a sentence, {LONG}")
    printed = capsys.readouterr().out
    assert len([line for line in printed.splitlines() if "word" in line]) == 2
    assert "…" not in printed


def test_columns_overrules(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    console().print(LONG)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
