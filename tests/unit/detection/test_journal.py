"""The kernel log by way of the journal: entries as records, the child that prints them, and a real journald."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everstep.adapters.node import journal
from everstep.adapters.node.journal import Journal, JournalLog, read_entry
from everstep.core.errors import Unreachable
from everstep.core.journal_record import JournalEntry, Numbering, as_record
from everstep.core.kernel_lines.parser import parse_line
from everstep.core.kmsg_record import parse_record

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus."
# As journalctl 252 prints it.
ENTRY = {
    "__CURSOR": "s=9783;i=c8f;b=368c;m=2fba1ee12;t=6616f79a965ed;x=97b9",
    "__REALTIME_TIMESTAMP": "1795981270672877",
    "__MONOTONIC_TIMESTAMP": "12811628050",
    "_BOOT_ID": "368c1035da9e459b8e8fb394947bf89a",
    "_TRANSPORT": "kernel",
    "_SOURCE_MONOTONIC_TIMESTAMP": "12811625418",
    "PRIORITY": "3",
    "SYSLOG_FACILITY": "0",
    "SYSLOG_IDENTIFIER": "kernel",
    "MESSAGE": XID,
}


def printed(**changes: object) -> bytes:
    return json.dumps(ENTRY | changes).encode()


def record(**changes: object) -> bytes:
    found = read_entry(printed(**changes))
    assert found is not None
    assert isinstance(found[1], JournalEntry)
    return as_record(found[1], 7)


def test_an_entry_is_the_record_that_the_kernel_would_give() -> None:
    assert record() == f"3,7,12811625418,-;{XID}".encode()
    evidence = parse_line(record())
    assert evidence is not None
    assert (evidence.code, evidence.injected) == ("79", False)


def test_what_a_program_wrote_keeps_its_facility_and_gets_its_name_back() -> None:
    """journald cuts a name off the front, so `NVRM:` would be gone; and what programs write is never the kernel's."""
    data = record(SYSLOG_FACILITY="1", SYSLOG_IDENTIFIER="NVRM", MESSAGE=XID.removeprefix("NVRM: "))
    assert data == f"11,7,12811625418,-;{XID}".encode()
    assert parse_line(data) is None
    assert record(SYSLOG_FACILITY="3", SYSLOG_IDENTIFIER="cron", SYSLOG_PID="12", MESSAGE="x").endswith(b";cron[12]: x")


def test_bytes_that_are_no_text() -> None:
    found = parse_record(record(MESSAGE=list(b"a\\b\n\xffc")))
    assert found is not None
    assert found.text == b"a\\b\n\xffc"
    assert record(MESSAGE=None).endswith(b"-;")


def test_an_entry_of_an_old_journal_without_the_kernels_time() -> None:
    found = read_entry(printed(_SOURCE_MONOTONIC_TIMESTAMP=None))
    assert found is not None
    assert isinstance(found[1], JournalEntry)
    assert found[1].microseconds == 12811628050


@given(st.binary(max_size=300))
def test_any_bytes_are_an_entry_or_none(data: bytes) -> None:
    read_entry(data)
    read_entry(printed()[:100] + data)


@example("_SOURCE_MONOTONIC_TIMESTAMP", 1e20)
@example("MESSAGE", 1 << 40)  # not a wish for so many bytes
@given(
    st.sampled_from(sorted(ENTRY)),
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5),
)
def test_any_value_in_any_field_is_an_entry_or_none(name: str, value: object) -> None:
    found = read_entry(printed(**{name: value}))
    if found is not None and isinstance(found[1], JournalEntry):
        assert parse_record(as_record(found[1], 1)) is not None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 59))
def test_numbers_rise_and_are_the_same_wherever_the_files_begin(times: list[int], cut: int) -> None:
    def numbers(times: list[int]) -> list[int]:
        count, found = Numbering(), []
        for microseconds in times:
            count = count.after(microseconds)
            found.append(count.sequence)
        return found

    whole = numbers(times)
    assert whole == sorted(set(whole))
    ordered = sorted(times)
    whole = numbers(ordered)
    first = next((index for index in range(cut, len(ordered)) if index and ordered[index] > ordered[index - 1]), None)
    if first is not None:
        assert numbers(ordered[first:]) == whole[first:]


