"""Records of /dev/kmsg."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.kmsg_record import KernelRecord, parse_record


def test_a_record_with_continuation_lines() -> None:
    data = b"6,339,5140900,-;NET: Registered protocol family 10\n SUBSYSTEM=net\n DEVICE=n1\n"
    assert parse_record(data) == KernelRecord(6, 339, 5140900, b"NET: Registered protocol family 10")


def test_further_head_fields_are_passed_over() -> None:
    assert parse_record(b"3,7,9,c,caller=T12,more=x;text") == KernelRecord(3, 7, 9, b"text")


def test_escapes_are_undone() -> None:
    assert parse_record(b"3,7,9,-;a\\x5cb\\x09c") == KernelRecord(3, 7, 9, b"a\\b\tc")


@pytest.mark.parametrize(("priority", "kernel"), [(0, True), (7, True), (8, False), (12, False), (191, False)])
def test_facility_zero_is_the_kernel(priority: int, kernel: bool) -> None:
    record = parse_record(b"%d,1,1,-;x" % priority)
    assert record is not None
    assert record.from_kernel is kernel


@pytest.mark.parametrize("data", [b"", b"x", b"6,339,514", b"6;text", b"-1,2,3,-;x", b"a,b,c,-;x", b"6,339,5140900,-"])
def test_no_record(data: bytes) -> None:
    assert parse_record(data) is None


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    parse_record(data)
    parse_record(b"6,1,2,-;" + data)
