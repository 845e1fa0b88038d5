"""The agent's tasks on a fake API server: what is written, when, and what a crash or an outage loses (nothing)."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.apps.agent import publisher
from everstep.apps.agent.__main__ import main
from everstep.apps.agent.publisher import Heartbeat, Publisher
from everstep.apps.agent.state import State
from everstep.core.diagnosis import resumed, with_source
from everstep.core.errors import Unreachable
from everstep.core.health import Verdict

from .agent_at_work import CATALOG, GPUS, FakeApi, FakeDriver, agent, append, play, until, xid_record


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("5,0,1,-;Linux version 6.1\n")
    return path


def test_a_line_becomes_a_written_fault_within_the_promised_time(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: len(api.writes) == 1)
            assert api.writes[0].verdict is Verdict.HEALTHY
            began = time.perf_counter()
            append(kmsg, xid_record(1))
            await until(lambda: api.writes[-1].verdict is Verdict.FAULTY)
            assert time.perf_counter() - began < 0.5  # typically 5 ms; the limit allows for a busy machine
            assert api.writes[-1].faults[0].key == "xid:79@s1"

    play(scenario)


def test_the_driver_is_asked_at_once_when_the_log_accuses_a_gpu(kmsg: Path) -> None:
    async def scenario() -> None:
        api, driver = FakeApi(), FakeDriver()
        async with agent(kmsg, api, driver, period=60.0):
            await until(lambda: bool(api.writes))
            driver.answer = (GPUS[0], replace(GPUS[1], lost=True))
            append(kmsg, xid_record(1))
            await until(lambda: api.writes[-1].gpus[1].lost)

    play(scenario)


def test_on_a_node_that_nobody_watched_old_lines_accuse_nobody(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        append(kmsg, xid_record(1))  # at one microsecond
        async with agent(kmsg, api, FakeDriver(), not_before=1000):
            await until(lambda: bool(api.writes))
            assert api.writes[0].verdict is Verdict.HEALTHY
            append(kmsg, xid_record(2).replace(",1,-;", ",1001,-;"))
            await until(lambda: api.writes[-1].verdict is Verdict.FAULTY)
            assert api.writes[-1].faults[0].count == 1

    play(scenario)


def test_nothing_new_writes_nothing(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: len(api.writes) == 1)
            append(kmsg, "6,1,1,-;usb 1-1: new device\n" * 50)
            await asyncio.sleep(0.3)
            assert len(api.writes) == 1

    play(scenario)


def test_a_storm_costs_few_writes_and_counts_every_line(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, "".join(xid_record(n, 95) for n in range(1, 5001)) + xid_record(5001, 79))
            await until(lambda: bool(api.writes) and api.writes[-1].sequence == 5001)
            counts = {fault.key: fault.count for fault in api.writes[-1].faults}
            assert counts == {"xid:95@s1": 5000, "xid:79@s1": 1}
            assert len(api.writes) < 12

    play(scenario)


def test_killed_at_any_moment_nothing_is_lost_or_counted_twice(kmsg: Path) -> None:
    async def scenario() -> None:
        api, dice, written = FakeApi(), random.Random(7), 0
        for _ in range(40):
            async with agent(kmsg, api, FakeDriver()):
                for _ in range(dice.randrange(4)):
                    written += 1
                    append(kmsg, xid_record(written, 95))
                await asyncio.sleep(dice.random() * 0.02)
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: api.writes[-1].sequence == written)
        assert api.writes[-1].faults[0].count == written

    play(scenario)


def test_what_the_api_server_missed_is_written_when_it_is_back(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: len(api.writes) == 1)
            api.down = True
            append(kmsg, xid_record(1) + xid_record(2, 31))
            await asyncio.sleep(0.3)
            api.down = False
            await until(lambda: len(api.writes[-1].faults) == 2)

    play(scenario)


def test_a_log_that_goes_and_comes_back(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, xid_record(1, 95))
            await until(lambda: bool(api.writes) and api.writes[-1].verdict is Verdict.FAULTY)
            kept = kmsg.read_text()
            kmsg.unlink()
            await until(lambda: bool(api.writes[-1].broken))
            assert api.writes[-1].verdict is Verdict.FAULTY
            kmsg.write_text(kept + xid_record(2, 95))
            await until(lambda: not api.writes[-1].broken and api.writes[-1].sequence == 2)
            assert api.writes[-1].faults[0].count == 2

    play(scenario)


@pytest.mark.parametrize("answer", [Unreachable("no driver"), None])
def test_a_driver_that_fails_or_hangs_is_unknown(kmsg: Path, answer: Exception | None) -> None:

    async def scenario() -> None:
        api, driver = FakeApi(), FakeDriver()
        driver.answer = answer
        async with agent(kmsg, api, driver, deadline=0.05):
            await until(lambda: bool(api.writes))
            assert api.writes[0].verdict is Verdict.UNKNOWN
            driver.answer = GPUS
            await until(lambda: api.writes[-1].verdict is Verdict.HEALTHY)

    play(scenario)


def test_without_a_log_the_node_is_never_called_healthy(tmp_path: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(tmp_path / "missing", api, FakeDriver()):
            await until(lambda: bool(api.writes))
            assert [write.verdict for write in api.writes] == [Verdict.UNKNOWN]

    play(scenario)


def test_faults_clear_after_a_reboot_that_repaired(kmsg: Path) -> None:
    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, xid_record(1))
            await until(lambda: bool(api.writes) and api.writes[-1].verdict is Verdict.FAULTY)
        since = api.stored.since if api.stored else 0.0
        async with agent(kmsg, api, FakeDriver()):  # a restart alone changes nothing, not even since when
            await asyncio.sleep(0.1)
            assert api.stored is not None
            assert (api.stored.verdict, api.stored.since) == (Verdict.FAULTY, since)
        kmsg.write_text("5,0,1,-;Linux version 6.1\n")
        async with agent(kmsg, api, FakeDriver(), boot_id="boot-2"):
            await until(lambda: api.writes[-1].verdict is Verdict.HEALTHY)
            assert api.writes[-1].faults == ()

    play(scenario)


def test_other_families_are_faults_too_and_what_is_no_fault_is_not(kmsg: Path) -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:01:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "EXT4-fs (md0): Remounting filesystem read-only",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Severity 1 Engine instance 28",
        "mlx5_core 0000:01:00.1 eth1: Link up",  # from here on: nothing is wrong
        "pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",  # a companion says nothing alone; the driver is asked
    )

    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            append(kmsg, "".join(f"4,{n},{n},-;{line}\n" for n, line in enumerate(lines, start=1)))
            await until(lambda: bool(api.writes) and len(api.writes[-1].faults) == 3)
            found = {fault.key: fault.count for fault in api.writes[-1].faults}
            assert found == {
                "host:gpu_lost_at_boot@s0": 1,
                "host:readonly_remount@md0": 1,
                "sxid:24007@0000:c3:00": 1,
            }

    play(scenario)


def test_a_wrong_site_table_stops_the_start_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = tmp_path / "site.csv"
    table.write_text("kind,code,action\nxid,79,explode\n")
    assert main(["--node", "gpu-1", "--site-faults", str(table)]) == 1
    assert "site.csv row 2: 'explode' is none of" in caplog.text


def test_the_heart_beats_while_nothing_happens_and_recovers() -> None:
    async def scenario() -> None:
        api = FakeApi()
        beating = asyncio.create_task(Heartbeat(api, lambda: True, period=0.01).run())
        await until(lambda: len(api.beats) >= 3)
        api.down = True
        await asyncio.sleep(0.05)
        api.down, before = False, len(api.beats)
        await until(lambda: len(api.beats) > before)
        beating.cancel()

    play(scenario)


def test_a_node_health_that_somebody_deleted_comes_back(kmsg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "REPEAT_EVERY", 0.05)

    async def scenario() -> None:
        api = FakeApi()
        async with agent(kmsg, api, FakeDriver()):
            await until(lambda: api.stored is not None)
            api.stored = None
            await until(lambda: api.stored is not None)

    play(scenario)


def test_the_heart_does_not_speak_for_a_word_that_could_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "STALE_AFTER", 0.1)

    async def scenario() -> None:
        api = FakeApi()
        state = State(resumed(None, "boot-1"), CATALOG, time.time)
        publishing = Publisher(state, api)
        assert not publishing.current, "nothing has been written yet"
        tasks = [
            asyncio.create_task(publishing.run()),
            asyncio.create_task(Heartbeat(api, lambda: publishing.current, 0.01).run()),
        ]
        await until(lambda: len(api.beats) >= 3)
        api.refused = "admission webhook says no"
        state.update(with_source(state.diagnosis, "disks", "no answer"))
        await until(lambda: not publishing.current)
        await asyncio.sleep(0.02)  # for a beat that is on its way
        before = len(api.beats)
        await asyncio.sleep(0.1)
        assert len(api.beats) == before
        api.refused = ""
        await until(lambda: len(api.beats) > before)
        for task in tasks:
            task.cancel()

    play(scenario)