def fake(tmp_path: Path, script: str, name: str = "journalctl") -> Journal:
    """A journalctl that is the body of a shell script; ``$mode`` is read, follow or look."""
    path = tmp_path / name
    head = 'mode=read; for word in "$@"; do case $word in --follow) mode=follow;; _UID=0) mode=look;; esac; done'
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{head}\n{textwrap.dedent(script)}\n')
    path.chmod(0o755)
    return Journal("368c1035-da9e-459b-8e8f-b394947bf89a", command=str(path))


def entries(path: Path, *texts: str, first: int = 0) -> Path:
    lines = [
        printed(MESSAGE=text, __CURSOR=f"c{number}", _SOURCE_MONOTONIC_TIMESTAMP=str(1000 + number))
        for number, text in enumerate(texts, first)
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


async def texts(log: JournalLog, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [data.partition(b";")[2] for data in (await log.read()).records]
    return found


def test_what_is_there_comes_first_and_then_what_follows_its_last_entry(tmp_path: Path) -> None:
    entries(tmp_path / "old", "one", "two")
    entries(tmp_path / "new", "three", first=2)
    source = fake(
        tmp_path, f"case $mode in read) cat {tmp_path}/old;; follow) cat {tmp_path}/new; exec sleep 60;; esac"
    )

    async def scenario() -> None:
        log = await source.open()
        assert isinstance(log, JournalLog)
        there = [data.partition(b";")[2] for data in log.available().records]
        assert there[:2] == [b"one", b"two"]  # without any waiting
        assert there[2:] + await texts(log, 3 - len(there)) == [b"three"]
        assert log.available().records == []
        log.close()

    asyncio.run(scenario())
    read, follow = (tmp_path / "calls").read_text().splitlines()
    assert "--after-cursor" not in read
    boot = "_BOOT_ID=368c1035da9e459b8e8fb394947bf89a"
    assert f"--follow --no-tail --after-cursor=c1 {boot} _TRANSPORT=kernel" in follow
    assert read.endswith(f"{boot} _TRANSPORT=kernel + {boot} _TRANSPORT=driver MESSAGE_ID={journal._MISSED_ID}")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'No journal files were opened' >&2; exit 1", "failed with 1: No journal files were opened"),
        ("exit 0", "it may not read the journal"),
        ("echo garbage", "it may not read the journal"),
    ],
)
def test_a_journal_that_cannot_be_read(tmp_path: Path, script: str, complaint: str) -> None:
    with pytest.raises(Unreachable, match=complaint):
        asyncio.run(fake(tmp_path, script).open())


def test_closing_ends_the_child(tmp_path: Path) -> None:
    entries(tmp_path / "old", "one")
    os.mkfifo(tmp_path / "endless")  # a reader waits for a writer, for ever
    source = fake(tmp_path, f"[ $mode = read ] && exec cat {tmp_path}/old; exec cat {tmp_path}/endless")

    def running() -> list[str]:
        commands = Path("/proc").glob("[0-9]*/cmdline")
        return [text for path in commands if path.exists() and str(tmp_path) in (text := path.read_text())]

    async def scenario() -> None:
        log = await source.open()
        assert running()
        log.close()
        async with asyncio.timeout(10):
            while running():
                await asyncio.sleep(0.005)

    asyncio.run(scenario())


def test_a_journalctl_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_CATCH_UP", 0.1)
    with pytest.raises(Unreachable, match="did not come to its end"):
        asyncio.run(fake(tmp_path, "exec sleep 60").open())


def test_there_is_no_journalctl(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="cannot run"):
        asyncio.run(Journal("b", command=str(tmp_path / "missing")).open())


def test_a_journal_without_a_word_of_the_kernel_is_read_if_the_systems_entries_show(tmp_path: Path) -> None:
    entries(tmp_path / "system", "started")
    source = fake(tmp_path, f"[ $mode = look ] && cat {tmp_path}/system; [ $mode = follow ] && exec sleep 60; exit 0")

    async def scenario() -> None:
        log = await source.open()
        assert log.available().records == []
        log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("script", "complaint"), [("exit 0", "ended"), ("echo bad >&2; exit 3", "with 3: bad")])
def test_a_child_that_ends_is_a_broken_log_after_its_last_record(tmp_path: Path, script: str, complaint: str) -> None:
    entries(tmp_path / "old", "one")
    entries(tmp_path / "new", "two", first=1)
    source = fake(tmp_path, f"cat {tmp_path}/old; [ $mode = read ] && exit 0; cat {tmp_path}/new; {script}")

    async def scenario() -> None:
        log = await source.open()
        assert isinstance(log, JournalLog)
        assert await texts(log, 3) == [b"one", b"one", b"two"]
        with pytest.raises(Unreachable, match=complaint):
            async with asyncio.timeout(10):
                await log.read()

    asyncio.run(scenario())


