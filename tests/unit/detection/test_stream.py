"""Following a log: repeats are cheap and counted, a record that breaks the parser is passed over, order is kept."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.correlation.tally import tallied
from everstep.core.health import Evidence
from everstep.core.kernel_lines import stream
from everstep.core.kernel_lines.stream import MEMORY, Heard, RecordStream

GONE = (
    b"NVRM: The NVIDIA GPU 0000:01:00.0",
    b"               NVRM: (PCI ID: 10de:26b5) installed in this system has",
    b"               NVRM: fallen off the bus and is not responding to commands.",
)


def record(sequence: int, text: bytes, priority: int = 4, microseconds: int = 5) -> bytes:
    return b"%d,%d,%d,-;%s" % (priority, sequence, microseconds, text)


def xid(sequence: int, code: int, rest: bytes = b"", priority: int = 4, microseconds: int = 5) -> bytes:
    text = b"NVRM: Xid (PCI:0000:02:00): %d, pid=1, name=a, %s" % (code, rest)
    return record(sequence, text, priority, microseconds)


def codes(heard: list[Heard]) -> list[tuple[int, str]]:
    return [(item.sequence, item.evidence.code) for item in heard]


def test_what_repeats_is_read_once_and_told_every_time() -> None:
    heard = RecordStream().take([xid(n, 95) for n in range(5)])
    assert codes(heard) == [(n, "95") for n in range(5)]
    assert len({id(item.evidence) for item in heard}) == 1


def test_known_records_are_passed_over_but_what_they_began_is_known() -> None:
    log = RecordStream()
    records = [record(n, text) for n, text in enumerate(GONE, start=1)]
    assert codes(log.take(records[:2], after=2)) == []
    (lost,) = log.take(records[2:], after=2)
    assert (lost.sequence, lost.evidence.code, lost.evidence.pci) == (3, "gpu_lost_at_boot", "0000:01:00.0")


def test_the_same_text_means_another_thing_after_another_beginning() -> None:
    log = RecordStream()
    text = b"               NVRM: fallen off the bus and is not responding to commands."
    assert [item.evidence.pci for item in log.take([record(1, text)])] == [None]
    assert [item.evidence.pci for item in log.take([record(n, text) for n, text in enumerate(GONE, 2)])] == [
        "0000:01:00.0"
    ]


def test_who_wrote_it_is_not_forgotten_with_the_text() -> None:
    log = RecordStream()
    assert codes(log.take([xid(1, 79, priority=4), xid(2, 79, priority=12)])) == [(1, "79")]
    believing = RecordStream(allow_injected=True)
    assert [item.evidence.injected for item in believing.take([xid(1, 79), xid(2, 79, priority=12), xid(3, 79)])] == [
        False, True, False,
    ]  # fmt: skip


def test_old_records_are_passed_over() -> None:
    assert codes(RecordStream(not_before=10).take([xid(1, 79, microseconds=9), xid(2, 79, microseconds=10)])) == [
        (2, "79")
    ]


def test_a_poison_record_is_counted_and_the_next_ones_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = stream.follow

    def follow(before: object, line: bytes, **flags: bool) -> object:
        if b"poison" in line:
            raise RecursionError
        return sound(before, line, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(stream, "follow", follow)
    log = RecordStream()
    assert codes(log.take([xid(1, 79), xid(2, 95, b"poison"), xid(3, 48)])) == [(1, "79"), (3, "48")]
    assert log.skipped == 1


def test_the_memory_is_bounded() -> None:
    log = RecordStream()
    heard = log.take([xid(n, 95, b"%d" % n) for n in range(3 * MEMORY)])
    assert len(heard) == 3 * MEMORY
    assert len(log._meanings) <= MEMORY


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes(records: list[bytes]) -> None:
    log = RecordStream(allow_injected=True)
    log.take(records)
    log.take([b"4,1,1,-;NVRM: Xid (" + data for data in records])
    assert log.skipped == 0


def test_a_tally_says_each_thing_once_in_the_order_of_its_beginning() -> None:
    heard = RecordStream().take([xid(n, (95, 79)[n % 2], b"%d" % n) for n in range(10)] + [xid(10, 48)])
    told = tallied(heard)
    assert [(item.evidence.code, item.evidence.count, item.sequence) for item in told] == [
        ("95", 5, 0), ("79", 5, 1), ("48", 1, 10),
    ]  # fmt: skip


def test_a_tally_keeps_apart_what_is_judged_apart() -> None:
    rows = (
        xid(1, 149, b"NETIR_LINK_EVT Fatal XC0"),
        xid(2, 149, b"NETIR_BER_EVENT Nonfatal XC0"),
        xid(3, 45, b"Ch 1 caused by previous Xid 145"),
        xid(4, 45, b"Ch 1 caused by previous Xid 149"),
        xid(5, 45, b"Ch 1"),
        xid(6, 45, b"Ch 1", priority=12),
        xid(7, 45, b"Ch 1").replace(b":02:", b":03:"),
    )
    assert len(tallied(RecordStream(allow_injected=True).take(rows))) == len(rows)


def test_a_link_that_flaps_ends_as_it_ended() -> None:
    texts = (b"Link down", b"Link down", b"Link up", b"Link down", b"Link down")
    heard = RecordStream().take([record(n, b"mlx5_core 0000:0c:00.0 rdma0: " + text) for n, text in enumerate(texts)])
    assert [(item.evidence.code, item.evidence.count) for item in tallied(heard)] == [
        ("link_down", 2), ("link_up", 1), ("link_down", 2),
    ]  # fmt: skip


def test_what_is_far_apart_is_told_apart() -> None:
    rows = [xid(1, 95, microseconds=5), xid(2, 95, microseconds=900_000), xid(3, 95, microseconds=3_600_000_000)]
    assert [item.evidence.count for item in tallied(RecordStream().take(rows))] == [2, 1]


def test_folded_messages_keep_their_count() -> None:
    evidence = Evidence("xid", "95", pci="0000:02:00", count=9)
    told = tallied([Heard(evidence, 1, 1), Heard(replace(evidence), 2, 2)])
    assert [item.evidence.count for item in told] == [18]


def test_a_storm_of_one_fault_is_read_in_a_fraction_of_the_time_that_it_takes_to_write() -> None:
    """800,000 lines, 29 of them different, were a day's on one node. Here: 200,000 of them at once, CPU time."""
    texts = [b"NVRM: Xid (PCI:0000:02:00): 95, pid=1, Uncontained: LTC TAG (0x2, %d). RST: Yes" % n for n in range(29)]
    records = [record(n, texts[n % 29]) for n in range(2000)]
    log = RecordStream()
    began = time.process_time()
    for _ in range(100):
        (one,) = tallied(log.take(records))
        assert one.evidence.count == 2000
    assert time.process_time() - began < 4.0  # 0.6 s where this was written
