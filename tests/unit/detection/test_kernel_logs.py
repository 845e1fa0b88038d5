"""Reading the kernel log: a file that grows, is replaced or cut; the device, with records lost."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everstep.adapters.gpu import file_events
from everstep.adapters.gpu.kmsg import DeviceLog, FileLog, open_kernel_log
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.kmsg_record import parse_record
from everstep.ports import Batch


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


async def first(read: Callable[[], Awaitable[Batch]], within: float = 5.0) -> list[bytes]:
    async with asyncio.timeout(within):
        return list((await read()).records)


def test_a_file_is_read_from_its_start_and_then_followed(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("5,0,1,-;one\n5,1,2,-;two\n")

    async def scenario() -> None:
        log = FileLog(path)
        assert await first(log.read) == [b"5,0,1,-;one", b"5,1,2,-;two"]
        waiting = asyncio.create_task(first(log.read))
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        append(path, "5,2,3,-;three\n")
        assert await waiting == [b"5,2,3,-;three"]
        assert time.perf_counter() - began < 0.5  # woken by the write, not by the look after replacement
        log.close()

    asyncio.run(scenario())


def test_half_a_record_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("5,0,1,-;on")

    async def scenario() -> None:
        log = FileLog(path)
        assert log.available().records == []
        append(path, "e\n5,1")
        assert await first(log.read) == [b"5,0,1,-;one"]
        log.close()

    asyncio.run(scenario())


def test_without_inotify_the_file_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    monkeypatch.setattr(file_events, "_inotify", lambda _: None)

    async def scenario() -> None:
        log = FileLog(path)
        waiting = asyncio.create_task(first(log.read))
        await asyncio.sleep(0.01)
        append(path, "5,0,1,-;one\n")
        assert await waiting == [b"5,0,1,-;one"]
        log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("harm", ["replaced", "removed", "cut"])
def test_a_file_that_is_no_longer_the_log_is_unreachable(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "kmsg"
    path.write_text("5,0,1,-;one\n")

    async def scenario() -> None:
        log = FileLog(path)
        await first(log.read)
        waiting = asyncio.create_task(first(log.read))
        await asyncio.sleep(0.01)
        if harm == "replaced":
            (tmp_path / "new").write_text("5,0,1,-;boot\n")
            (tmp_path / "new").replace(path)
        elif harm == "removed":
            path.unlink()
        else:
            path.write_text("")
        with pytest.raises(Unreachable):
            await waiting
        log.close()

    asyncio.run(scenario())


def test_a_line_without_end_takes_no_memory_without_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("x" * 1_000_000)

    async def scenario() -> None:
        log = FileLog(path)
        for _ in range(8):
            log.available()
        append(path, "\n5,7,1,-;after\n")
        assert b"5,7,1,-;after" in await first(log.read)
        log.close()

    asyncio.run(scenario())


def test_rubbish_hides_nothing_that_follows_and_its_end_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    fault = b"4,7,1,-;NVRM: Xid (PCI:0000:02:00): 79, pid=1, name=a, text"
    path.write_bytes(b"\0" * 1_000_000 + fault + b"\n" + b"\n" * 1_000_000 + fault + b"\n")

    async def scenario() -> None:
        log = FileLog(path)
        assert list(log.available().records) == [fault], "an empty batch would say that all is read"
        assert not log.available().records
        log.close()

    asyncio.run(scenario())


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="cannot open"):
        open_kernel_log(tmp_path / "missing")
    with pytest.raises(InvalidInput, match="neither a device nor a file"):
        open_kernel_log(tmp_path)


class ScriptedDevice:
    """Stands for os.read on /dev/kmsg, which gives one record or one error a call."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers = list(answers)

    def __call__(self, fd: int, size: int) -> bytes:
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "nothing more")
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *answers: bytes | int) -> DeviceLog:
    path = tmp_path / "device"
    path.touch()
    log = DeviceLog(path)
    monkeypatch.setattr("everstep.adapters.gpu.kmsg.os.read", ScriptedDevice(*answers))
    return log


def test_overwritten_records_are_counted_and_reading_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = scripted(monkeypatch, tmp_path, b"6,5,1,-;a\n", errno.EPIPE, b"6,9,1,-;b\n", b"6,10,1,-;c\n")
    batch = log.available()
    assert len(batch.records) == 3
    assert batch.lost == 3  # 6, 7 and 8


def test_a_record_that_makes_no_sense_does_not_end_the_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = scripted(monkeypatch, tmp_path, b"6,5,1,-;a\n", b"\xff\x00garbage", b"6,6,1,-;b\n")
    assert len(log.available().records) == 3


def test_a_broken_device_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="broke off"):
        scripted(monkeypatch, tmp_path, errno.EIO).available()
    with pytest.raises(Unreachable, match="ended"):
        scripted(monkeypatch, tmp_path, b"").available()


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="only root on a machine with /dev/kmsg may read and write it"
)
def test_the_real_device_tells_user_space_from_the_kernel() -> None:
    mark = f"everstep test {time.time_ns()}"
    with open("/dev/kmsg", "wb", buffering=0) as device:
        device.write(f"<3>{mark}\n".encode())

    async def scenario() -> None:
        log = DeviceLog(Path("/dev/kmsg"))
        async with asyncio.timeout(10):
            while True:
                for data in (await log.read()).records:
                    record = parse_record(data)
                    assert record is not None
                    if mark.encode() in record.text:
                        assert not record.from_kernel
                        log.close()
                        return

    asyncio.run(scenario())
