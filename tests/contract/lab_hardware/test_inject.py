"""`everstep inject` and the client of the control socket, against hardware that runs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from everstep.apps import cli
from everstep.core.errors import Conflict, InvalidInput, NotFound, Unreachable
from everstep.lab.hardware.client import HardwareClient
from everstep.lab.hardware.service import hardware
from everstep.lab.layout import LabConfig, LabPlan
from tests.unit.lab_hardware.machine_room import SleepingPower, hardware_settings


@dataclass
class RunningLab:
    """Hardware in a thread of its own, in a directory that looks like that of a lab named ``test``."""

    root: Path
    power: SleepingPower

    def client(self) -> HardwareClient:
        return HardwareClient(self.root)

    def kmsg(self, node: str) -> list[str]:
        return (self.root / node / "run" / "kmsg").read_text().splitlines()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningLab]:
    monkeypatch.setenv("EVERSTEP_STATE", str(tmp_path))
    monkeypatch.delenv("EVERSTEP_LAB", raising=False)
    root = tmp_path / "test"
    root.mkdir()
    (root / "lab.json").write_bytes(
        msgspec.json.encode(LabPlan(config=LabConfig(name="test"), binaries="", archives=[]))
    )
    power = SleepingPower(root)
    settings = hardware_settings(root, "gpu-1", "gpu-2")
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with hardware(settings, power) as state:
            state.boot("gpu-1")
            power.start("gpu-1")
            state.sample()
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield RunningLab(root, power)
    stop.set()
    thread.join(10)
    power.close()
    assert not thread.is_alive()


def everstep(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["everstep", *argv])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_writes_the_kernels_line(
    lab: RunningLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert everstep(monkeypatch, "inject", "gpu-1", "--xid", "79", "--gpu", "1") == 0
    last = lab.kmsg("gpu-1")[-1]
    assert last.endswith("Xid (PCI:0000:02:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert last in capsys.readouterr().out
    with lab.client() as client:
        assert [gpu.lost for gpu in client.status()[0].gpus] == [False, True]


def test_a_state_shows_in_the_driver_and_in_no_log(
    lab: RunningLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lab.kmsg("gpu-1")
    assert everstep(monkeypatch, "inject", "gpu-1", "--gpu", "1", "--state", "remap-failed") == 0
    assert "gpu-1: GPU 1 shows the state 'remap-failed' to whoever asks the driver" in capsys.readouterr().out
    assert lab.kmsg("gpu-1") == before
    state = lab.root / "gpu-1" / "run" / "driver" / "state"
    assert ["remap_failed=1" in line for line in state.read_text().splitlines()[1:]] == [False, True]
    assert everstep(monkeypatch, "inject", "gpu-1", "--gpu", "1", "--state", "well") == 0
    assert "remap_failed=1" not in state.read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["gpu-1", "--state", "ill"], "everstep: no state 'ill' of a GPU; choose one of well, lost,"),
        (["gpu-1", "--state", "hang", "--gpu", "2"], "everstep: gpu-1 has no GPU 2: it has GPUs 0 to 1\n"),
        (["gpu-9", "--xid", "79"], "everstep: no machine gpu-9 in this lab; it has gpu-1, gpu-2\n"),
        (["gpu-1", "--xid", "79", "--gpu", "2"], "everstep: gpu-1 has no GPU 2: it has GPUs 0 to 1\n"),
        (["gpu-2", "--xid", "79"], "everstep: gpu-2 is off: power it on before breaking its GPU\n"),
        (
            ["gpu-1", "--xid", "79", "--lab", "other"],
            "everstep: no lab 'other'; there is test; `everstep lab up ",
        ),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    lab: RunningLab,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    said: str,
) -> None:
    before = lab.kmsg("gpu-1")
    assert everstep(monkeypatch, "inject", *argv) == 1
    assert capsys.readouterr().err.startswith(said)
    assert lab.kmsg("gpu-1") == before


def test_power_is_cut_and_seen_as_off(lab: RunningLab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert everstep(monkeypatch, "inject", "gpu-1", "--power") == 0
    assert lab.power.calls == [("off", "gpu-1", None)]
    with lab.client() as client:
        assert [machine.state for machine in client.status()] == ["off", "off"]


def test_power_that_cannot_be_cut_is_told(lab: RunningLab) -> None:
    lab.power.failures = [RuntimeError("the switch is stuck")]
    with lab.client() as client, pytest.raises(Unreachable, match="gpu-1 cannot be cut: the switch is stuck"):
        client.cut_power("gpu-1")


def test_the_client_speaks_of_every_error_as_what_it_is(lab: RunningLab) -> None:
    with lab.client() as client:
        with pytest.raises(NotFound):
            client.boot("gpu-9")
        with pytest.raises(InvalidInput):
            client.inject("gpu-1", 7999)
        with pytest.raises(Conflict):
            client.inject("gpu-2", 79)
        assert client.boot("gpu-2") == (lab.root / "gpu-2/run/boot_id").read_text().strip()
        newest = client.gpus().samples[-1]
        assert client.gpus(newest.time + 3600).samples == []


def test_without_hardware_the_client_says_so(tmp_path: Path) -> None:
    with HardwareClient(tmp_path) as client, pytest.raises(Unreachable, match="does not answer"):
        client.status()
    with pytest.raises(Unreachable, match="there is no lab in"):
        HardwareClient(tmp_path / "none")
