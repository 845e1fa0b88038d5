"""Windows, counters and tables that decide what a reading means; no file is read here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.node_state.counters import Counter, counted, counter_evidence, risen
from everstep.core.node_state.device_counts import believable, full_width, parse_error_counts
from everstep.core.node_state.mount_table import file_systems, is_full, parse_mounts
from everstep.core.node_state.port_watch import BOOT_GRACE, PortHistory, port_evidence, with_port_reading

DAY = 86400.0


def port(*readings: tuple[float, bool], history: PortHistory | None = None) -> PortHistory:
    history = history or PortHistory(in_use=False)
    for now, up in readings:
        history = with_port_reading(history, up=up, words="words", now=now)
    return history


def codes(history: PortHistory, now: float) -> list[str]:
    return [evidence.code for evidence in port_evidence("mlx5_0/1", history, now)]


def test_a_port_in_use_that_is_down_for_four_minutes_is_a_drop() -> None:
    history = port((DAY, True), (DAY + 5, False))
    assert codes(history, DAY + 5 + 239) == []
    assert codes(history, DAY + 5 + 240) == ["port_drop"]


def test_a_spare_port_is_never_a_fault() -> None:
    assert codes(port((DAY, False), (DAY + 9000, False)), DAY + 90000) == []


def test_a_port_that_must_be_up_is_a_drop_though_nobody_saw_it_up_but_not_soon_after_boot() -> None:
    history = port((60.0, False), history=PortHistory(in_use=True))
    assert codes(history, 60 + 900) == []
    assert codes(history, BOOT_GRACE) == ["port_drop"]


def test_a_drop_that_is_over_shows_for_ten_minutes() -> None:
    history = port((DAY, True), (DAY + 5, False), (DAY + 305, True))
    assert codes(history, DAY + 305 + 599) == ["port_drop"]
    assert codes(history, DAY + 305 + 600) == []


def flapping(start: float, times: int, length: float) -> PortHistory:
    readings = [(start - 5, True)]
    for turn in range(times):
        readings += [(start + turn * 100, False), (start + turn * 100 + length, True)]
    return port(*readings)


def test_three_times_down_for_25_seconds_is_a_flap_that_ends_by_itself() -> None:
    assert codes(flapping(DAY, 2, 25), DAY + 300) == []
    assert codes(flapping(DAY, 3, 24), DAY + 300) == []
    history = flapping(DAY, 3, 25)
    assert codes(history, DAY + 300) == ["port_flap"]
    later = DAY + 7 * 3600
    assert codes(port((later, True), history=history), later) == []


def test_what_happens_soon_after_boot_is_no_flap() -> None:
    assert codes(flapping(600, 3, 30), 1000) == []


@given(st.lists(st.integers(1, 39), max_size=40))
def test_a_port_that_is_never_down_for_four_minutes_never_drops(downs: list[int]) -> None:
    now, history = DAY, port((DAY - 5, True))
    for length in downs:  # in looks of 6 s
        for up in (*[False] * length, True):
            now += 6
            history = with_port_reading(history, up=up, words="", now=now)
            assert "port_drop" not in codes(history, now)


def test_the_first_value_of_a_counter_is_nobodys_fault_and_a_fall_begins_anew() -> None:
    counter = counted(None, 200, 0.0)
    assert risen(counter, 0.0, 3600) == 0
    counter = counted(counter, 3, 30.0)
    assert risen(counter, 30.0, 3600) == 0
    counter = counted(counter, 5, 60.0)
    assert risen(counter, 60.0, 3600) == 2
    assert risen(counter, 60.0 + 3600, 3600) == 0


def test_a_counter_keeps_little_however_long_it_is_read() -> None:
    counter: Counter | None = None
    for turn in range(5000):
        counter = counted(counter, turn, turn * 5.0)
    assert counter is not None
    assert len(counter.rises) <= 121
    assert 715 <= risen(counter, 4999 * 5.0, 3600) <= 726


def test_rules_of_the_counters() -> None:
    def evidence(name: str, *values: int, step: float = 30.0) -> list[tuple[str, str | None]]:
        counter: Counter | None = None
        for turn, value in enumerate(values):
            counter = counted(counter, value, turn * step)
        assert counter is not None
        now = (len(values) - 1) * step
        return [(item.code, item.subject) for item in counter_evidence("mlx5_0/1", {name: counter}, now)]

    assert evidence("link_downed", 4, 5) == [("counter_fatal", "mlx5_0/1 link_downed")]
    assert evidence("link_downed", 4, 4) == []
    assert evidence("link_downed", 255, 255) == [("counter_saturated", "mlx5_0/1 link_downed")]
    assert evidence("symbol_error", 0, 120) == []
    assert evidence("symbol_error", 0, 121) == [("counter_fatal", "mlx5_0/1 symbol_error")]
    assert evidence("link_error_recovery", 0, 5) == []
    assert evidence("link_error_recovery", 0, 6) == [("counter_degraded", "mlx5_0/1 link_error_recovery")]


TABLE = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:1 /var/lib/kubelet/x /etc/hosts ro,relatime - ext4 /dev/sda1 rw
31 22 8:17 / /scratch\040disk rw,relatime - xfs /dev/mapper/vg-scratch ro,attr2
32 22 0:50 / /home rw,relatime shared:9 - nfs4 filer.example:/export/home rw,vers=4.2
33 22 0:51 / /run/user/0 rw - tmpfs tmpfs rw
34 22 0:52 / /mnt/s3 rw - fuse.s3fs s3fs rw
this line makes no sense
35 22 0:53 / /sys rw"""


