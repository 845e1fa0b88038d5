"""Questions to NVML that never come back, and processes that die: the agent goes on, and says so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.adapters.gpu.nvml import Nvml
from everstep.adapters.gpu.nvml_process import Child, Hung, Patience
from everstep.core.errors import Unreachable
from everstep.lab.hardware.gpu_states import GpuState
from tests.contract.nvml.conftest import SHORT, Driver
from tests.contract.nvml.test_what_nvml_says import codes


def child_of(pid: int) -> int:
    """The one child of a process; 0 while it has none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(check: Callable[[], object], seconds: float = 10.0) -> None:
    give_up = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.01)


async def read_until(nvml: Nvml, *wanted: str) -> None:
    """A busy machine may be late for the short deadlines, too; then it is asked again."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Unreachable):
                if codes(await nvml.read()) == list(wanted):
                    return
            await asyncio.sleep(0.02)


def test_a_hang_is_unknown_once_a_fault_twice_and_over_when_nvml_answers(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml(patience=SHORT) as nvml:
            driver.take(GpuState.REMAP_FAILED, index=1)
            await read_until(nvml, "host:gpu_remap_failed")
            driver.take(GpuState.HANG)
            with pytest.raises(Hung, match="no answer within"):
                await nvml.read()
            # what it said before still stands: a hang is no proof that it is over
            assert codes(await nvml.read()) == ["host:gpu_remap_failed", "host:gpu_query_hang"]
            async with asyncio.timeout(1.9):  # it is known to hang, so nobody waits for it again
                with pytest.raises(Hung, match="NVML: no answer to 2 questions in a row"):
                    await nvml.gpus()
            assert nvml.restarts >= 1
            driver.take(GpuState.WELL)
            driver.take(GpuState.WELL, index=1)
            await read_until(nvml)

    asyncio.run(ask())


def test_the_event_loop_goes_on_while_nvml_hangs(driver: Driver) -> None:
    async def ask() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        async with driver.nvml(patience=SHORT) as nvml:
            await read_until(nvml)
            driver.take(GpuState.HANG)
            ticking = asyncio.create_task(tick())
            with pytest.raises(Hung):
                await nvml.read()
            ticking.cancel()
        return ticks

    assert asyncio.run(ask()) >= 5


def test_who_stops_waiting_does_not_spoil_the_answer_of_others(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            impatient = asyncio.create_task(nvml.gpus())
            patient = asyncio.create_task(nvml.read())
            await asyncio.sleep(0)
            impatient.cancel()
            assert list(await patient) == []
            assert len(await nvml.gpus()) == 2
            assert nvml.restarts == 0

    asyncio.run(ask())


def test_a_child_that_was_killed_is_started_again_at_the_next_question(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            await nvml.read()
            process = nvml._child._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                while process.returncode is None:
                    await asyncio.sleep(0.01)
            assert list(await nvml.read()) == []
            assert nvml.restarts == 1

    asyncio.run(ask())


def test_a_child_that_dies_of_the_question_is_no_answer(driver: Driver) -> None:
    async def ask() -> None:
        async with driver.nvml() as nvml:
            await nvml.read()
            process = nvml._child._process
            assert process is not None
            driver.take(GpuState.HANG)
            asking = asyncio.create_task(nvml.read())
            await asyncio.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)  # a crash inside the library looks the same
            with pytest.raises(Unreachable, match="it was killed by signal 9"):
                await asking

    asyncio.run(ask())


def test_a_child_that_ends_at_once_is_not_started_in_a_loop() -> None:
    async def ask() -> None:
        child = Child(["/bin/sh", "-c", "exit 3"], {}, Patience(first_pause=60.0))
        for _ in range(5):
            with pytest.raises(Unreachable, match="it ended with code 3"):
                await child.ask()
        assert child.restarts == 1  # the first failure is tried again at once, the next ones wait
        assert child.hangs == 0

    asyncio.run(ask())


AGENT = """
import asyncio, sys
from pathlib import Path
from everstep.adapters.gpu.nvml import Nvml, NvmlSettings

async def main():
    nvml = Nvml(NvmlSettings(driver_folder=Path(sys.argv[1]) / "driver", devices=Path(sys.argv[1]) / "pci"))
    await nvml.read()
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_the_child_dies_with_a_parent_that_was_killed(driver: Driver, hangs: bool) -> None:
    driver.take(GpuState.HANG if hangs else GpuState.WELL)
    with subprocess.Popen([sys.executable, "-c", AGENT, str(driver.run)]) as agent:
        until(lambda: child_of(agent.pid))
        child = child_of(agent.pid)
        until(lambda: "libnvidia-ml.so.1" in Path(f"/proc/{child}/maps").read_text())
        agent.kill()
        until(lambda: not alive(child))
