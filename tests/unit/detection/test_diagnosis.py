"""The rules by which observations change what an agent says of its node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.correlation.casebook import MAX_CASES, MAX_MEMBERS, MAX_NAMES
from everstep.core.correlation.history import MAX_OCCURRENCES
from everstep.core.correlation.sighting import Job
from everstep.core.diagnosis import (
    GPUS as INVENTORY,
)
from everstep.core.diagnosis import (
    UNREAD,
    Diagnosis,
    Source,
    Told,
    caught_up,
    judged,
    numbered,
    resumed,
    unconfirmed,
    with_gpus,
    with_history,
    with_lines,
    with_part,
    with_reading,
    with_source,
)
from everstep.core.gpu_inventory import merged, normal_pci
from everstep.core.health import Evidence, FaultClass, Gpu, Verdict, accuses
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.occurrences import Occurrence

CATALOG = shipped_catalog()
GPUS = (Gpu(0, "GPU-a", "s0", "0000:01:00"), Gpu(1, "GPU-b", "s1", "0000:02:00"))
FRESH = Diagnosis("boot-1", gpus=GPUS)
LOST = (GPUS[0], replace(GPUS[1], lost=True))
DAY = 86400.0
DISKS = "disks"
REMAP = Evidence("host", "gpu_remap_failed", pci="00000000:02:00.0", line="remapping failed")
FABRIC = Evidence("host", "gpu_fabric_state", line="not joined")


def xid(code: int, pci: str = "0000:02:00", rest: str = "") -> Evidence:
    evidence = parse_line(f"NVRM: Xid (PCI:{pci}): {code}, {rest}", companions=True)
    assert evidence is not None
    return evidence


def says(
    diagnosis: Diagnosis, sequence: int, evidence: Evidence | str, now: float, jobs: Sequence[Job] = ()
) -> Diagnosis:
    if isinstance(evidence, str):
        found = parse_line(evidence, companions=True)
        assert found is not None
        evidence = found
    return with_lines(diagnosis, sequence, [Told(evidence, now, tuple(jobs))], CATALOG, now)


def read(diagnosis: Diagnosis, *gpus: Gpu, now: float = 200.0) -> Diagnosis:
    return with_gpus(diagnosis, gpus, CATALOG, now, now)


def shows(diagnosis: Diagnosis, *found: Evidence, now: float = 200.0, source: str = "NVML") -> Diagnosis:
    return with_reading(diagnosis, source, found, CATALOG, now)


def test_a_critical_hardware_fault_makes_the_node_faulty() -> None:
    found = says(FRESH, 7, xid(79), now=100.0)
    (fault,) = found.faults
    assert (fault.key, fault.gpu_index, fault.gpu_serial) == ("xid:79@s1", 1, "s1")
    assert (fault.first_seen, fault.last_seen, fault.count, fault.boot_id) == (100.0, 100.0, 1, "boot-1")
    assert (found.verdict, found.sequence) == (Verdict.FAULTY, 7)
    assert found.reason == "XID 79: GPU fell off the bus (GPU 1)"


@pytest.mark.parametrize("code", [13, 31, 43, 68, 63, 94, 999])
def test_application_and_suspect_codes_accuse_no_node(code: int) -> None:
    found = says(FRESH, 7, xid(code), now=100.0)
    assert len(found.faults) == 1
    assert found.verdict is Verdict.HEALTHY


def test_what_belongs_together_is_one_fault() -> None:
    found = says(says(says(FRESH, 1, xid(48), 100.0), 2, xid(63), 100.1), 3, xid(94), 100.2)
    assert [(fault.key, fault.count) for fault in found.faults] == [("xid:48@s1", 3)]


def test_a_removed_channel_becomes_a_fault_by_time_alone() -> None:
    found = says(FRESH, 1, xid(45), 100.0)
    assert (found.faults, found.sequence) == ((), 1)  # it is stored all the same, so a restart does not forget it
    assert judged(found, CATALOG, 130.0).faults == ()
    assert [fault.code for fault in judged(found, CATALOG, 160.0).faults] == ["45"]


def test_a_repeat_of_the_same_part_escalates() -> None:
    first = says(FRESH, 1, xid(79), 100.0)
    assert first.faults[0].action == "rebootNode"
    rebooted = read(resumed(first, "boot-2"), *GPUS, now=1000.0)
    assert rebooted.faults == ()
    again = says(rebooted, 1, xid(79), 2 * DAY)
    assert again.faults[0].action == "replaceNode"


def test_lines_that_change_nothing_do_not_move_the_position() -> None:
    for line in (
        "mlx5_core 0000:0c:00.0 rdma0: Link up",
        "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
    ):
        assert says(FRESH, 9, line, 100.0) is FRESH


def test_two_unrelated_jobs_on_one_gpu_accuse_it_and_unknown_jobs_never_do() -> None:
    ann, bob = Job("7", "ann"), Job("8", "bob")
    once = says(FRESH, 1, xid(31), 100.0, [ann])
    assert says(once, 2, xid(31), 4000.0, [ann]).verdict is Verdict.HEALTHY
    assert says(once, 2, xid(31), 4000.0).verdict is Verdict.HEALTHY
    assert says(once, 2, xid(31), 4000.0, [bob]).verdict is Verdict.FAULTY


# ---- sources


def test_a_broken_source_is_unknown_and_never_hides_a_fault() -> None:
    broken = with_source(FRESH, "kernel log", "gone")
    assert (broken.verdict, broken.reason) == (Verdict.UNKNOWN, "kernel log cannot be read: gone")
    assert says(broken, 1, xid(79), now=1.0).verdict is Verdict.FAULTY
    twice = with_source(with_source(broken, "kernel log", "gone"), "kernel log", None)
    assert (twice.verdict, twice.sources) == (Verdict.HEALTHY, (Source("kernel log", restarts=2),))


def test_sources_that_break_together_are_told_together() -> None:
    hung = with_source(with_source(FRESH, "GPUs", "NVML: no answer within 10 s"), "NVML", "NVML: no answer within 10 s")
    assert hung.reason == "GPUs, NVML cannot be read: NVML: no answer within 10 s"
    mixed = with_source(hung, "kernel log", "gone")
    assert mixed.reason == f"{hung.reason}; kernel log cannot be read: gone"


def test_a_source_that_was_not_asked_yet_is_as_good_as_broken() -> None:
    found = resumed(None, "boot-1", (INVENTORY, "NVML"))
    assert found.broken == ((INVENTORY, UNREAD), ("NVML", UNREAD))
    assert shows(read(found, *GPUS)).verdict is Verdict.HEALTHY


# ---- restarts and reboots


def test_restart_in_the_same_boot_goes_on_where_it_was() -> None:
    stored = says(FRESH, 7, xid(79), now=100.0)
    assert resumed(stored, "boot-1") == replace(stored, behind=True)
    assert resumed(None, "boot-1") == Diagnosis("boot-1", behind=True)


def test_a_line_that_waits_does_not_stand_before_the_rest_of_the_log_is_read() -> None:
    stored = says(FRESH, 1, xid(45), 100.0)
    late = read(resumed(stored, "boot-1"), *GPUS, now=500.0)
    assert late.faults == ()
    told = [Told(xid(119), 100.5)]
    explained = caught_up(with_lines(late, 2, told, CATALOG, 500.0), CATALOG, 500.0)
    assert [fault.code for fault in explained.faults] == ["119"]
    assert [fault.code for fault in caught_up(late, CATALOG, 500.0).faults] == ["45"]


def test_a_position_means_nothing_in_another_numbering() -> None:
    stored = says(numbered(FRESH, "kmsg"), 7, xid(79), now=100.0)
    assert numbered(stored, "kmsg").sequence == 7
    assert numbered(stored, "journal").sequence == -1


def test_a_reboot_alone_clears_nothing() -> None:
    after = resumed(says(FRESH, 7, xid(79), now=100.0), "boot-2")
    assert (after.sequence, after.verdict) == (-1, Verdict.FAULTY)
    assert judged(after, CATALOG, 200.0).verdict is Verdict.FAULTY


def test_after_a_reboot_the_driver_proves_the_repair() -> None:
    after = resumed(says(FRESH, 7, xid(79), now=100.0), "boot-2")
    assert read(after, *LOST).verdict is Verdict.FAULTY
    assert read(after, GPUS[0], replace(GPUS[1], recovery_action="reset")).verdict is Verdict.FAULTY
    assert read(after, *GPUS).verdict is Verdict.HEALTHY
    exchanged = Gpu(1, "GPU-new", "s9", "0000:02:00")
    assert read(after, GPUS[0], exchanged).verdict is Verdict.HEALTHY


def test_nothing_is_proof_while_a_source_is_silent_or_shows_something_grave() -> None:
    after = resumed(says(FRESH, 7, xid(79), now=100.0), "boot-2", (INVENTORY, "NVML"))
    unasked = read(after, *GPUS)
    assert unasked.verdict is Verdict.FAULTY
    assert shows(unasked).verdict is Verdict.HEALTHY
    grave = shows(shows(unasked, FABRIC), FABRIC)
    assert [fault.code for fault in grave.faults] == ["79", "gpu_fabric_state"]


def test_in_the_same_boot_a_healthy_reading_clears_nothing() -> None:
    assert read(says(FRESH, 7, xid(79), now=100.0), *GPUS).verdict is Verdict.FAULTY


def test_a_driver_that_takes_its_wish_back_must_be_asked_after_the_line() -> None:
    wish = xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    asked = says(says(read(FRESH, *GPUS, now=99.0), 1, xid(119), 100.0), 2, wish, 100.1)
    assert read(asked, *GPUS, now=100.4).verdict is Verdict.FAULTY  # the driver marks the GPU a moment later
    assert read(asked, *GPUS, now=110.0).verdict is Verdict.HEALTHY


def test_a_fault_of_this_boot_is_not_cleared_by_proof_for_the_last() -> None:
    again = says(resumed(says(FRESH, 7, xid(79), now=100.0), "boot-2"), 1, xid(79), now=200.0)
    assert again.faults[0].count == 1
    assert read(again, *GPUS).verdict is Verdict.FAULTY


# ---- the inventory


def test_a_gpu_that_vanished_stays_in_the_inventory_as_lost() -> None:
    kept = merged(GPUS, [Gpu(0, "GPU-b", "s1", "0000:02:00")])  # the driver numbers anew
    assert [(gpu.serial, gpu.index, gpu.lost) for gpu in kept] == [("s1", 0, False), ("s0", 1, True)]


def test_an_exchanged_gpu_leaves_the_inventory() -> None:
    assert [gpu.serial for gpu in merged(GPUS, [GPUS[0], Gpu(1, "GPU-n", "s9", "0000:02:00")])] == ["s0", "s9"]


def test_a_lost_gpu_without_a_line_is_a_fault_from_the_second_reading_on() -> None:
    once = read(FRESH, *LOST)
    assert (once.verdict, unconfirmed(once, INVENTORY)) == (Verdict.HEALTHY, True)
    twice = read(once, *LOST)
    assert [fault.key for fault in twice.faults] == ["host:gpu_lost@s1"]
    later = read(twice, *LOST, now=900.0)
    assert (later.faults, later.book) == (twice.faults, twice.book)  # what lasts is not counted again


def test_one_bad_reading_between_good_ones_is_no_fault() -> None:
    assert read(read(read(FRESH, *LOST), *GPUS), *LOST).faults == ()


def test_a_gpu_that_a_line_explains_is_not_reported_twice() -> None:
    found = read(read(says(FRESH, 1, xid(79), now=1.0), *LOST), *LOST)
    assert [fault.key for fault in found.faults] == ["xid:79@s1"]


def test_a_gpu_that_two_sources_miss_is_missed_once() -> None:
    missing = [Evidence("host", "gpu_missing", pci=gpu.pci, line="not listed") for gpu in GPUS]
    gone = tuple(replace(gpu, lost=True) for gpu in GPUS)
    lost = read(read(FRESH, *gone), *gone)
    assert [fault.code for fault in shows(shows(lost, *missing), *missing).faults] == ["gpu_lost"]


def test_a_gpu_that_is_still_lost_after_the_reboot_is_a_fault_of_this_boot() -> None:
    after = resumed(says(FRESH, 7, xid(79), now=100.0), "boot-2")
    found = read(read(after, *LOST), *LOST)
    assert {(fault.code, fault.boot_id) for fault in found.faults} == {("79", "boot-1"), ("gpu_lost", "boot-2")}


# ---- states


def test_a_state_counts_when_it_is_there_twice_and_is_over_when_it_is_gone() -> None:
    once = shows(FRESH, REMAP)
    assert (once.faults, unconfirmed(once, "NVML")) == ((), True)
    twice = shows(once, REMAP)
    assert [(fault.key, fault.gpu_index) for fault in twice.faults] == [("host:gpu_remap_failed@s1", 1)]
    assert shows(twice).faults == ()


def test_a_state_that_an_earlier_agent_wrote_down_needs_no_second_look_to_stay_and_one_to_go() -> None:
    stored = shows(shows(FRESH, REMAP), REMAP)
    again = resumed(stored, "boot-1", ("NVML",))
    assert [fault.key for fault in shows(again, REMAP).faults] == ["host:gpu_remap_failed@s1"]
    assert shows(again).faults == ()
    rebooted = resumed(stored, "boot-2", ("NVML",))
    assert shows(rebooted).faults == ()
    confirmed = shows(shows(rebooted, REMAP), REMAP)
    assert [fault.boot_id for fault in confirmed.faults] == ["boot-2"]


def test_a_source_that_breaks_ends_nothing() -> None:
    twice = shows(shows(FRESH, REMAP), REMAP)
    assert with_source(twice, "NVML", "hangs").faults == twice.faults


def test_an_answer_in_part_counts_and_ends_nothing() -> None:
    other = replace(REMAP, pci="0000:01:00")
    one = shows(shows(FRESH, REMAP), REMAP)
    part = with_part(with_part(one, "NVML", [other], CATALOG, 300.0), "NVML", [other], CATALOG, 301.0)
    assert {fault.key for fault in part.faults} == {"host:gpu_remap_failed@s0", "host:gpu_remap_failed@s1"}
    assert [fault.key for fault in shows(part, other).faults] == ["host:gpu_remap_failed@s0"]


def test_what_two_sources_show_is_over_when_neither_does() -> None:
    both = shows(shows(shows(shows(FRESH, REMAP), REMAP), REMAP, source="DCGM"), REMAP, source="DCGM")
    assert len(both.faults) == 1
    one = shows(both)
    assert len(one.faults) == 1
    assert shows(shows(one, source="DCGM")).faults == ()


def test_two_gpus_in_one_state_come_out_of_it_one_by_one() -> None:
    other = replace(REMAP, pci="0000:01:00")
    both = shows(shows(FRESH, REMAP, other), REMAP, other)
    assert "2 devices report it" in both.faults[0].reason
    assert "devices" not in shows(both, other).faults[0].reason
    assert shows(both).faults == ()


def test_a_state_that_lasts_is_not_forgotten() -> None:
    pending = replace(REMAP, code="gpu_remap_pending")  # accuses nobody
    twice = shows(shows(FRESH, pending), pending)
    assert len(judged(twice, CATALOG, 200.0 + 3 * DAY).faults) == 1
    assert len(judged(twice, CATALOG, 200.0 + 3 * DAY).book.history) == 1


def test_a_state_does_not_take_a_line_back() -> None:
    lost = read(read(FRESH, *LOST), *LOST)
    line = "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: id=0018"
    assert read(says(lost, 1, line, 201.0), *GPUS, now=210.0).verdict is Verdict.FAULTY


# ---- history from elsewhere


def test_a_gpu_brings_its_history_along() -> None:
    elsewhere = (Occurrence("s1", "xid:79", 50.0, "boot-x"), Occurrence("s7", "xid:79", 60.0, "boot-x"))
    found = with_history(says(FRESH, 1, xid(79), DAY), elsewhere, CATALOG, DAY)
    assert found.faults[0].action == "replaceNode"
    assert {item.device for item in found.book.history} == {"s1"}
    assert with_history(found, elsewhere, CATALOG, DAY) is found


# ---- addresses, bounds


@pytest.mark.parametrize(
    "address", ["0000:3b:00", "00000000:3B:00.0", "0000:3B:00.0", "3b:00.0", "0:3b:00", " 0000:3b:00 "]
)
def test_pci_addresses_are_the_same_in_every_spelling(address: str) -> None:
    assert normal_pci(address) == "0000:3b:00"


def test_long_domains_stay_apart() -> None:
    assert normal_pci("00010000:3b:00.0") == "10000:3b:00"
    assert normal_pci("0008:01:00") != normal_pci("0000:01:00")


@given(st.text())
def test_any_pci_text(text: str) -> None:
    normal_pci(text)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 7), st.floats(0, 500)), max_size=100))
def test_a_storm_stays_bounded_and_keeps_the_gravest(storm: list[tuple[int, int, float]]) -> None:
    found = says(FRESH, 0, xid(79), now=0.0)
    now = 0.0
    for sequence, (code, slot, gap) in enumerate(storm, start=1):
        now += gap
        found = says(found, sequence, xid(code, f"0000:{slot:02x}:00"), now=now)
    assert len(found.book.cases) <= MAX_CASES
    assert len(found.book.history) <= MAX_OCCURRENCES
    assert any(fault.key == "xid:79@s1" for fault in found.faults)
    assert all(
        accuses(fault) is (fault.severity == "critical" and fault.fault_class in _ACCUSE) for fault in found.faults
    )


_ACCUSE = {FaultClass.HARDWARE, FaultClass.FABRIC, FaultClass.STORAGE}


def test_the_largest_book_fits_into_an_object() -> None:
    """The API server takes objects of 1.5 MiB (etcd's limit)."""
    evidence = replace(xid(79), line="x" * 512)
    case = says(FRESH, 1, xid(79), 1.0).book.cases[0]
    case = replace(case, cause=evidence, members=(evidence,) * MAX_MEMBERS, devices=("0000:00:00",) * MAX_NAMES)
    past = Occurrence("1650000000000", "host:gpu_lost_at_boot", 1.0, "b" * 36, ("uid 1000000",) * 8)
    size = MAX_CASES * len(msgspec.json.encode(case)) + MAX_OCCURRENCES * len(msgspec.json.encode(past))
    assert size < 800_000