def test_the_table_of_mounts() -> None:
    mounts = {mount.point: mount for mount in parse_mounts(TABLE)}
    assert mounts["/scratch disk"].readonly
    assert not mounts["/etc/hosts"].readonly  # the place is read-only, the file system is not
    assert mounts["/home"].subject == "filer.example"
    assert mounts["/scratch disk"].subject == "vg-scratch"
    assert [mount.point for mount in file_systems(mounts.values())] == ["/", "/scratch disk", "/home"]


@pytest.mark.parametrize(
    ("point", "own"),
    [
        ("/var/lib/kubelet/pods/9f/volumes/kubernetes.io~nfs/home", False),
        ("/data/kubelet/plugins/kubernetes.io/csi/x/globalmount", False),
        ("/run/containerd/io.containerd.runtime.v2.task/k8s.io/a/rootfs", False),
        ("/run/media/somebody/stick", False),
        ("/var/lib/kubelet", True),  # a disk of its own
        ("/var/lib/containerd", True),
        ("/media", True),
    ],
)
def test_what_pods_and_people_mount_is_no_sign_of_the_node(point: str, own: bool) -> None:
    table = f"40 22 0:60 / {point} rw - nfs4 filer:/x rw".encode()
    assert [mount.point for mount in file_systems(parse_mounts(table))] == [point] * own


@given(st.binary(max_size=400))
def test_any_bytes_are_a_table_of_mounts(data: bytes) -> None:
    for table in (data, TABLE + data, data.join(TABLE.split(b" "))):
        file_systems(parse_mounts(table))


def test_a_disk_is_full_when_little_is_left_of_much() -> None:
    assert is_full(100_000_000_000, 400_000_000, 6_000_000, 5_000_000)
    assert not is_full(100_000_000_000, 600_000_000, 6_000_000, 5_000_000)
    assert not is_full(500_000_000, 1, 30_000, 29_000)  # a boot partition
    assert is_full(100_000_000_000, 50_000_000_000, 6_000_000, 10)
    assert not is_full(100_000_000_000, 50_000_000_000, 0, 0)  # btrfs counts no inodes


def test_error_counts_of_amd() -> None:
    assert parse_error_counts("ue: 2\nce: 17\nde: 1\n") == {"ue": 2, "ce": 17, "de": 1}
    assert parse_error_counts("ue: 0\nce: 0") == {"ue": 0, "ce": 0}
    assert parse_error_counts("Unsupported") is None
    assert not believable(1048560)


@given(st.text(max_size=200))
def test_any_text_is_an_error_count_or_none(text: str) -> None:
    parse_error_counts(text)


def test_width_of_a_link() -> None:
    assert full_width(8, 16, 16) == 16
    assert full_width(16, 16, 16) is None
    assert full_width(8, 16, 8) is None  # the slot is that narrow
    assert full_width(8, 16, None) == 16
    assert full_width(0, 255, None) is None  # virtual machines
    assert full_width(63, 63, 63) is None  # a device that is gone
    assert full_width(None, 16, 16) is None
