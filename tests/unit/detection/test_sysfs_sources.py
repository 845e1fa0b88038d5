"""Ports, disks, memory, AMD GPUs, PCI Express links and the fabric manager, on trees that look like a machine's."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.adapters.node import amd_gpus, rdma_ports
from everstep.adapters.node.amd_gpus import AmdGpus
from everstep.adapters.node.disks import Disks
from everstep.adapters.node.fabric_manager import FabricManager
from everstep.adapters.node.pci_links import PciLinks
from everstep.adapters.node.rdma_ports import RdmaPorts
from everstep.core.errors import Unreachable
from everstep.ports import PartlyUnreachable

from .tree import Time, Tree, shown

PORT = "sys/class/infiniband/mlx5_0/ports/1"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def time() -> Time:
    return Time()


def set_port(tree: Tree, state: str, port: str = PORT) -> None:
    tree.put(f"{port}/state", state)
    tree.put(f"{port}/phys_state", "5: LinkUp" if state == "4: ACTIVE" else "2: Polling")


class TestPorts:
    def test_a_port_that_goes_down_for_long(self, tree: Tree, time: Time) -> None:
        ports = RdmaPorts(tree.root, clock=time)
        set_port(tree, "4: ACTIVE")
        set_port(tree, "1: DOWN", "sys/class/infiniband/mlx5_1/ports/1")  # spare
        assert shown(ports.look()) == []
        set_port(tree, "1: DOWN")
        for wait, expected in ((5, []), (239, []), (1, [("port_drop", "mlx5_0/1")])):
            time.now += wait
            found = ports.look()
            assert shown(found) == expected
        assert found[0].line == "port mlx5_0/1 has been down for 240 s: state DOWN, physical state Polling"

    def test_a_link_that_nobody_routes_is_down_too(self, tree: Tree, time: Time) -> None:
        ports = RdmaPorts(tree.root, clock=time)
        set_port(tree, "4: ACTIVE")
        ports.look()
        tree.put(f"{PORT}/state", "2: INIT")  # the subnet manager is gone; the cable is fine
        ports.look()
        time.now += 300
        assert "state INIT, physical state LinkUp" in ports.look()[0].line

    def test_an_adapter_that_leaves_sysfs_is_down(self, tree: Tree, time: Time) -> None:
        ports = RdmaPorts(tree.root, clock=time)
        set_port(tree, "4: ACTIVE")
        ports.look()
        (tree.root / "sys/class/infiniband").rename(tree.root / "gone")
        ports.look()
        time.now += 300
        assert shown(ports.look()) == [("port_drop", "mlx5_0/1")]

    def test_ports_that_are_named_or_on_record(self, tree: Tree, time: Time) -> None:
        set_port(tree, "1: DOWN")
        named = RdmaPorts(tree.root, expected=["mlx5_9/1"], known=["mlx5_0/1"], clock=time)
        named.look()
        time.now += 240
        assert shown(named.look()) == [("port_drop", "mlx5_0/1"), ("port_drop", "mlx5_9/1")]

    @pytest.mark.parametrize("kind", ["virtual function", "management port"])
    def test_what_is_left_alone(self, tree: Tree, time: Time, kind: str) -> None:
        set_port(tree, "4: ACTIVE")
        ports = RdmaPorts(tree.root, clock=time)
        ports.look()
        if kind == "virtual function":
            tree.folder("sys/class/infiniband/mlx5_0/device/physfn")
        else:
            tree.folder("sys/class/infiniband/mlx5_0/device/net/eno1")
            tree.put(
                "proc/1/net/route",
                "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
                "eno1 00000000 0100000A 0003 0 0 0 00000000 0 0 0",
            )
        set_port(tree, "1: DOWN")
        ports.look()
        time.now += 1000
        assert shown(ports.look()) == []

    def test_counters_that_rise(self, tree: Tree, time: Time) -> None:
        set_port(tree, "4: ACTIVE")
        tree.put(f"{PORT}/counters/link_downed", 7)
        tree.put(f"{PORT}/hw_counters/rnr_nak_retry_err", 0)
        ports = RdmaPorts(tree.root, clock=time)
        assert shown(ports.look()) == []
        tree.put(f"{PORT}/counters/link_downed", 8)
        time.now += 30
        assert shown(ports.look()) == [("counter_fatal", "mlx5_0/1 link_downed")]
        time.now += 3600
        assert shown(ports.look()) == []

    def test_an_adapter_that_refuses_one_counter_is_asked_for_none_again(
        self, tree: Tree, time: Time, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_port(tree, "4: ACTIVE")
        asked: list[Path] = []

        def refuses(path: Path) -> int | None:
            asked.append(path)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))

        monkeypatch.setattr(rdma_ports, "read_number", refuses)
        ports = RdmaPorts(tree.root, clock=time)
        for _ in range(5):
            assert shown(ports.look()) == []
            time.now += 60
        assert len(asked) == 1

    def test_only_files_that_are_named_are_read(self, tree: Tree, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
        set_port(tree, "4: ACTIVE")
        for name in ("port_xmit_discards", "VL15_dropped", "link_downed"):
            tree.put(f"{PORT}/counters/{name}", 1)
        read: set[str] = set()
        original = Path.open

        def noted(path: Path, *arguments: str) -> object:
            read.add(path.name)
            return original(path, *arguments)

        monkeypatch.setattr(Path, "open", noted)
        RdmaPorts(tree.root, clock=time).look()
        assert "link_downed" in read
        assert not read & {"port_xmit_discards", "VL15_dropped", "rate"}


class TestDisks:
    def test_a_controller_that_stays_out_of_service(self, tree: Tree, time: Time) -> None:
        tree.put("sys/class/nvme/nvme0/state", "live")
        tree.put("sys/class/nvme/nvme0/transport", "pcie")
        tree.put("sys/class/nvme/nvme9/state", "connecting")
        tree.put("sys/class/nvme/nvme9/transport", "tcp")
        disks = Disks(tree.root, time)
        assert shown(disks.look()) == []
        tree.put("sys/class/nvme/nvme0/state", "resetting")
        assert shown(disks.look()) == []
        time.now += 60
        assert shown(disks.look()) == [("disk_not_live", "nvme0")]
        tree.put("sys/class/nvme/nvme0/state", "live")
        assert shown(disks.look()) == []

    def test_an_array_that_lacks_a_disk(self, tree: Tree, time: Time) -> None:
        tree.put("sys/block/md0/md/degraded", 1)
        tree.put("sys/block/md1/md/degraded", 0)
        tree.folder("sys/block/sda")
        assert shown(Disks(tree.root, time).look()) == [("array_degraded", "md0")]

    def test_memory_errors_that_were_not_corrected(self, tree: Tree, time: Time) -> None:
        tree.put("sys/devices/system/edac/mc/mc0/ue_count", 0)
        tree.put("sys/devices/system/edac/mc/mc0/ce_count", 9)
        tree.put("sys/devices/system/edac/mc/mc1/ue_count", 0)
        tree.put("sys/devices/system/edac/mc/mc1/ue_noinfo_count", 2)
        assert shown(Disks(tree.root, time).look()) == [("memory_uncorrected", "mc1")]


ADDRESS = "0000:c3:00.0"
CARD = f"sys/devices/pci0000:c0/{ADDRESS}"


def set_card(tree: Tree, corrected: int = 0, **counts: int) -> None:
    tree.put(f"{CARD}/vendor", "0x1002")
    for block, errors in counts.items():
        tree.put(f"{CARD}/ras/{block}_err_count", f"ue: {errors}\nce: {corrected}")
    if not (tree.root / "sys/class/drm").exists():
        tree.link("sys/class/drm/card1/device", CARD)


class TestAmd:
    def test_zero_and_the_count_that_is_none(self, tree: Tree, time: Time) -> None:
        set_card(tree, umc=0, gfx=1048560, xgmi_wafl=0)
        assert shown(AmdGpus(tree.root, clock=time).look()) == []

    def test_a_count_from_before_accuses_nobody_and_a_rise_does(self, tree: Tree, time: Time) -> None:
        set_card(tree, umc=2, xgmi_wafl=0)
        gpus = AmdGpus(tree.root, clock=time)
        assert shown(gpus.look()) == [("ras_count", ADDRESS)]
        set_card(tree, umc=2, xgmi_wafl=1)
        time.now += 60
        assert shown(gpus.look()) == [("ras_count", ADDRESS), ("ras_count_rose", ADDRESS)]
        assert shown(AmdGpus(tree.root, known=["c3:00.0"], clock=time).look())[0] == ("ras_count_rose", ADDRESS)

    def test_a_block_with_errors_is_left_alone_because_the_driver_prints_them_at_every_read(
        self, tree: Tree, time: Time
    ) -> None:
        set_card(tree, umc=2, xgmi_wafl=0)
        gpus = AmdGpus(tree.root, clock=time)
        gpus.look()
        tree.put(f"{CARD}/ras/umc_err_count", "whoever reads this fails")
        time.now += 86400
        assert shown(gpus.look()) == [("ras_count", ADDRESS)]

    def test_a_block_with_corrected_errors_is_read_seldom(self, tree: Tree, time: Time) -> None:
        set_card(tree, corrected=9, umc=0, xgmi_wafl=0)
        gpus = AmdGpus(tree.root, clock=time)
        gpus.look()
        set_card(tree, umc=3)
        time.now += 599
        assert shown(gpus.look()) == []
        time.now += 1
        assert shown(gpus.look()) == [("ras_count_rose", ADDRESS)]

    def test_links_that_the_driver_says_nothing_of_are_not_well(
        self, tree: Tree, time: Time, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_card(tree, umc=2)
        tree.put(f"{CARD}/xgmi_error", 0)
        asked = []

        def refuses(path: Path) -> int | None:
            asked.append(path)
            raise OSError(errno.EINVAL, "Invalid argument")

        assert shown(AmdGpus(tree.root, clock=time).look()) == [("ras_count", ADDRESS)]
        monkeypatch.setattr(amd_gpus, "read_number", refuses)
        gpus = AmdGpus(tree.root, clock=time)
        for _ in range(3):
            with pytest.raises(PartlyUnreachable, match=ADDRESS) as caught:
                gpus.look()
            assert shown(caught.value.evidence) == [("ras_count", ADDRESS)]
        assert len(asked) == 1

    def test_link_errors_stay_said_though_reading_clears_them(self, tree: Tree, time: Time) -> None:
        set_card(tree, umc=0)
        gpus = AmdGpus(tree.root, clock=time)
        tree.put(f"{CARD}/xgmi_error", 1)
        gpus.look()
        tree.put(f"{CARD}/xgmi_error", 0)
        assert shown(gpus.look()) == [("xgmi_link", ADDRESS)]

    def test_a_count_that_makes_no_sense_is_no_all_clear(self, tree: Tree, time: Time) -> None:
        set_card(tree, umc=0)
        tree.put(f"{CARD}/ras/umc_err_count", "garbage")
        with pytest.raises(Unreachable, match="umc_err_count"):
            AmdGpus(tree.root, clock=time).look()

    def test_other_cards_are_none_of_it(self, tree: Tree) -> None:
        tree.put("sys/class/drm/card0/device/vendor", "0x1a03")
        tree.folder("sys/class/drm/card0-VGA-1")
        tree.folder("sys/class/drm/renderD128/device/ras")
        assert AmdGpus(tree.root).cards() == []


def set_link(tree: Tree, device: str, wide: int, most: int, kind: tuple[str, str] = ("0x10de", "0x030200")) -> None:
    address = device.rsplit("/", 1)[-1]
    tree.put(f"{device}/vendor", kind[0])
    tree.put(f"{device}/class", kind[1])
    tree.put(f"{device}/current_link_width", wide)
    tree.put(f"{device}/max_link_width", most)
    tree.link(f"sys/bus/pci/devices/{address}", device)


class TestPciLinks:
    def test_a_gpu_with_half_of_its_lanes(self, tree: Tree) -> None:
        set_link(tree, "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 8, 16)
        set_link(tree, "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0", 16, 16)
        set_link(tree, "sys/devices/pci0000:00/0000:00:03.0/0000:03:00.0", 1, 4, ("0x8086", "0x010802"))
        found = PciLinks(tree.root).look()
        assert shown(found) == [("link_degraded", "0000:01:00.0")]
        assert found[0].line == "0000:01:00.0 runs on 8 of 16 PCI Express lanes"

    def test_a_slot_that_is_narrow_by_design_and_a_virtual_function(self, tree: Tree) -> None:
        tree.put("sys/devices/pci0000:00/0000:00:01.0/max_link_width", 8)
        set_link(tree, "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", 8, 16, ("0x15b3", "0x020700"))
        set_link(tree, "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.2", 8, 16, ("0x15b3", "0x020000"))
        tree.folder("sys/devices/pci0000:00/0000:00:02.0/0000:02:00.2/physfn")
        assert shown(PciLinks(tree.root).look()) == []


class TestFabricManager:
    def switches(self, tree: Tree, pids: str = "pid:[4026531836]") -> None:
        tree.folder("proc/driver/nvidia-nvswitch/devices/0000:c3:00.0")
        tree.put("proc/1/comm", "systemd")
        tree.folder("proc/self/ns")
        (tree.root / "proc/self/ns/pid").symlink_to(pids)

    def test_it_is_missed_only_after_a_while(self, tree: Tree, time: Time) -> None:
        self.switches(tree)
        tree.put("proc/71/comm", "nv-fabricmanage")
        tree.put("proc/72/comm", "bash")
        source = FabricManager(tree.root, time)
        assert shown(source.look()) == []
        tree.put("proc/71/comm", "other")
        assert shown(source.look()) == []
        time.now += 60
        assert shown(source.look()) == [("fabric_manager_down", None)]

    def test_without_switches_nobody_needs_it(self, tree: Tree, time: Time) -> None:
        assert shown(FabricManager(tree.root, time).look()) == []

    def test_from_inside_a_container_nobody_can_tell(self, tree: Tree, time: Time) -> None:
        self.switches(tree, "pid:[4026532200]")
        with pytest.raises(Unreachable, match="hostPID"):
            FabricManager(tree.root, time).look()

    def test_where_processes_are_hidden_nobody_can_tell(self, tree: Tree, time: Time) -> None:
        self.switches(tree)
        (tree.root / "proc/1/comm").unlink()
        (tree.root / "proc/1").rmdir()
        with pytest.raises(Unreachable, match="run it as root"):
            FabricManager(tree.root, time).look()

    def test_soon_after_boot_it_may_still_be_starting(self, tree: Tree) -> None:
        self.switches(tree)
        time = Time(30.0)
        source = FabricManager(tree.root, time)
        source.look()
        time.now += 300
        assert shown(source.look()) == []


PLAUSIBLE = (b"4: ACTIVE", b"1: DOWN", b"live", b"dead", b"7", b"0x10de", b"0x030200", b"16", b"8", b"ue: 3", b"\xff\n")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40) | st.sampled_from(PLAUSIBLE), min_size=9, max_size=9))
def test_whatever_stands_in_the_files_no_source_fails(tmp_path: Path, contents: list[bytes]) -> None:
    tree = Tree(tmp_path)
    paths = (
        f"{PORT}/state", f"{PORT}/phys_state", f"{PORT}/counters/link_downed", "proc/1/net/route",
        "sys/class/nvme/nvme0/state", "sys/block/md0/md/degraded", "sys/devices/system/edac/mc/mc0/ue_count",
        f"{CARD}/ras/umc_err_count", "proc/7/comm",
    )  # fmt: skip
    for path, content in zip(paths, contents, strict=True):
        tree.put(path).write_bytes(content)
    set_card(tree)
    for name, content in zip(("vendor", "class", "current_link_width", "max_link_width"), contents, strict=False):
        tree.put(f"sys/bus/pci/devices/{ADDRESS}/{name}").write_bytes(content)
    sources = (RdmaPorts(tmp_path), Disks(tmp_path), PciLinks(tmp_path), FabricManager(tmp_path), AmdGpus(tmp_path))
    for source in sources:
        for _ in range(2):
            with contextlib.suppress(Unreachable):
                shown(source.look())
