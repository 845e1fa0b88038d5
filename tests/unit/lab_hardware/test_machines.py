from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from everstep.core.errors import Conflict, InvalidInput, NotFound, Unreadable
from everstep.lab.hardware.machines import Machine, Machines
from everstep.lab.hardware.records import MachineState, RecordStore
from everstep.lab.hardware.service import Hardware, read_or_make_token
from tests.unit.lab_hardware.machine_room import SleepingPower, hardware_settings, machine_settings


def machine(root: Path) -> Machine:
    return Machines((machine_settings(root, "gpu-1"),), {}).get("gpu-1")


def read_json(path: Path) -> dict[str, object]:
    decoded = json.loads(path.read_text())
    assert isinstance(decoded, dict)
    return decoded


def test_a_machine_runs_as_long_as_its_first_process(tmp_path: Path, power: SleepingPower) -> None:
    subject = machine(tmp_path)
    assert subject.observe() is None
    boot = subject.start_boot()
    pid = power.start("gpu-1")
    assert subject.observe() == pid
    assert (subject.record.state, subject.boot_id) == (MachineState.RUNNING, boot)
    power.kill("gpu-1")
    assert subject.observe() is None
    assert (subject.record.state, subject.boot_id) == (MachineState.OFF, boot)


def test_another_first_process_is_another_boot_even_if_nobody_announced_it(
    tmp_path: Path, power: SleepingPower
) -> None:
    subject = machine(tmp_path)
    boot = subject.start_boot()
    power.start("gpu-1")
    subject.observe()
    power.kill("gpu-1")
    power.start("gpu-1")
    subject.observe()
    assert subject.boot_id != boot
    assert (tmp_path / "gpu-1/run/boot_id").read_text().strip() == subject.boot_id
    assert read_json(tmp_path / "gpu-1/run/gpus.json")["boot_id"] == subject.boot_id


def test_xid_79_takes_the_gpu_and_says_so_in_every_place(tmp_path: Path, power: SleepingPower) -> None:
    subject = machine(tmp_path)
    subject.start_boot()
    power.start("gpu-1")
    subject.observe()
    written = subject.inject(79, 1)
    assert written[-1].endswith(
        ",-;NVRM: Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert (tmp_path / "gpu-1/run/kmsg").read_text().splitlines()[-1] == written[-1]
    gpus = read_json(tmp_path / "gpu-1/run/gpus.json")["gpus"]
    assert isinstance(gpus, list)
    assert [(g["lost"], g["recovery_action"]) for g in gpus] == [(False, "none"), (True, "reboot")]
    assert [g.healthy for g in subject.gpus] == [True, False]


def test_a_power_cycle_clears_the_fault_and_keeps_the_part(tmp_path: Path, power: SleepingPower) -> None:
    subject = machine(tmp_path)
    subject.start_boot()
    power.start("gpu-1")
    subject.observe()
    before = subject.gpus[0].identity
    subject.inject(79, 0)
    power.kill("gpu-1")
    subject.observe()
    subject.start_boot()
    assert subject.gpus[0].identity == before
    assert subject.gpus[0].healthy
    assert "Xid" not in (tmp_path / "gpu-1/run/kmsg").read_text()


def test_what_cannot_be_broken_is_refused_in_one_sentence(tmp_path: Path, power: SleepingPower) -> None:
    subject = machine(tmp_path)
    with pytest.raises(Conflict, match="gpu-1 is off: power it on"):
        subject.inject(79, 0)
    subject.start_boot()
    power.start("gpu-1")
    subject.observe()
    with pytest.raises(InvalidInput, match="gpu-1 has no GPU 2: it has GPUs 0 to 1"):
        subject.inject(79, 2)
    with pytest.raises(InvalidInput, match="XID 7999 is not one"):
        subject.inject(7999, 0)
    assert all(g.healthy for g in subject.gpus)


def test_waiting_for_health_returns_at_once_when_it_changed_before(tmp_path: Path) -> None:
    subject = machine(tmp_path)

    async def check() -> None:
        version = subject.health_version
        subject.repair()
        assert await asyncio.wait_for(subject.health_after(version), 1) != version
        waiting = asyncio.create_task(subject.health_after(subject.health_version))
        await asyncio.sleep(0)
        assert not waiting.done()
        subject.repair()
        await asyncio.wait_for(waiting, 1)

    asyncio.run(check())


def test_machines_parts_and_faults_survive_a_restart(tmp_path: Path, power: SleepingPower) -> None:
    settings = hardware_settings(tmp_path, "gpu-1", "gpu-2")
    first = Hardware(settings)
    boot = first.boot("gpu-1")
    power.start("gpu-1")
    first.sample()
    first.machines.get("gpu-1").inject(79, 0)
    first.keep()
    second = Hardware(settings)
    second.sample()
    again = second.machines.get("gpu-1")
    assert [g.identity for g in again.gpus] == [g.identity for g in first.machines.get("gpu-1").gpus]
    assert [g.lost for g in again.gpus] == [True, False]
    assert (again.boot_id, again.record.state) == (boot, MachineState.RUNNING)


def test_unreadable_records_stop_the_hardware_and_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "machines.json"
    path.write_text('{"machines": [')
    with pytest.raises(Unreadable, match=r"machines\.json cannot be understood"):
        RecordStore(path)
    assert path.read_text() == '{"machines": ['


def test_an_unknown_machine_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    machines = Machines((machine_settings(tmp_path, "gpu-1"), machine_settings(tmp_path, "gpu-2")), {})
    with pytest.raises(NotFound, match="no machine gpu-9 in this lab; it has gpu-1, gpu-2"):
        machines.get("gpu-9")


def test_history_holds_one_sample_a_gpu_machine_and_pass(tmp_path: Path, power: SleepingPower) -> None:
    hardware = Hardware(hardware_settings(tmp_path, "gpu-1"))
    hardware.sample()
    hardware.boot("gpu-1")
    power.start("gpu-1")
    passes, deadline = 1, time.monotonic() + 5
    while hardware.history.since(0)[-1].power_watts[0] == 0.0:  # power rises with time, from nothing
        assert time.monotonic() < deadline, "a machine that runs draws no power"
        time.sleep(0.01)
        hardware.sample()
        passes += 1
    samples = hardware.history.since(0)
    assert [(s.node, s.running) for s in samples] == [("gpu-1", False)] + [("gpu-1", True)] * (passes - 1)
    assert hardware.history.since(samples[0].time) == samples[1:]


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_or_make_token(path)
    assert len(token) >= 32
    assert read_or_make_token(path) == token
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("\n")
    with pytest.raises(InvalidInput, match="is empty"):
        read_or_make_token(path)
