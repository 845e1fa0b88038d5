"""What belongs together, and what outlives a flood."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.correlation.casebook import MAX_CASES, MAX_MEMBERS, MAX_NAMES, Casebook
from everstep.core.correlation.history import MAX_OCCURRENCES
from everstep.core.correlation.sighting import Job, Sighting
from everstep.core.health import accuses
from everstep.core.kernel_lines.parser import parse_line
from tests.unit.detection.sightings import CATALOG, DAY, HOUR, OTHER, TRAIN, after, sees, told, xid

MEMORY = (
    (48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"),
    (63, "Row Remapper: New row (0x18f31d80) marked for remapping, reset gpu to activate."),
    (94, "Contained: SM (0x1). RST: No, D-RST: No"),
)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_the_lines_of_one_memory_error_are_one_fault(order: tuple[int, ...]) -> None:
    lines = [xid(MEMORY[which][0], 100.0 + step / 100, rest=MEMORY[which][1]) for step, which in enumerate(order)]
    (fault,) = told(after(*lines), 101.0)
    assert (fault.key, fault.code, fault.action, fault.gpu_serial) == ("xid:48@s0", "48", "resetGPU", "s0")
    assert "marked for remapping" in fault.reason
    assert (fault.count, fault.first_seen) == (3, 100.0)


def test_a_failed_remapping_takes_the_part_out() -> None:
    (fault,) = told(after(xid(48, 100.0), xid(64, 100.1)), 101.0)
    assert (fault.code, fault.action) == ("48", "replaceNode")


def test_the_same_lines_on_two_gpus_or_an_hour_apart_are_two_faults() -> None:
    assert len(told(after(xid(48, 100.0), xid(63, 130.0, gpu=1)), 131.0)) == 2
    assert len(told(after(xid(63, 100.0), xid(94, 100.0 + HOUR)), 101.0 + HOUR)) == 2


def test_a_removed_channel_is_a_symptom_of_whatever_comes_with_it() -> None:
    for lines in (
        (xid(45, 100.0), xid(119, 100.5)),
        (xid(119, 100.0), xid(45, 100.5)),
        (xid(43, 100.0), xid(119, 101.0)),
    ):
        assert [fault.code for fault in told(after(*lines), 500.0)] == ["119"]


def test_a_removed_channel_with_a_named_cause_goes_to_it_even_on_another_gpu() -> None:
    book = after(
        xid(145, 100.0, rest="RLW_REMAP Nonfatal XC0 i0 Link 02"),
        *[xid(45, 240.0 + gpu, gpu=gpu, rest="Ch 00000002 caused by previous Xid 145") for gpu in range(1, 8)],
    )
    (fault,) = told(book, 900.0)
    assert (fault.code, fault.count) == ("145", 8)
    assert "8 devices report it" in fault.reason
    assert not accuses(fault)


def test_a_removed_channel_alone_waits_a_minute_and_then_wants_a_person() -> None:
    book = after(xid(45, 100.0))
    assert told(book, 130.0) == []
    (fault,) = told(book, 160.0)
    assert (fault.code, fault.severity, fault.action) == ("45", "warning", "callHuman")
    assert not accuses(fault)


def test_a_cancelled_job_explains_a_removed_channel() -> None:
    seen = replace(xid(45, 100.0), cancelled=True)
    assert told(after(seen), 500.0) == []


def test_eight_gpus_that_report_one_link_are_one_fault() -> None:
    book = after(
        *[xid(45, 100.0 + gpu / 10, gpu=gpu) for gpu in range(8)],
        xid(74, 101.0, gpu=2, rest="NVLink: fatal error detected on link 1"),
        *[xid(74, 101.0 + gpu / 10, gpu=gpu, rest="NVLink: fatal error detected on link 1") for gpu in (5, 6)],
    )
    (fault,) = told(book, 400.0)
    assert (fault.key, fault.gpu_serial) == ("xid:74@s2", "s2")  # the first to report
    assert fault.count == 11


def test_six_switches_are_one_fault_and_details_do_not_count() -> None:
    lines = []
    for switch in range(6):
        head = f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch}:00.0): 24007, "
        lines += [head + "Fatal, Link 28 sourcetrack timeout error (First)", head + "Severity 1 Engine instance 28"]
    book = after(*[sees(line, 100.0 + index / 100) for index, line in enumerate(lines)])
    (fault,) = told(book, 200.0)
    assert (fault.kind, fault.code, fault.count) == ("sxid", "24007", 6)


def test_a_gpu_that_fell_off_explains_the_bus_and_the_links() -> None:
    book = after(
        sees("pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: id=0018", 99.95),
        xid(79, 100.0, gpu=3, rest="GPU has fallen off the bus."),
        sees("NVRM: GPU 0000:04:00.0: GPU has fallen off the bus.", 100.0),
        xid(154, 100.1, gpu=3, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        *[
            sees(f"nvidia-nvswitch{n}: SXid (PCI:0000:0{n}:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 112.0)
            for n in (1, 2)
        ],
    )
    (fault,) = told(book, 300.0)
    assert (fault.code, fault.gpu_index, fault.action) == ("79", 3, "rebootNode")


def test_the_key_stays_once_somebody_may_have_acted_on_it() -> None:
    """An incident bears the key: a cause that comes to light later does not open a second one."""
    first = after(sees("pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: id=0018", 100.0))
    (before,) = told(first, 100.0)
    assert accuses(before)
    (later,) = told(after(xid(79, 110.0), book=first), 111.0)
    assert (later.key, later.code) == (before.key, "79")


def test_a_companion_alone_counts_after_five_seconds() -> None:
    book = after(sees("NVRM: GPU 0000:04:00.0: GPU has fallen off the bus.", 100.0))
    assert told(book, 104.0) == []
    (fault,) = told(book, 105.0)
    assert (fault.key, fault.action, fault.gpu_serial) == ("host:gpu_fell_off@s3", "rebootNode", "s3")
    for harmless in (
        "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        "NVRM: GPU1 _kgspX: heartbeat timed out",
    ):
        assert told(after(sees(harmless, 100.0)), 500.0) == []


def test_a_failed_start_names_its_gpu_by_number_too() -> None:
    book = after(
        sees("NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP", 100.0),
        sees("NVRM: GPU 0000:07:00.0: RmInitAdapter failed! (0x62:0x40:2168)", 100.01),
    )
    (fault,) = told(book, 200.0)
    assert (fault.code, fault.gpu_serial) == ("gpu_init_failed", "s6")


def test_an_amd_hive_that_is_reset_for_one_error() -> None:
    book = after(
        sees("amdgpu 0000:05:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", 100.0),
        *[sees(f"amdgpu 0000:0{gpu + 1}:00.0: amdgpu: GPU mode1 reset", 100.2) for gpu in range(8)],
    )
    (fault,) = told(book, 300.0)
    assert (fault.code, fault.gpu_serial, fault.action) == ("ras_uncorrectable_event", "s4", "rebootNode")


def test_a_storm_is_one_fault_with_a_count() -> None:
    book = after(*[xid(95, 100.0 + n / 1000, rest=f"Uncontained: LTC TAG (0x2, {n}). RST: Yes") for n in range(2000)])
    (fault,) = told(book, 200.0)
    assert fault.count == 2000
    folded = sees(
        "Mar 27 17:40:36 h kernel: message repeated 9 times: [NVRM: Xid (PCI:0000:01:00): 95, pid=1, x]", 102.0
    )
    assert told(after(folded, book=book), 200.0)[0].count == 2009


# ---- application class


def test_an_injected_fault_stays_marked_until_the_kernel_says_it_too() -> None:
    injected = sees("12,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=a, GPU has fallen off the bus.", 100.0)
    book = after(injected)
    assert told(book, 101.0)[0].injected
    assert told(after(replace(injected, at=102.0), book=book), 103.0)[0].injected
    assert not told(after(xid(79, 102.0), book=book), 103.0)[0].injected


# ---- as a value


LINES = st.sampled_from(
    [row.example for row in CATALOG.entries.values() if row.example and parse_line(row.example, companions=True)]
    + [
        f"NVRM: Xid (PCI:0000:0{gpu}:00): {code}, pid=1, name=a, Fatal"
        for gpu in (1, 2)
        for code in (13, 31, 45, 48, 63, 79, 154)
    ]
)
STEPS = st.lists(st.tuples(LINES, st.floats(0, 4000), st.sampled_from([(), (TRAIN,), (OTHER,)])), max_size=40)


@given(STEPS)
def test_any_order_of_anything(steps: list[tuple[str, float, tuple[Job, ...]]]) -> None:
    book, now = Casebook(), 0.0
    for line, gap, jobs in steps:
        now += gap
        grown = after(sees(line, now, *jobs), book=book)
        before, later = ({case.key for case in book.cases}, {case.key for case in grown.cases})
        assert len(later) == len(grown.cases)
        assert len(later - before) <= 1
        book = grown
    assert len(book.cases) <= MAX_CASES
    assert len(book.history) <= MAX_OCCURRENCES
    assert all(len(case.members) <= MAX_MEMBERS and len(case.devices) <= MAX_NAMES for case in book.cases)
    assert all(fault.reason for fault in told(book, now + 100))
    stored = msgspec.json.decode(msgspec.json.encode(book), type=Casebook)
    assert stored == book


def test_the_gravest_cases_outlive_a_flood_of_others() -> None:
    book = after(xid(79, 1.0))
    for n in range(3 * MAX_CASES):
        book = after(sees(f"mlx5_core 0000:{n % 256:02x}:00.0 eth{n}: TX timeout detected", 100.0 + n * 61), book=book)
    assert len(book.cases) == MAX_CASES
    assert told(book, 100.0 + 3 * MAX_CASES * 61)[0].code == "79"


def test_what_waits_does_not_wait_for_a_clock_that_was_set_back() -> None:
    book = after(sees("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", 10_000.0))
    assert told(book, 10_001.0) == []
    assert [fault.code for fault in told(book, 10_000.0 - HOUR)] == ["gpu_fell_off"]


def test_a_past_from_a_clock_that_ran_ahead_does_not_count_for_ever() -> None:
    ahead = [xid(31, 400 * DAY + n * HOUR, job) for n, job in enumerate((TRAIN, OTHER))]
    assert accuses(told(after(*ahead), 400 * DAY + 2 * HOUR)[0])
    book = replace(after(*ahead), cases=())
    assert not accuses(told(after(xid(31, 2 * DAY, TRAIN), book=book), 2 * DAY)[0])
    assert not after(xid(31, 300 * DAY), book=book).history[1:], "more than any window ahead"


def test_the_line_that_accuses_outlives_a_flood_of_other_codes_in_its_case() -> None:
    def switch(code: int, word: str, at: float) -> Sighting:
        return sees(f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {code}, {word}, Link 28 text", at)

    book = after(switch(30001, "Non-fatal", 100.0))
    assert not accuses(told(book, 100.0)[0])
    book = after(switch(30002, "Fatal", 101.0), book=book)
    assert accuses(told(book, 101.0)[0])
    book = after(*(switch(30003 + n, "Non-fatal", 102.0 + n) for n in range(3 * MAX_MEMBERS)), book=book)
    (fault,) = told(book, 200.0)
    assert accuses(fault), "nothing has proven it over"


def test_500_disks_that_fail_hide_no_other_fault() -> None:
    disks = [sees(f"nvme nvme{n}: Removing after probe failure status: -19", 100.0 + n * 61) for n in range(500)]
    book = after(*disks, xid(79, 40_000.0))
    assert len(book.cases) == MAX_CASES
    assert all(map(accuses, told(book, 40_000.0)))
    assert "79" in [fault.code for fault in told(book, 40_000.0)]
