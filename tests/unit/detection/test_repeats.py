"""What repeats on one device, and which jobs were there: when that accuses the part."""

from __future__ import annotations

from dataclasses import replace

from everstep.core.correlation.casebook import Casebook
from everstep.core.correlation.history import MAX_OF_ONE, joined
from everstep.core.health import accuses
from everstep.core.occurrences import Occurrence
from tests.unit.detection.sightings import DAY, HOUR, OTHER, TRAIN, after, sees, told, xid


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
