"""What belongs together, what repeats, and what ends a case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.correlation.casebook import MAX_CASES, MAX_MEMBERS, MAX_NAMES, Casebook, settled, with_sighting
from everstep.core.correlation.history import MAX_OCCURRENCES, MAX_OF_ONE, joined
from everstep.core.correlation.proof import QUIET, Answer, with_proof
from everstep.core.correlation.sighting import Job, Sighting, placed_sighting
from everstep.core.correlation.verdicts import accusing, faults
from everstep.core.health import Fault, Gpu, accuses
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.occurrences import Occurrence

CATALOG = shipped_catalog()
GPUS = tuple(Gpu(index, f"GPU-{index}", f"s{index}", f"0000:{index + 1:02x}:00") for index in range(8))
HOUR, DAY = 3600.0, 86400.0
TRAIN = Job("7", "ann/train")
OTHER = Job("8", "bob/eval")


def sees(line: str, at: float, *jobs: Job, boot: str = "boot-1", cancelled: bool = False) -> Sighting:
    evidence = parse_line(line, companions=True, allow_injected=True)
    assert evidence is not None
    return replace(placed_sighting(evidence, at, boot, GPUS, jobs), cancelled=cancelled)


def xid(code: int, at: float, *jobs: Job, gpu: int = 0, rest: str = "", boot: str = "boot-1") -> Sighting:
    return sees(f"NVRM: Xid (PCI:0000:{gpu + 1:02x}:00): {code}, pid=1, name=a, {rest}", at, *jobs, boot=boot)


def after(*sightings: Sighting, book: Casebook | None = None) -> Casebook:
    book = book or Casebook()
    for seen in sightings:
        book = with_sighting(settled(book, seen.at), seen, accusing(book, CATALOG, seen.at))
    return book


def told(book: Casebook, now: float) -> list[Fault]:
    return list(faults(settled(book, now), CATALOG, now))


def gist(book: Casebook, now: float) -> list[tuple[str, str, int]]:
    return [(fault.key, fault.action.value, fault.count) for fault in told(book, now)]


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


def test_one_job_never_accuses_the_hardware() -> None:
    lines = [xid(31, 100.0 + n * 600, replace(TRAIN, id=str(n)), rest="Ch 00000008, MMU Fault") for n in range(50)]
    (fault,) = told(after(*lines), 100.0 + 50 * 600)
    assert (fault.fault_class, fault.action, fault.count) == ("application", "restartJob", 50)


def test_two_unrelated_jobs_on_one_gpu_do() -> None:
    book = after(xid(31, 100.0, TRAIN), xid(31, 100.0 + HOUR, OTHER))
    (fault,) = told(book, 101.0 + HOUR)
    assert (fault.fault_class, fault.severity, fault.action) == ("hardware", "critical", "resetGPU")
    assert "2 unrelated jobs" in fault.reason
    apart = after(xid(31, 100.0, TRAIN), xid(31, 100.0 + 2 * DAY, OTHER))
    assert not any(accuses(fault) for fault in told(apart, 101.0 + 2 * DAY))
    elsewhere = after(xid(31, 100.0, TRAIN), xid(31, 100.0 + HOUR, OTHER, gpu=1))
    assert not any(accuses(fault) for fault in told(elsewhere, 101.0 + HOUR))
    shared = after(xid(31, 100.0, TRAIN, OTHER))  # both on the GPU at once: which one did it cannot be told
    assert not any(accuses(fault) for fault in told(shared, 101.0))


def test_jobs_that_the_catalogue_never_lets_accuse() -> None:
    book = after(xid(43, 100.0, TRAIN), xid(43, 100.0 + HOUR, OTHER))
    assert not any(accuses(fault) for fault in told(book, 101.0 + HOUR))


# ---- repeats


def test_a_part_that_fails_again_within_a_week_escalates_on_a_new_node_too() -> None:
    once = after(xid(79, 100.0))
    assert told(once, 101.0)[0].action == "rebootNode"
    for gap, action in ((3 * DAY, "replaceNode"), (8 * DAY, "rebootNode")):
        elsewhere = Casebook(history=joined([once.history], 100.0 + gap))
        again = after(xid(79, 100.0 + gap, gpu=0, boot="boot-9"), book=elsewhere)
        (fault,) = told(again, 101.0 + gap)
        assert fault.action == action


def test_two_boots_are_two_episodes_however_close() -> None:
    book = after(xid(79, 100.0), xid(79, 130.0, boot="boot-2"))
    assert told(book, 131.0)[0].action == "replaceNode"


def test_repeats_within_one_boot_count_by_episodes_not_by_lines() -> None:
    lines = [sees("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [a:7]", 100.0 + n) for n in range(40)]
    assert told(after(*lines), 200.0)[0].action == "none"
    episodes = [sees("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [a:7]", 100.0 + n * 300) for n in range(3)]
    (fault,) = told(after(*episodes), 800.0)
    assert (fault.action, accuses(fault)) == ("rebootNode", False)


def test_a_row_may_name_another_step_for_repeats_than_the_next_one() -> None:
    """62: reset; when that fails reboot; but replace on the second within a week."""
    assert told(after(xid(62, 100.0)), 101.0)[0].action == "resetGPU"
    assert told(after(xid(62, 100.0), xid(62, 100.0 + DAY)), 101.0 + DAY)[0].action == "replaceNode"


def test_contained_memory_errors_that_keep_coming_are_the_part() -> None:
    line = "Contained: SM (0x1). RST: No, D-RST: No"
    twice = after(*[xid(94, 100.0 + n * DAY, TRAIN, rest=line) for n in range(2)])
    assert not any(accuses(fault) for fault in told(twice, 101.0 + DAY))
    (fault,) = told(after(xid(94, 100.0 + 2 * DAY, TRAIN, rest=line), book=twice), 101.0 + 2 * DAY)
    assert (fault.action, fault.fault_class) == ("replaceNode", "hardware")


def test_removed_channels_of_two_jobs_accuse_nobody() -> None:
    book = after(xid(45, 100.0, TRAIN), xid(45, 100.0 + HOUR, OTHER))
    assert [accuses(fault) for fault in told(book, 200.0 + HOUR)] == [False]


def test_a_symptom_leaves_no_mark_on_its_device() -> None:
    book = after(
        sees("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", 100.0), xid(79, 101.0)
    )
    assert [(item.device, item.code) for item in book.history] == [("s0", "xid:79")]


def test_histories_of_two_nodes_become_one_and_old_ones_go() -> None:
    one, two = Occurrence("s0", "xid:79", 100.0, "a", ("x",)), Occurrence("s0", "xid:79", 500.0, "b")
    assert joined([(two,), (one,), (replace(one, lineages=("y",)),)], 600.0) == (replace(one, lineages=("x", "y")), two)
    assert joined([(one, two)], 400.0 + 7 * DAY) == (two,)


def test_a_code_that_keeps_coming_leaves_room_for_the_history_of_others() -> None:
    book = after(xid(79, 100.0, gpu=1), *[xid(31, 200.0 + n * 120, TRAIN) for n in range(600)])
    assert sum(item.code == "xid:31" for item in book.history) == MAX_OF_ONE
    assert [item.device for item in book.history if item.code == "xid:79"] == ["s1"]


# ---- the end of a case


def prove(book: Casebook, gpus: Iterable[Gpu], boot: str, now: float, *, passed: bool = True) -> Casebook:
    answer = Answer(tuple(gpus), boot, asked_at=now, passed=passed)
    return with_proof(book, answer, now, accusing(book, CATALOG, now))


def test_only_another_boot_and_a_check_that_passes_end_a_hardware_fault() -> None:
    book = after(xid(79, 100.0))
    lost = (replace(GPUS[0], lost=True), *GPUS[1:])
    assert prove(book, GPUS, "boot-1", 200.0).cases == book.cases
    assert prove(book, lost, "boot-2", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-2", 200.0, passed=False).cases == book.cases
    assert prove(book, (), "boot-2", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-2", 200.0).cases == ()
    assert prove(book, (replace(GPUS[0], serial="s9"), *GPUS[1:]), "boot-2", 200.0).cases == ()
    assert prove(book, GPUS, "boot-2", 200.0).history == book.history


def test_the_driver_takes_its_wish_back() -> None:
    wish = xid(154, 101.0, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    book = after(xid(119, 100.0), wish)
    assert told(book, 200.0)[0].code == "119"
    asking = (replace(GPUS[0], recovery_action="reset"), *GPUS[1:])
    assert prove(book, asking, "boot-1", 200.0).cases == book.cases
    assert prove(book, GPUS, "boot-1", 200.0).cases == ()
    said = after(
        xid(154, 150.0, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), book=book
    )
    assert said.cases == ()
    elsewhere = after(xid(154, 150.0, gpu=1, rest="GPU recovery action changed from 0x1 (x) to 0x0 (None)"), book=book)
    assert elsewhere.cases == book.cases


def test_the_driver_never_asked_so_its_silence_proves_nothing() -> None:
    assert prove(after(xid(119, 100.0)), GPUS, "boot-1", 200.0).cases != ()


def test_a_link_that_comes_back_ends_its_own_case() -> None:
    down = sees("mlx5_core 0000:0c:00.0 rdma0: Link down", 100.0)
    up = sees("mlx5_core 0000:0c:00.0 rdma0: Link up", 160.0)
    other = sees("mlx5_core 0000:1c:00.0 rdma1: Link up", 160.0)
    assert after(down, other).cases != ()
    assert after(down, up).cases == ()


def test_two_links_that_went_down_together_come_back_one_by_one() -> None:
    down = [sees(f"mlx5_core 0000:{n}c:00.0 rdma{n}: Link down", 100.0) for n in (0, 1)]
    up = [sees(f"mlx5_core 0000:{n}c:00.0 rdma{n}: Link up", 160.0 + n) for n in (0, 1)]
    assert len(told(after(*down), 101.0)) == 1
    assert len(told(after(*down, up[0]), 161.0)) == 1
    assert told(after(*down, *up), 162.0) == []


def test_a_file_server_that_answers_again() -> None:
    lost, back = (sees(f"nfs: server 10.0.0.9 {what}", 100.0) for what in ("not responding, still trying", "OK"))
    assert len(after(lost).cases) == 1
    assert after(lost, back).cases == ()


def test_what_accuses_nobody_is_forgotten_after_a_quiet_day() -> None:
    book = after(xid(31, 100.0, TRAIN), xid(79, 100.0, gpu=1))
    (left,) = prove(book, GPUS, "boot-1", 101.0 + QUIET).cases
    assert left.code == "xid:79"


def test_the_same_fault_in_the_next_boot_takes_the_waiting_ones_place() -> None:
    book = after(xid(79, 100.0), xid(79, 900.0, boot="boot-2"))
    (fault,) = told(book, 901.0)
    assert (fault.boot_id, fault.count, fault.action) == ("boot-2", 1, "replaceNode")
    assert prove(book, GPUS, "boot-2", 1000.0).cases == book.cases


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
