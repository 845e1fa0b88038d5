"""File systems that cannot be written, do not answer, are not there or are full."""

from __future__ import annotations

import errno
import os
import threading
import time as clock
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstep.adapters.node import mounts as module
from everstep.adapters.node.mounts import Mounts
from everstep.ports import PartlyUnreachable

from .tree import Time, Tree, shown

DISK = "22 1 8:1 / / {0},relatime - ext4 /dev/sda1 {1}\n"
NFS = "32 22 0:50 / /home rw,relatime - nfs4 filer:/export/home rw\n"


def answer(size: int = 100, left: int = 50, files: int = 1_000_000) -> os.statvfs_result:
    gigabyte = 1_000_000_000 // 4096
    return os.statvfs_result((4096, 4096, size * gigabyte, left, left * gigabyte, files, files, files, 0, 255))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def table(tree: Tree, *lines: str) -> None:
    tree.put("proc/self/mountinfo", "".join(lines))


def hosts(tree: Tree, *lines: str) -> None:
    """The table of the host's first process, as a root process in the host's pid namespace sees it."""
    tree.folder("proc/1/root")
    tree.put("proc/1/mountinfo", "".join(lines))
    tree.folder("proc/self/ns")
    if not (tree.root / "proc/self/ns/pid").is_symlink():
        (tree.root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")


def looking(tree: Tree, ask: Callable[[Path], os.statvfs_result] | None = None, **options: object) -> Mounts:
    return Mounts(tree.root, clock=Time(), ask=ask or (lambda path: answer()), **options)  # type: ignore[arg-type]


def test_a_disk_that_turned_read_only(tree: Tree) -> None:
    source = looking(tree)
    table(tree, DISK.format("rw", "rw,errors=remount-ro"), NFS)
    assert shown(source.look()) == []
    table(tree, DISK.format("ro", "ro,errors=remount-ro"), NFS)
    assert shown(source.look()) == [("mount_readonly", "sda1")]
    assert shown(looking(tree).look()) == []  # it may be meant to be so
    assert shown(looking(tree, known=["sda1"]).look()) == [("mount_readonly", "sda1")]


def test_ext4_says_whether_errors_did_it(tree: Tree) -> None:
    tree.link("sys/dev/block/8:1", "sys/devices/block/sda/sda1")
    tree.folder("sys/devices/block/sda/sda1")
    tree.put("sys/fs/ext4/sda1/errors_count", 0)
    source = looking(tree)
    table(tree, DISK.format("rw", "rw"))
    source.look()
    table(tree, DISK.format("ro", "ro"))
    assert shown(source.look()) == []  # remounted by hand
    tree.put("sys/fs/ext4/sda1/errors_count", 4)
    assert shown(looking(tree).look()) == [("mount_readonly", "sda1")]  # though nobody saw it writable


def test_a_place_that_is_read_only_on_a_disk_that_is_not(tree: Tree) -> None:
    table(tree, DISK.format("ro", "rw"))
    source = looking(tree)
    source.look()
    assert shown(source.look()) == []


def test_a_mount_that_must_be_there(tree: Tree) -> None:
    hosts(tree, DISK.format("rw", "rw"))
    time = Time()
    source = Mounts(tree.root, ["/home"], clock=time, ask=lambda path: answer())
    assert shown(source.look()) == []
    time.now += 60
    assert shown(source.look()) == [("mount_missing", "/home")]
    hosts(tree, DISK.format("rw", "rw"), NFS)
    assert shown(source.look()) == []


def test_a_mount_that_must_be_there_may_come_late_at_boot(tree: Tree) -> None:
    hosts(tree, DISK.format("rw", "rw"))
    time = Time(10.0)
    source = Mounts(tree.root, ["/home"], clock=time, ask=lambda path: answer())
    source.look()
    time.now += 500
    assert shown(source.look()) == []


def test_a_first_process_that_may_not_be_looked_into_shows_at_least_whether_its_mounts_are_ours(tree: Tree) -> None:
    hosts(tree, DISK.format("rw", "rw"))
    (tree.root / "proc/1/root").rmdir()
    table(tree, DISK.format("rw", "rw"))
    time = Time()
    source = Mounts(tree.root, ["/home"], clock=time, ask=lambda path: answer())
    source.look()
    time.now += 60
    assert shown(source.look()) == [("mount_missing", "/home")]
    table(tree, DISK.format("rw", "rw").replace("22 1", "99 98"))  # another namespace's
    with pytest.raises(PartlyUnreachable, match="run it as root"):
        source.look()


def test_in_a_container_nobody_can_tell_what_the_host_has_mounted(tree: Tree) -> None:
    table(tree, DISK.format("rw", "rw"))
    for _ in range(2):
        with pytest.raises(PartlyUnreachable, match="hostPID"):
            Mounts(tree.root, ["/home"], clock=Time(), ask=lambda path: answer(left=0)).look()
    hosts(tree, DISK.format("rw", "rw"))
    (tree.root / "proc/self/ns/pid").unlink()
    (tree.root / "proc/self/ns/pid").symlink_to("pid:[4026532200]")
    with pytest.raises(PartlyUnreachable, match="hostPID") as caught:
        Mounts(tree.root, ["/home"], clock=Time(), ask=lambda path: answer(left=0)).look()
    assert shown(caught.value.evidence) == [("disk_full", "sda1")]


def test_a_disk_that_is_nearly_full(tree: Tree) -> None:
    table(tree, DISK.format("rw", "rw"), NFS)
    assert shown(looking(tree, lambda path: answer(left=0)).look()) == [("disk_full", "sda1")]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_mount_that_answers_with_errors(tree: Tree, code: int) -> None:
    table(tree, NFS)

    def fails(path: Path) -> os.statvfs_result:
        raise OSError(code, os.strerror(code))

    assert shown(looking(tree, fails).look()) == [("mount_failed", "filer")]


def test_a_mount_that_went_away_meanwhile_is_nothing_and_one_that_may_not_be_seen_is_not_well(tree: Tree) -> None:
    table(tree, NFS)

    def missing(path: Path) -> os.statvfs_result:
        raise FileNotFoundError(errno.ENOENT, "no such file")

    def closed(path: Path) -> os.statvfs_result:
        raise PermissionError(errno.EACCES, "permission denied")

    assert shown(looking(tree, missing).look()) == []
    with pytest.raises(PermissionError):
        looking(tree, closed).look()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set it, and the file server answers."""
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    released = threading.Event()
    yield released
    released.set()


def test_a_mount_that_hangs(tree: Tree, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tree, DISK.format("rw", "rw"), NFS)
    asked: list[Path] = []

    def hangs(path: Path) -> os.statvfs_result:
        asked.append(path)
        if path.name == "home":
            stuck.wait()
        return answer(left=0)

    source = looking(tree, hangs)
    with pytest.raises(PartlyUnreachable, match="/home: no answer yet") as caught:
        source.look()
    assert shown(caught.value.evidence) == [("disk_full", "sda1")]  # one that hangs hides no other
    began = clock.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: began + 61)
    assert shown(source.look()) == [("disk_full", "sda1"), ("mount_hangs", "filer")]
    assert [path.name for path in asked].count("home") == 1  # and holds one thread, not one for each look
    monkeypatch.undo()
    stuck.set()
    while any(thread.name == "statvfs /home" for thread in threading.enumerate()):
        clock.sleep(0.001)
    assert shown(source.look()) == [("disk_full", "sda1")]
