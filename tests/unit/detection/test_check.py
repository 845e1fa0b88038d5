"""`everstep check`: what is fit, what is not, and what could not be asked."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everstep.adapters.gpu.catalog_files import shipped_catalog
from everstep.adapters.gpu.kmsg import KernelLogFile
from everstep.apps.check import questions as questioning
from everstep.apps.check.__main__ import main
from everstep.apps.check.asking import Question, ask
from everstep.apps.check.performing import Report
from everstep.apps.check.questions import Rules, Sources, questions
from everstep.apps.cli import app
from everstep.core.boot_log import Boot, BootLog
from everstep.core.errors import InvalidInput, Unreachable
from everstep.core.health import Evidence, Gpu
from everstep.core.node_check import Answer, Fitness, finding, in_all
from everstep.ports import PartlyUnreachable

CATALOG = shipped_catalog()
BOOT = "3f0c2f6e-0000-4000-8000-000000000001"
GPUS = [
    {"index": index, "uuid": f"GPU-{index}", "serial": f"s{index}", "pci": f"0000:0{index + 1}:00"} for index in (0, 1)
]
XID_79 = "NVRM: Xid (PCI:0000:02:00): 79, pid=1, name=a, GPU has fallen off the bus."
HOUR = 3600.0


def log_of(folder: Path, *lines: str, age: float = HOUR, priority: int = 4) -> Path:
    """A kernel log in which the lines came ``age`` seconds ago, a second apart."""
    start = int((time.clock_gettime(time.CLOCK_MONOTONIC) - age) * 1e6)
    path = folder / "kmsg"
    records = [f"{priority},{number},{start + number * 1_000_000},-;{line}\n" for number, line in enumerate(lines)]
    path.write_text("".join(records))
    return path


def gpus_of(folder: Path, **second: object) -> Path:
    path = folder / "gpus.json"
    path.write_text(json.dumps({"boot_id": BOOT, "sampled_at": time.time(), "gpus": [GPUS[0], GPUS[1] | second]}))
    return path


def run(folder: Path, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["--json", "--kmsg", str(folder / "kmsg"), "--simulated-gpus", str(folder / "gpus.json"), *more])
    printed = capfd.readouterr().out
    return code, json.loads(printed) if printed else {}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questioning, "AGAIN_AFTER", 0.0)
    # This machine's own disks are no business of these tests.
    monkeypatch.setenv("EVERSTEP_WITHOUT_SOURCES", "disks,mounts,PCI Express,network ports")


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("nvidia 0000:01:00.0: enabling device (0000 -> 0002)",), 0),
        ((XID_79,), 1),
        (("NVRM: Xid (PCI:0000:02:00): 13, pid=1, name=a, Graphics Exception",), 0),  # a program's doing
        (("mlx5_core 0000:41:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count",), 1),
        (("NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",), 1),  # a companion that no other line explains
    ],
)
def test_what_the_kernel_said_in_this_boot(
    lines: tuple[str, ...], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_of(tmp_path, *lines), gpus_of(tmp_path)
    found, report = run(tmp_path, capfd)
    assert found == code, report
    assert report["fitness"] == ("unfit" if code else "fit")
    assert [item["source"] for item in report["sources"]] == ["kernel log", "GPUs"]
    assert report["sources"][1]["fitness"] == "fit"


RECOVERY = (
    "NVRM: Xid (PCI:0000:02:00): 154, pid=1, name=a, GPU recovery action changed from 0x{:x} (None) to 0x{:x} (None)"
)


def test_an_old_line_that_is_proven_over_does_not_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The driver asked for a reset and has had it: the lines stay until the next boot, the fault does not."""
    gpus_of(tmp_path)
    log_of(tmp_path, "NVRM: Xid (PCI:0000:02:00): 95, pid=1, name=a, Uncontained", RECOVERY.format(0, 1))
    assert run(tmp_path, capfd)[0] == 0
    gpus_of(tmp_path, recovery_action="reset")
    code, report = run(tmp_path, capfd)
    assert code == 1
    assert [item["fitness"] for item in report["sources"]] == ["unfit", "unfit"]
    # Without the driver's word there is no proof.
    assert run(tmp_path, capfd, "--source", "kernel-log")[0] == 1


