"""What the benchmark beside other agents is made of, as far as it can be wrong without being slow."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from beside.costs import family, proportional_bytes, resident_bytes
from beside.kernel_log import repeated
from beside.lines import XID, batches, field_cases, probe
from beside.reports import OutputReports
from beside.table import percentile


def test_every_line_of_the_field_is_written_once_and_none_next_to_one_that_is_like_it() -> None:
    cases = field_cases()
    written = list(batches(cases))
    assert Counter(itertools.chain(*written)) == Counter(cases)
    assert {case.family for case in cases} == {"xid", "sxid", "amd", "ib", "pcie", "host", "none"}
    for batch in written:
        families = {case.family for case in batch}
        assert families == {"none"} or ("none" not in families and len({case.alike for case in batch}) == len(batch))


def test_a_probe_is_found_in_an_output_that_comes_in_pieces(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    output.touch()
    what = probe(XID, 0)
    reports = OutputReports(output, "report")
    with output.open("a") as file:
        for piece in (f"seen, not said: {what.line}\n", f"report of {what.line[:30]}", f"{what.line[30:]} and"):
            file.write(piece)
            file.flush()
            assert reports.wait(what.marker, 0) is None
        file.write(" more\n")
    assert reports.wait(what.marker, 0) is not None
    assert reports.wait("", 0) is not None
    reports.skip()
    assert reports.wait(what.marker, 0) is None
    assert reports.wait("", 0) is None


def test_a_report_that_never_came_is_later_than_all_others() -> None:
    assert percentile([0.3, None, 0.1, 0.2], 0.5) == 0.3
    assert percentile([0.3, None, 0.1, 0.2], 0.99) is None


def test_other_lines_are_put_between_the_storms() -> None:
    lines = list(repeated([b"a", b"b"], 3, {1: b"other"}.get))
    assert lines == [b"a", b"other", b"b", b"a"]


def test_the_costs_of_a_process_are_those_of_its_children_too() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        one.stdout.readline()
        found = family(one.pid)
        try:
            assert len(found) == 2
            assert found[0] == one.pid
            assert resident_bytes(one.pid) > proportional_bytes(one.pid) > 0
        finally:
            for pid in found:
                os.kill(pid, signal.SIGKILL)
