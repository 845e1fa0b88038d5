"""Which sources a machine has, what asking one costs that hangs, and that an ordinary machine has nothing wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.adapters.gpu.boot import KernelBoot
from everstep.adapters.gpu.kmsg import KernelLogFile
from everstep.adapters.node.deadlines import PolledSource
from everstep.adapters.node.journal import Journal
from everstep.apps.agent import local_sources
from everstep.apps.agent.local_sources import (
    SourceOptions,
    add_source_flags,
    from_environment,
    line_source,
    source_options,
    state_sources,
)
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.health import Evidence, Fault, FaultClass, FirstAction, Severity

from .tree import Tree, shown


def names(options: SourceOptions) -> list[str]:
    return [source.name for source in state_sources(options)]


def test_this_machine_has_nothing_wrong() -> None:
    async def scenario() -> None:
        sources = state_sources(SourceOptions())
        for _ in range(2):
            for source in sources:
                found = [item.line for item in await source.read() if item.code != "disk_full"]
                assert found == [], f"{source.name}: is that so?"

    asyncio.run(scenario())


def test_a_machine_without_anything_has_only_the_sources_that_every_machine_has(tmp_path: Path) -> None:
    Tree(tmp_path).put("proc/self/mountinfo", "")
    options = SourceOptions(host_root=tmp_path)
    assert names(options) == ["disks", "mounts", "PCI Express", "network ports"]
    assert [asyncio.run(source.read()) for source in state_sources(options)] == [[], [], [], []]


def test_what_a_machine_has_is_found(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.folder("proc/driver/nvidia-nvswitch/devices/0000:c3:00.0")
    tree.put("sys/class/drm/card0/device/vendor", "0x1002")
    tree.folder("sys/class/drm/card0/device/ras")
    options = SourceOptions(host_root=tmp_path, dcgm_url="http://127.0.0.1:9400/metrics", without=("mounts",))
    assert names(options) == ["disks", "PCI Express", "network ports", "AMD GPUs", "fabric manager", "DCGM exporter"]


def test_a_source_that_is_to_be_left_out_must_be_one() -> None:
    with pytest.raises(InvalidInput, match="'disk' is no source; there are disks, mounts"):
        state_sources(SourceOptions(without=("disk",)))
    names(SourceOptions(without=("AMD GPUs",)))  # of a fleet, some nodes have none


def test_what_is_on_record_is_seen_again_after_a_restart(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("proc/self/mountinfo", "22 1 8:1 / / rw - btrfs /dev/sda1 ro")
    record = Fault(
        "host:mount_readonly@sda1", "host", "mount_readonly",
        FaultClass.STORAGE, Severity.CRITICAL, FirstAction.REBOOT_NODE, "",
    )  # fmt: skip
    for known, expected in (((), []), ((record,), [("mount_readonly", "sda1")])):
        mounts = next(item for item in state_sources(SourceOptions(host_root=tmp_path), known) if item.name == "mounts")
        assert shown(asyncio.run(mounts.read())) == expected


def test_a_check_does_not_wait_for_what_must_last_a_while(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("proc/1/mountinfo", "")
    tree.folder("proc/1/root")
    tree.put("proc/1/comm", "systemd")
    tree.folder("proc/self/ns")
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    tree.folder("proc/driver/nvidia-nvswitch/devices/0000:c3:00.0")
    tree.put("sys/class/nvme/nvme0/state", "dead")
    tree.put("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    options = SourceOptions(host_root=tmp_path, expected_mounts=("/home",), expected_ports=("mlx5_0/1",))

    def found(*, at_once: bool) -> list[tuple[str, str | None]]:
        sources = state_sources(options, at_once=at_once)
        return [item for source in sources for item in shown(asyncio.run(source.read()))]

    assert found(at_once=False) == []
    assert found(at_once=True) == [
        ("disk_not_live", "nvme0"),
        ("mount_missing", "/home"),
        ("port_drop", "mlx5_0/1"),
        ("fabric_manager_down", None),
    ]


def test_flags_and_environment_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_EXPECT_MOUNTS", "/home, /scratch")
    monkeypatch.setenv("EVERSTEP_DCGM_URL", "http://127.0.0.1:9400/metrics")
    parser = argparse.ArgumentParser()
    add_source_flags(parser)
    given = source_options(parser.parse_args(["--expect-port", "mlx5_0/1", "--expect-mount", "/data"]))
    assert given.expected_mounts == ("/home", "/scratch", "/data")
    assert given.expected_ports == ("mlx5_0/1",)
    assert given.dcgm_url == "http://127.0.0.1:9400/metrics"
    assert from_environment({"EVERSTEP_WITHOUT_SOURCES": "disks,"}).without == ("disks",)


def test_where_the_kernel_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "kmsg"
    monkeypatch.setattr(local_sources, "KERNEL_LOG", device)
    monkeypatch.setattr(local_sources.shutil, "which", lambda _: "/usr/bin/journalctl")
    assert isinstance(line_source(SourceOptions(), "boot"), Journal)
    device.touch()
    assert isinstance(line_source(SourceOptions(), "boot"), KernelLogFile)
    assert isinstance(line_source(SourceOptions(kernel_log="journal"), "boot"), Journal)
    monkeypatch.setattr(local_sources.shutil, "which", lambda _: None)
    with pytest.raises(InvalidInput, match="no journalctl"):
        line_source(SourceOptions(kernel_log="journal"), "boot")
    device.unlink()
    with pytest.raises(Unreachable, match="cannot open the kernel log"):
        asyncio.run(line_source(SourceOptions(), KernelBoot().boot_id()).open())


def test_a_source_that_hangs_is_broken_and_keeps_nobody_waiting() -> None:
    released = threading.Event()
    asked: list[int] = []

    def look() -> Sequence[Evidence]:
        asked.append(1)
        if len(asked) == 1:
            released.wait()
        return []

    async def scenario() -> None:
        source = PolledSource("slow disks", 1, look, deadline=0.02)
        for _ in range(3):
            with pytest.raises(Unreachable, match=r"^no answer within 0\.02 s: a read hangs in the kernel$"):
                await source.read()
        assert len(asked) == 1  # one that hangs is not asked again, and holds one thread
        released.set()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(Unreachable):
                    assert await source.read() == []
                    return
                await asyncio.sleep(0.005)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (PermissionError(13, "Permission denied", "/sys/x"), "cannot read /sys/x: Permission denied"),
        (Unreachable("the driver sleeps"), "^the driver sleeps$"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_a_reading_that_fails_is_unreachable_and_never_empty(error: Exception, complaint: str) -> None:
    def look() -> Sequence[Evidence]:
        raise error

    with pytest.raises(Unreachable, match=complaint):
        asyncio.run(PolledSource("x", 1, look).read())
