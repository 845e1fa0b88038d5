"""Storms that have taken other agents down, at the size that a unit test can bear; tests/lab has one in real pods.

Told of others: 800,000 lines of one code on one node (NVSentinel 1120), 56,000 lines in 3 seconds after which nothing
was read any more (node-problem-detector 1168), one line that stopped a reader (gpud).
"""

from __future__ import annotations

import asyncio
import itertools
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.apps.agent import kernel_log
from everstep.apps.agent.publisher import BURST, RATE, Heartbeat
from everstep.apps.agent.state import State
from everstep.core import diagnosis
from everstep.core.correlation.casebook import MAX_CASES, Case, Casebook
from everstep.core.correlation.sighting import Sighting
from everstep.core.diagnosis import Diagnosis
from everstep.core.health import Verdict
from everstep.core.kernel_lines import stream
from everstep.core.kernel_lines.stream import RecordStream
from everstep.ports import Batch

from .agent_at_work import GPUS, FakeApi, FakeDriver, agent, append, play, until, xid_record

CATALOG = shipped_catalog()
EXAMPLES = [row.example for row in CATALOG.entries.values() if row.example]
BEAT = 0.05


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("5,0,1,-;Linux version 6.1\n")
    return path


def mixed(count: int, first: int = 1) -> str:
    return "".join(
        f"4,{first + n},1,-;{EXAMPLES[n * 7 % len(EXAMPLES)]} {n}\n" for n in range(count)
    )  # the number at the end makes every text another one


def test_many_faults_at_once_hide_none_cost_few_writes_and_stop_no_heart(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: bool(api.writes))
            heart = asyncio.create_task(Heartbeat(api, lambda: True, period=BEAT).run())
            began, writes = time.monotonic(), len(api.writes)
            for part in range(4):
                append(kmsg, mixed(2000, 1 + part * 3000))
                append(kmsg, xid_record(2500 + part * 3000, 95))
                await asyncio.sleep(0.01)
            append(kmsg, xid_record(20000, 79))
            await until(lambda: any(fault.key == "xid:79@s1" for fault in api.writes[-1].faults), within=20)
            took = time.monotonic() - began
            beats = [began, *api.beats, time.monotonic()]
            assert max(later - earlier for earlier, later in itertools.pairwise(beats)) < 2.0  # a Lease lasts 40 s
            assert len(api.writes) - writes <= BURST + RATE * took + 5
            faults = {fault.key: fault for fault in api.writes[-1].faults}
            assert len(api.writes[-1].book.cases) <= MAX_CASES
            assert faults["xid:79@s1"].gpu_serial == "s1"
            heart.cancel()

    play(scenario)


def test_a_long_storm_takes_no_memory() -> None:
    """What many times as many lines leave behind is what one batch does."""
    state = State(replace(Diagnosis("boot-1"), gpus=GPUS), CATALOG, lambda: 1_700_000_000.0)

    class Log:
        name, numbering = "kernel log", "kmsg"

        async def open(self) -> object:
            raise AssertionError

    task = kernel_log.KernelLogTask(state, Log(), RecordStream())  # type: ignore[arg-type]

    def storm(batch: int) -> None:
        lines = (xid_record(batch * 300 + n, 95).replace("text", f"{batch} {n}").encode() for n in range(300))
        task.take(Batch(list(lines)), lambda microseconds: state.now())

    for batch in range(4):
        storm(batch)
    tracemalloc.start()
    storm(4)
    before = tracemalloc.get_traced_memory()[0]
    for batch in range(5, 15):
        storm(batch)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000_000
    assert state.diagnosis.faults[0].count == 15 * 300


def test_a_poison_line_is_counted_told_and_passed_over(kmsg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = stream.follow

    def follow(before: object, line: bytes, **flags: bool) -> object:
        if b"poison" in line:
            raise RecursionError
        return sound(before, line, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(stream, "follow", follow)

    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, xid_record(1, 95).replace("text", "poison") * 3 + xid_record(4, 79))
            await until(lambda: bool(api.writes) and api.writes[-1].verdict is Verdict.FAULTY)
            assert (api.writes[-1].skipped_records, api.writes[-1].broken) == (3, ())

    play(scenario)


def test_a_line_that_cannot_be_judged_stops_no_other(kmsg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = diagnosis.with_sighting

    def with_sighting(book: Casebook, seen: Sighting, accuses: Callable[[Case], bool]) -> Casebook:
        if seen.evidence.code == "95":
            raise ZeroDivisionError
        return sound(book, seen, accuses)

    monkeypatch.setattr(diagnosis, "with_sighting", with_sighting)

    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, xid_record(1, 31) + xid_record(2, 95) * 3 + xid_record(5, 79))
            await until(lambda: bool(api.writes) and api.writes[-1].verdict is Verdict.FAULTY)
            assert [fault.code for fault in api.writes[-1].faults] == ["79", "31"]
            assert (api.writes[-1].skipped_records, api.writes[-1].sequence, api.writes[-1].broken) == (3, 5, ())

    play(scenario)


def test_a_log_that_rotates_in_a_storm_counts_nothing_twice(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            written = 0
            for _ in range(3):
                lines = "".join(xid_record(written + n, 95) for n in range(1, 301))
                written += 300
                kmsg.with_suffix(".new").write_text(lines)
                kmsg.with_suffix(".new").rename(kmsg)
                await until(lambda: bool(api.writes) and api.writes[-1].sequence == written)  # noqa: B023
            assert api.writes[-1].faults[0].count == written

    play(scenario)