def test_a_long_journal_takes_little_memory_and_says_what_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_HELD", 10_000)
    entries(tmp_path / "old", *["x" * 1000] * 50)
    source = fake(tmp_path, f"[ $mode = read ] && exec cat {tmp_path}/old; exec sleep 60")

    async def scenario() -> None:
        log = await source.open()
        batch = log.available()
        assert len(batch.records) + batch.lost == 50
        assert len(batch.records) == 9
        log.close()

    asyncio.run(scenario())


def test_what_journald_itself_missed_is_counted_as_lost(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(
        printed(_TRANSPORT="driver", MESSAGE="Missed 52 kernel messages", SYSLOG_FACILITY="3") + b"\n"
    )
    entries(tmp_path / "new", "one")
    os.mkfifo(tmp_path / "gate")
    source = fake(
        tmp_path,
        f"[ $mode = read ] && exec cat {tmp_path}/old; cat {tmp_path}/gate; cat {tmp_path}/new; exec sleep 60",
    )

    async def scenario() -> None:
        log = await source.open()
        assert log.available().records == []
        (tmp_path / "gate").write_text("")
        async with asyncio.timeout(10):
            batch = await log.read()
        assert (len(batch.records), batch.lost) == (1, 52)
        log.close()

    asyncio.run(scenario())


def test_a_reader_that_is_slow_loses_nothing_of_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_HELD", 2 << 20)
    entries(tmp_path / "new", *["x" * 1000] * 8000)
    entries(tmp_path / "system", "started")
    script = (
        f"[ $mode = look ] && cat {tmp_path}/system; [ $mode = follow ] || exit 0; cat {tmp_path}/new; exec sleep 60"
    )

    async def scenario() -> None:
        log = await fake(tmp_path, script).open()
        assert isinstance(log, JournalLog)
        assert len(await texts(log, 8000)) == 8000
        assert log.available().lost == 0
        log.close()

    asyncio.run(scenario())


JOURNALD = "/lib/systemd/systemd-journald"
REAL = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from everstep.adapters.node.journal import Journal

mark = sys.argv[1]

def say(text):
    with open("/dev/kmsg", "wb", buffering=0) as device:
        device.write(f"<3>{mark} {text}\\n".encode())

async def marked(log, count):
    found = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [data for data in (await log.read()).records if mark.encode() in data]
    return found

async def scenario(journald):
    boot = open("/proc/sys/kernel/random/boot_id").read().strip()
    while True:
        try:
            log = await Journal(boot).open()
            break
        except Exception:
            if journald.poll() is not None:
                raise
            await asyncio.sleep(0.05)
    say("before")
    seen = await marked(log, 1)
    os.kill(journald.pid, signal.SIGUSR2)  # rotate
    await asyncio.sleep(0.3)
    say("after")
    seen += await marked(log, 1)
    log.close()
    again = await Journal(boot, Path("/run/log/journal")).open()  # as an agent in a container names it
    repeated = await marked(again, 2)
    again.close()
    assert repeated == seen, (repeated, seen)
    print(b"\\n".join(seen).decode())

journald = subprocess.Popen(["/lib/systemd/systemd-journald"])
try:
    asyncio.run(scenario(journald))
finally:
    journald.terminate()
    journald.wait()
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists(JOURNALD) or shutil.which("journalctl") is None,
    reason="a journald of its own needs root and systemd's files on this machine",
)
def test_a_real_journald_that_rotates_neither_repeats_nor_hides(tmp_path: Path) -> None:
    script = tmp_path / "scenario.py"
    script.write_text(REAL)
    mark = f"everstep-{time.time_ns()}"
    steps = [
        "mount -t tmpfs tmpfs /run",
        "mount -t tmpfs tmpfs /var/log",
        "printf '0123456789abcdef0123456789abcdef\\n' > /run/machine-id",
        "mount --bind /run/machine-id /etc/machine-id",
        "mkdir -p /run/systemd/journal /run/log/journal/0123456789abcdef0123456789abcdef",
        'exec "$@"',
    ]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", "; ".join(steps), "sh", sys.executable, str(script), mark],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(";")[2] for line in lines] == [f"{mark} before", f"{mark} after"]
    assert all(line.startswith("11,") for line in lines)  # a program wrote it, and the record says so
