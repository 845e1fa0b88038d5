"""The rules by which observations change what an agent says of its node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.core.diagnosis import (
    MAX_FAULTS,
    Diagnosis,
    accuses,
    merged,
    normal_pci,
    resumed,
    unwell,
    with_evidence,
    with_gpus,
    with_source,
)
from everstep.core.faults import classify
from everstep.core.health import Fault, FaultClass, Gpu, Verdict
from everstep.core.kernel_lines.parser import parse_line

CATALOG = shipped_catalog()
GPUS = (Gpu(0, "GPU-a", "s0", "0000:01:00"), Gpu(1, "GPU-b", "s1", "0000:02:00"))
FRESH = Diagnosis("boot-1", gpus=GPUS)


def xid(code: int, pci: str = "0000:02:00", rest: str = "") -> Fault:
    evidence = parse_line(f"NVRM: Xid (PCI:{pci}): {code}, {rest}")
    assert evidence is not None
    return classify(CATALOG, evidence)


def read(diagnosis: Diagnosis, *gpus: Gpu, now: float = 50.0) -> Diagnosis:
    judged = [(gpu, classify(CATALOG, evidence)) for gpu, evidence in unwell(gpus)]
    return with_gpus(diagnosis, gpus, judged, now)


def test_a_critical_hardware_fault_makes_the_node_faulty() -> None:
    found = with_evidence(FRESH, 7, xid(79), now=100.0)
    (fault,) = found.faults
    assert (fault.key, fault.gpu_index, fault.gpu_serial) == ("xid:79@s1", 1, "s1")
    assert (fault.first_seen, fault.last_seen, fault.count, fault.boot_id) == (100.0, 100.0, 1, "boot-1")
    assert found.verdict is Verdict.FAULTY
    assert found.reason == "XID 79: GPU fell off the bus on GPU 1"


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 63, 94, 999])
def test_application_and_suspect_codes_accuse_no_node(code: int) -> None:
    found = with_evidence(FRESH, 7, xid(code), now=100.0)
    assert len(found.faults) == 1
    assert found.verdict is Verdict.HEALTHY


def test_a_record_counts_once() -> None:
    once = with_evidence(FRESH, 7, xid(79), now=100.0)
    assert with_evidence(once, 7, xid(79), now=101.0) == once
    assert with_evidence(once, 3, xid(79), now=101.0) == once
    twice = with_evidence(once, 8, xid(79), now=101.0)
    assert (twice.faults[0].count, twice.faults[0].first_seen, twice.faults[0].last_seen) == (2, 100.0, 101.0)


def test_the_graver_sighting_stays() -> None:
    fatal = with_evidence(FRESH, 1, xid(149, rest="NETIR_LINK_EVT Fatal XC0"), now=1.0)
    after = with_evidence(fatal, 2, xid(149, rest="NETIR_BER_EVENT Nonfatal XC0"), now=2.0)
    assert after.verdict is Verdict.FAULTY
    assert after.faults[0].count == 2


def test_an_injected_fault_is_marked_until_the_kernel_says_it_too() -> None:
    injected = replace(xid(79), injected=True)
    first = with_evidence(FRESH, 1, injected, now=1.0)
    assert with_evidence(first, 2, injected, now=2.0).faults[0].injected
    assert not with_evidence(first, 2, xid(79), now=2.0).faults[0].injected


def test_a_broken_source_is_unknown_and_never_hides_a_fault() -> None:
    broken = with_source(FRESH, "kernel log", "gone")
    assert (broken.verdict, broken.reason) == (Verdict.UNKNOWN, "kernel log cannot be read: gone")
    assert with_evidence(broken, 1, xid(79), now=1.0).verdict is Verdict.FAULTY
    assert with_source(broken, "kernel log", None) == FRESH


def test_restart_in_the_same_boot_goes_on_where_it_was() -> None:
    stored = with_evidence(FRESH, 7, xid(79), now=100.0)
    assert resumed(stored, "boot-1") == stored
    assert resumed(None, "boot-1") == Diagnosis("boot-1")


def test_a_reboot_alone_clears_nothing() -> None:
    after = resumed(with_evidence(FRESH, 7, xid(79), now=100.0), "boot-2")
    assert (after.sequence, after.verdict) == (-1, Verdict.FAULTY)


def test_after_a_reboot_the_driver_proves_the_repair() -> None:
    after = resumed(with_evidence(FRESH, 7, xid(79), now=100.0), "boot-2")
    still_lost = read(after, GPUS[0], replace(GPUS[1], lost=True))
    assert still_lost.verdict is Verdict.FAULTY
    still_asking = read(after, GPUS[0], replace(GPUS[1], recovery_action="reset"))
    assert still_asking.verdict is Verdict.FAULTY
    assert read(after, *GPUS).verdict is Verdict.HEALTHY
    exchanged = Gpu(1, "GPU-new", "s9", "0000:02:00")
    assert read(after, GPUS[0], exchanged).verdict is Verdict.HEALTHY


def test_in_the_same_boot_a_healthy_reading_clears_nothing() -> None:
    assert read(with_evidence(FRESH, 7, xid(79), now=100.0), *GPUS).verdict is Verdict.FAULTY


def test_a_fault_of_this_boot_is_not_cleared_by_proof_for_the_last() -> None:
    after = resumed(with_evidence(FRESH, 7, xid(79), now=100.0), "boot-2")
    again = with_evidence(after, 1, xid(79), now=200.0)
    assert again.faults[0].count == 1
    assert read(again, *GPUS).verdict is Verdict.FAULTY


def test_a_gpu_that_vanished_stays_in_the_inventory_as_lost() -> None:
    kept = merged(GPUS, [Gpu(0, "GPU-b", "s1", "0000:02:00")])  # the driver numbers anew
    assert [(gpu.serial, gpu.index, gpu.lost) for gpu in kept] == [("s1", 0, False), ("s0", 1, True)]


def test_an_exchanged_gpu_leaves_the_inventory() -> None:
    assert [gpu.serial for gpu in merged(GPUS, [GPUS[0], Gpu(1, "GPU-n", "s9", "0000:02:00")])] == ["s0", "s9"]


def test_a_lost_gpu_without_a_line_is_a_fault_from_the_second_reading_on() -> None:
    lost = (GPUS[0], replace(GPUS[1], lost=True))
    once = read(FRESH, *lost)
    assert once.verdict is Verdict.HEALTHY
    twice = read(once, *lost)
    assert [fault.key for fault in twice.faults] == ["host:gpu_lost@s1"]
    assert read(twice, *lost).faults == twice.faults


def test_one_bad_reading_between_good_ones_is_no_fault() -> None:
    lost = (GPUS[0], replace(GPUS[1], lost=True))
    assert read(read(read(FRESH, *lost), *GPUS), *lost).faults == ()


def test_a_gpu_that_a_line_explains_is_not_reported_twice() -> None:
    lost = (GPUS[0], replace(GPUS[1], lost=True))
    found = read(read(with_evidence(FRESH, 1, xid(79), now=1.0), *lost), *lost)
    assert [fault.key for fault in found.faults] == ["xid:79@s1"]


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


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 7)), max_size=300))
def test_a_storm_stays_bounded_and_keeps_the_gravest(storm: list[tuple[int, int]]) -> None:
    found = with_evidence(FRESH, 0, xid(79), now=0.0)
    for sequence, (code, slot) in enumerate(storm, start=1):
        found = with_evidence(found, sequence, xid(code, f"0000:{slot:02x}:00"), now=float(sequence))
    assert len(found.faults) <= MAX_FAULTS
    assert any(fault.key == "xid:79@s1" for fault in found.faults)
    assert all(
        accuses(fault) is (fault.severity == "critical" and fault.fault_class in _ACCUSE) for fault in found.faults
    )


_ACCUSE = {FaultClass.HARDWARE, FaultClass.FABRIC, FaultClass.STORAGE}