def test_a_link_that_came_back_is_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gpus_of(tmp_path)
    down, up = "mlx5_core 0000:41:00.0 ib0: Link down", "mlx5_core 0000:41:00.0 ib0: Link up"
    log_of(tmp_path, down)
    standing = run(tmp_path, capfd)[1]["sources"][0]["faults"]
    assert [fault["code"] for fault in standing] == ["link_down"]
    log_of(tmp_path, down, up)
    assert run(tmp_path, capfd)[1]["sources"][0]["faults"] == []


def test_a_window_forgets_what_a_person_has_mended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log_of(tmp_path, XID_79, age=HOUR), gpus_of(tmp_path)
    assert run(tmp_path, capfd, "--window", "7200")[0] == 1
    assert run(tmp_path, capfd, "--window", "600")[0] == 0


def test_a_storm_is_one_fault_and_costs_little(tmp_path: Path) -> None:
    lines = [f"NVRM: Xid (PCI:0000:02:00): 95, pid={number % 7}, name=a, text" for number in range(20_000)]
    records = log_of(tmp_path, *lines).read_bytes().splitlines()
    log = BootLog(Boot(CATALOG, time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)))
    began = time.process_time()
    for first in range(0, len(records), 2000):
        log.take(records[first : first + 2000])
    (fault,) = log.standing(passed=True)
    assert time.process_time() - began < 2.0
    assert (fault.code, fault.count) == ("95", 20_000)
    assert "20000 records" in log.remark


