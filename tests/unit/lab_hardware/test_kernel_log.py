from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from everstep.core.kernel_lines.parser import parse_line
from everstep.lab.hardware import kernel_log
from everstep.lab.hardware.kernel_log import KernelLog
from everstep.lab.hardware.xids import effect_of

RECORD = re.compile(r"(\d+),(\d+),(\d+),-;(.+)")


def records(path: Path) -> list[tuple[int, int, int, str]]:
    found = []
    for line in path.read_text().splitlines():
        match = RECORD.fullmatch(line)
        assert match, line
        found.append((int(match[1]), int(match[2]), int(match[3]), match[4]))
    return found


def test_records_are_numbered_timed_and_of_the_kernels_facility(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "run" / "kmsg")
    before = time.monotonic_ns() // 1000
    log.boot(kernel_log.boot_lines("6.1.0", ["0000:01:00"]))
    log.append(kernel_log.ERROR, "NVRM: something")
    found = records(log.path)
    assert [sequence for _, sequence, _, _ in found] == list(range(len(found)))
    assert all(priority < 8 for priority, *_ in found)
    times = [usec for _, _, usec, _ in found]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns() // 1000
    assert found[-1][3] == "NVRM: something"


def test_numbers_go_on_after_a_restart_and_start_anew_with_a_boot(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    log.boot(["one", "two"])
    again = KernelLog(tmp_path / "kmsg")
    again.append(kernel_log.ERROR, "three")
    assert [sequence for _, sequence, _, _ in records(log.path)] == [0, 1, 2]
    again.boot(["one"])
    assert [sequence for _, sequence, _, _ in records(log.path)] == [0]


def test_two_writers_go_on_with_each_others_numbers(tmp_path: Path) -> None:
    one = KernelLog(tmp_path / "kmsg")
    one.boot(["first"])
    other = KernelLog(tmp_path / "kmsg")
    for writer in (other, other, one, other):
        writer.append(kernel_log.ERROR, "next")
    assert [sequence for _, sequence, _, _ in records(one.path)] == [0, 1, 2, 3, 4]


def test_a_reader_of_the_old_boot_keeps_the_old_boots_file(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    log.boot(["first boot"])
    with log.path.open() as reader:
        log.boot(["second boot"])
        assert "first boot" in reader.read()


def test_control_characters_cannot_forge_a_record(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    log.append(kernel_log.ERROR, "a\n3,9,9,-;NVRM: Xid (PCI:0000:01:00): 79\\")
    assert [text for *_, text in records(log.path)] == ["a\\x0a3,9,9,-;NVRM: Xid (PCI:0000:01:00): 79\\x5c"]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 48, 63, 79, 94, 95, 119, 154])
def test_the_agents_parser_reads_every_line_that_can_be_injected(tmp_path: Path, xid: int) -> None:
    log = KernelLog(tmp_path / "kmsg")
    evidence = parse_line(log.append(kernel_log.ERROR, effect_of(xid).line("0000:02:00")))
    assert evidence is not None
    assert (evidence.kind, evidence.code, evidence.pci, evidence.injected) == ("xid", str(xid), "0000:02:00", False)
