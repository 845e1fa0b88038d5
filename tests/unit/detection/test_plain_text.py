"""What strangers write is shown and stored: it stays in its line, and small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.health import (
    LINE_LIMIT,
    NAME_LIMIT,
    REASON_LIMIT,
    Evidence,
    Fault,
    FaultClass,
    FirstAction,
    NodeReport,
    Severity,
    Verdict,
)
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.plain_text import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python3", "python3"),
        ("\x1b[2J\x1b[31mok", "\ufffd[2J\ufffd[31mok"),  # clears the terminal
        ("\x9b2Jok", "\ufffd2Jok"),  # the same in one byte
        ("one\ntwo\r\tthree", "one two  three"),
        ("left\u202eright", "left\ufffdright"),  # turns the direction of writing around
        ("\udcff", "\ufffd"),  # half a character, which JSON cannot hold
        ("naïve 数据", "naïve 数据"),
    ],
)
def test_a_text_is_one_line_that_moves_no_cursor(text: str, shown: str) -> None:
    assert plain(text, 100) == shown


@given(st.text(st.characters(), max_size=40), st.integers(0, 60))
def test_any_text_is_printable_short_and_the_same_the_second_time(text: str, limit: int) -> None:
    found = plain(text, limit)
    assert found.isprintable()
    assert len(found.encode()) <= limit
    assert plain(found, limit) == found


@given(st.text(st.characters(), max_size=300))
def test_evidence_of_any_source_is_plain(text: str) -> None:
    found = Evidence("host", "mount_hangs", line=text * 3, subject=text, process=text)
    assert found.line.isprintable()
    assert len(found.line.encode()) <= LINE_LIMIT
    for name in (found.subject, found.process):
        assert name is not None
        assert name.isprintable()
        assert len(name.encode()) <= NAME_LIMIT


def test_what_a_stolen_token_reports_is_plain_too() -> None:
    screen = "\x1b[2J" * 9000
    fault = Fault(screen, screen, screen, FaultClass.HARDWARE, Severity.CRITICAL, FirstAction.REPLACE_NODE, screen)
    report = NodeReport("gpu-1", Verdict.FAULTY, faults=(fault,), reason=screen)
    for text in (fault.key, fault.kind, fault.code, fault.reason, report.reason):
        assert text.isprintable()
        assert len(text.encode()) <= REASON_LIMIT


def test_a_process_may_not_write_on_the_terminal_of_whoever_reads_its_fault() -> None:
    record = b"4,7,9,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=5, name=\\x1b[2Jevil, Graphics Exception"
    found = parse_line(record)
    assert found is not None
    assert found.process == "\ufffd[2Jevil"
    assert "\x1b" not in found.line
