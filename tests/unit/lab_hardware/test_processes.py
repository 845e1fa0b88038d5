from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from everstep.lab.hardware.processes import (
    CONTEXT_AFTER_SECONDS,
    ProcessSampler,
    ProcessStat,
    descendants,
    parse_devices,
    read_table,
)

SPIN = "import sys\nsys.stdout.write('.'); sys.stdout.flush()\nwhile True: pass"


@contextmanager
def spinning(environment: dict[str, str]) -> Iterator[int]:
    """A process that a shell started and that keeps a core busy; yields the shell's pid, the 'first process'."""
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1" & wait', sys.executable, SPIN],
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert shell.stdout is not None
    assert shell.stdout.read(1) == b"."
    try:
        yield shell.pid
    finally:
        os.killpg(shell.pid, 9)
        shell.wait()


def wait_for_work(first_process: int) -> None:
    """Until the busy process has computed enough to count as one with a GPU open: long, on a crowded machine."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        table = read_table()
        pids = descendants(table, {"node": first_process})
        if any(table[pid].cpu_seconds > CONTEXT_AFTER_SECONDS for pid in pids):
            return
        time.sleep(0.05)
    pytest.fail("the busy process got no CPU")


def sample_twice(first_processes: dict[str, int]) -> dict[str, dict[str, float]]:
    sampler = ProcessSampler()
    sampler.sample(time.monotonic(), first_processes)
    time.sleep(0.5)  # the interval that is measured
    loads = sampler.sample(time.monotonic(), first_processes)
    return {node: {device: load.busy for device, load in devices.items()} for node, devices in loads.items()}


def test_a_job_loads_the_gpus_that_its_environment_names_and_only_on_its_node() -> None:
    with spinning({"CUDA_VISIBLE_DEVICES": "1"}) as busy, spinning({}) as unrelated:
        loads = sample_twice({"gpu-1": busy, "gpu-2": unrelated})
    assert loads["gpu-1"]["1"] > 0.6  # also when the machine is crowded: waiting for a CPU counts as busy
    assert loads["gpu-2"] == {}


def test_without_cuda_variable_the_jobs_gpus_count() -> None:
    with spinning({"SLURM_JOB_GPUS": "0,1"}) as busy:
        loads = sample_twice({"gpu-1": busy})
    assert set(loads["gpu-1"]) == {"0", "1"}
    assert min(loads["gpu-1"].values()) > 0.6


def test_a_process_that_ends_loads_nothing() -> None:
    sampler = ProcessSampler()
    with spinning({"CUDA_VISIBLE_DEVICES": "0"}) as busy:
        sampler.sample(time.monotonic(), {"gpu-1": busy})
    assert sampler.sample(time.monotonic(), {"gpu-1": busy}) == {"gpu-1": {}}


def test_a_long_life_before_the_first_look_is_not_charged_to_one_interval() -> None:
    with spinning({"CUDA_VISIBLE_DEVICES": "0"}) as busy:
        time.sleep(2.3)  # older than what may still be called young
        wait_for_work(busy)
        sampler = ProcessSampler()
        first = sampler.sample(time.monotonic(), {"gpu-1": busy})
    assert first["gpu-1"]["0"].busy == 0.0
    assert first["gpu-1"]["0"].memory_mib > 500


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ([b"A=1", b"CUDA_VISIBLE_DEVICES=0,1", b"SLURM_JOB_GPUS=3"], ("0", "1")),
        ([b"SLURM_JOB_GPUS=3"], ("3",)),
        (
            [b"CUDA_VISIBLE_DEVICES=GPU-5b9f9040-feb5-4c4f-8527-15ed41ce68b4"],
            ("GPU-5b9f9040-feb5-4c4f-8527-15ed41ce68b4",),
        ),
        ([b"CUDA_VISIBLE_DEVICES="], ()),
        ([b"CUDA_VISIBLE_DEVICES=NoDevFiles"], ()),
        ([b"NOT_CUDA_VISIBLE_DEVICES=0"], ()),
        ([], ()),
    ],
)
def test_devices_of_an_environment(environment: list[bytes], devices: tuple[str, ...]) -> None:
    assert parse_devices(environment) == devices


def stat(pid: int, parent: int) -> ProcessStat:
    return ProcessStat(pid, parent, b"x", 0.0, 0, 0.0)


def test_descendants_belong_to_the_nearest_first_process_and_strangers_to_none() -> None:
    table = {
        one.pid: one
        for one in (stat(1, 0), stat(10, 1), stat(11, 10), stat(12, 11), stat(20, 1), stat(21, 20), stat(30, 1))
    }
    assert descendants(table, {"a": 10, "b": 20, "gone": 99}) == {10: "a", 11: "a", 12: "a", 20: "b", 21: "b"}


def test_this_process_is_in_the_table_and_kernel_threads_are_not() -> None:
    table = read_table()
    assert table[os.getpid()].parent == os.getppid()
    assert all(one.parent != 2 for one in table.values())