def test_what_a_program_wrote_into_the_kernel_log_counts_only_where_it_may(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_of(tmp_path, XID_79, priority=12), gpus_of(tmp_path)
    assert run(tmp_path, capfd)[0] == 0
    code, report = run(tmp_path, capfd, "--allow-injected")
    assert code == 1
    assert report["sources"][0]["faults"][0]["injected"] is True


def test_a_lost_gpu_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log_of(tmp_path, "hello"), gpus_of(tmp_path, lost=True)
    code, report = run(tmp_path, capfd)
    assert (code, report["sources"][1]["fitness"]) == (1, "unfit")
    assert "(GPU 1)" in report["reason"]
    assert report["sources"][1]["faults"][0]["serial"] == "s1"


def test_what_cannot_be_asked_is_unknown_and_never_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gpus_of(tmp_path)
    code, report = run(tmp_path, capfd)
    assert (code, report["fitness"]) == (3, "unknown")
    assert "kernel log cannot be asked" in report["reason"]
    log_of(tmp_path, XID_79)
    (tmp_path / "gpus.json").unlink()
    assert run(tmp_path, capfd)[0] == 1  # a fault that is certain counts, whatever else is not known


def test_a_check_that_cannot_be_made_is_unknown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log_of(tmp_path, "hello"), gpus_of(tmp_path)
    site = tmp_path / "site.csv"
    site.write_text("kind,code,action\nxid,79,explode\n")
    assert main(["--kmsg", str(tmp_path / "kmsg"), "--site-faults", str(site)]) == 3
    assert "site.csv row 2: 'explode'" in capfd.readouterr().err
    assert main(["--source", "tea leaves"]) == 3
    assert "it has kernel log, GPUs" in capfd.readouterr().err


def test_the_table_and_the_command(tmp_path: Path) -> None:
    log_of(tmp_path, XID_79), gpus_of(tmp_path)
    arguments = ["check", "--kmsg", str(tmp_path / "kmsg"), "--simulated-gpus", str(tmp_path / "gpus.json")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 1
    assert "kernel log" in result.stdout
    assert "unfit: XID 79: GPU fell off the bus (GPU 1)" in result.stdout


# --- sources that hang, crash and change their mind -------------------------------------------------------------------
class Source:
    period = 1.0

    def __init__(self, name: str, *readings: Callable[[], Awaitable[Sequence[Evidence]]]) -> None:
        self.name = name
        self._readings = list(readings)

    async def read(self) -> Sequence[Evidence]:
        return await self._readings.pop(0)()


class Driver:
    async def gpus(self) -> Sequence[Gpu]:
        return [Gpu(0, "GPU-0", "s0", "0000:01:00")]


async def well() -> Sequence[Evidence]:
    return []


async def broken() -> Sequence[Evidence]:
    return [Evidence("host", "gpu_remap_failed", subject="GPU0")]


async def tells_in_part() -> Sequence[Evidence]:
    raise PartlyUnreachable("GPU 1 does not answer", await broken())


async def asks_in_part() -> Sequence[Evidence]:
    raise PartlyUnreachable("GPU 1 does not answer", [])


async def hangs() -> Sequence[Evidence]:
    await asyncio.Event().wait()
    return []


async def hangs_in_the_kernel() -> Sequence[Evidence]:
    time.sleep(60)
    return []


async def dies() -> Sequence[Evidence]:
    os._exit(1)


async def fails() -> Sequence[Evidence]:
    raise RuntimeError("a mistake of ours")


async def refuses() -> Sequence[Evidence]:
    raise Unreachable("no such device")


def asked(tmp_path: Path, *sources: Source, deadline: float = 5.0) -> Report:
    parts = Sources(KernelLogFile(log_of(tmp_path, "hello")), Driver(), sources)
    answers = ask(questions(parts, Rules(CATALOG, patience=deadline / 2)), deadline)
    findings = tuple(finding(answer) for answer in answers)
    return Report(in_all(findings), findings)


@pytest.mark.parametrize("hang", [hangs, hangs_in_the_kernel])
def test_a_source_that_hangs_costs_the_deadline_and_no_other_answer(
    hang: Callable[[], Awaitable[Sequence[Evidence]]], tmp_path: Path
) -> None:
    began = time.monotonic()
    report = asked(tmp_path, Source("disk", hang), Source("net", well), deadline=1.5)
    assert time.monotonic() - began < 4.0
    assert {item.source: item.fitness for item in report.sources} == {
        "kernel log": "fit", "GPUs": "fit", "disk": "unknown", "net": "fit",
    }  # fmt: skip
    assert report.exit_code == 3
    assert "disk cannot be asked: no answer within 1.5 s" in report.node.reason


@pytest.mark.parametrize(
    ("bad", "why"), [(fails, "a mistake of ours"), (refuses, "no such device"), (dies, "without a word")]
)
def test_a_source_that_breaks_is_unknown(
    bad: Callable[[], Awaitable[Sequence[Evidence]]], why: str, tmp_path: Path
) -> None:
    report = asked(tmp_path, Source("disk", bad))
    assert report.exit_code == 3
    assert why in report.node.reason


def test_a_check_that_is_killed_leaves_nobody_behind() -> None:
    code = """
import asyncio, os
from everstep.apps.check.asking import Question, ask
async def hangs():
    print(os.getpid(), flush=True)
    await asyncio.Event().wait()
ask({"disk": Question(hangs)}, 60.0)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as check:
        assert check.stdout is not None
        child = int(check.stdout.readline())
        check.kill()
    give_up = time.monotonic() + 10.0
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < give_up, "the process that asks lives on"
        time.sleep(0.01)


class Both:
    """An inventory that is a source of states too, as NVML is: it lives in one event loop, and is closed once."""

    name, period = "NVML", 1.0

    def __init__(self, note: Path) -> None:
        self._note = note

    async def gpus(self) -> Sequence[Gpu]:
        await self._says("asked")
        return await Driver().gpus()

    async def read(self) -> Sequence[Evidence]:
        await self._says("asked")
        return []

    async def close(self) -> None:
        await self._says("closed")

    async def _says(self, what: str) -> None:
        with self._note.open("a") as note:
            note.write(f"{what} {id(asyncio.get_running_loop())}\n")


def test_what_is_asked_twice_is_asked_in_one_event_loop(tmp_path: Path) -> None:
    both = Both(tmp_path / "note")
    parts = Sources(KernelLogFile(log_of(tmp_path, "hello")), both, (both,))
    asked = dict(questions(parts, Rules(CATALOG, patience=2.0)))
    late = Question(lambda: asyncio.sleep(0.5, Answer("late")))  # so that nobody is killed before it has closed
    assert [answer.problem for answer in ask({**asked, "late": late}, 5.0)] == [None] * 4
    lines = [line.split() for line in (tmp_path / "note").read_text().splitlines()]
    assert [what for what, _ in lines] == ["asked", "asked", "closed"]
    assert len({loop for _, loop in lines}) == 1


def test_one_reading_alone_accuses_nobody(tmp_path: Path) -> None:
    assert asked(tmp_path, Source("NVML", broken, well)).exit_code == 0
    assert asked(tmp_path, Source("NVML", broken, broken)).exit_code == 1
    assert asked(tmp_path, Source("NVML", broken, refuses)).exit_code == 3


def test_a_source_that_answers_in_part_counts_for_that_part(tmp_path: Path) -> None:
    assert asked(tmp_path, Source("NVML", tells_in_part, tells_in_part)).exit_code == 1
    assert asked(tmp_path, Source("NVML", asks_in_part)).exit_code == 3


def test_nothing_asked_is_not_fit() -> None:
    assert in_all([]).fitness is Fitness.UNKNOWN
    assert in_all([finding(Answer("disk"))]).fitness is Fitness.FIT


def test_the_machines_own_sources_are_asked_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_WITHOUT_SOURCES", "PCI Express, network ports")
    log_of(tmp_path, "hello"), gpus_of(tmp_path)
    _, report = run(tmp_path, capfd, "--host-root", str(tmp_path))  # where there is no /proc at all
    assert [item["source"] for item in report["sources"]] == ["kernel log", "GPUs", "disks", "mounts"]
    assert report["sources"][3]["fitness"] == "unknown"
    monkeypatch.setenv("EVERSTEP_WITHOUT_SOURCES", "tea leaves")
    assert main(["--json"]) == 3
    assert "'tea leaves' is no source" in capfd.readouterr().err


def test_names_of_sources(tmp_path: Path) -> None:
    parts = Sources(KernelLogFile(log_of(tmp_path, "hello")), Driver(), (Source("NVML", well),))
    assert list(questions(parts, Rules(CATALOG), ["nvml", "Kernel-Log"])) == ["kernel log", "NVML"]
    with pytest.raises(InvalidInput, match="'dcgm' on this node; it has kernel log, GPUs, NVML"):
        questions(parts, Rules(CATALOG), ["dcgm"])


def test_a_prolog_pays_for_light_imports_only() -> None:
    heavy = "{'typer', 'rich', 'lightkube', 'httpx2', 'structlog', 'starlette'}"
    code = f"import sys, everstep.apps.check.__main__; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_a_table_of_faults_that_hangs_costs_the_deadline_and_is_unknown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log_of(tmp_path, "hello")
    gpus_of(tmp_path)
    table = tmp_path / "site.csv"
    os.mkfifo(table)  # as a file on a dead file server: opening it does not come back
    began = time.monotonic()
    here = ["--kmsg", str(tmp_path / "kmsg"), "--simulated-gpus", str(tmp_path / "gpus.json")]
    code = main([*here, "--deadline", "0.3", "--site-faults", str(table)])
    assert time.monotonic() - began < 5.0
    assert code == 3
    assert f"reading a file hangs, perhaps {table}" in capfd.readouterr().err
    os.close(os.open(table, os.O_RDWR | os.O_NONBLOCK))  # lets the reader go


def test_what_a_source_says_moves_no_cursor_of_the_reader() -> None:
    assert finding(Answer("disks", problem="\x1b[2J\x1b]0;fit\x07/mnt\nnode: fit")).reason == (
        "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}]0;fit\N{REPLACEMENT CHARACTER}/mnt node: fit"
    )
    assert len(in_all([finding(Answer(f"{n}", problem="x" * 900)) for n in range(99)]).reason) <= 4000


@pytest.mark.parametrize("command", [("-m", "everstep.apps.check"), ("-m", "everstep.apps.cli", "check")])
@pytest.mark.parametrize("output", ["> /dev/full", ">&-", "| true"])
def test_what_was_found_stands_though_it_cannot_be_printed(command: Sequence[str], output: str, tmp_path: Path) -> None:
    log_of(tmp_path, XID_79)
    check = [sys.executable, *command, "--source", "kernel-log", "--kmsg", str(tmp_path / "kmsg")]
    line = f"set -o pipefail; {shlex.join(check)} {output}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
