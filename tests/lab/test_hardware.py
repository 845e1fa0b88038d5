"""The simulated hardware under a real kubelet, in a small lab without Everstep: nobody must heal what this breaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.adapters.provider.machine_api import MachineApi
from everstep.core.machine_state import OperationState
from everstep.lab.cluster import Lab
from everstep.lab.hardware.gpus import GpuReading
from everstep.lab.layout import MACHINE_API_PORT, LabConfig
from everstep.lab.setup import plan_lab

pytestmark = pytest.mark.lab
NODE = "gpu-1"
WORK = """
ls /dev/nvidia0 /dev/nvidia1 && echo x > /dev/nvidia1 && echo "devices work"
echo $NVIDIA_VISIBLE_DEVICES
CUDA_VISIBLE_DEVICES=1 exec python3 -c 'while True: pass'
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    config = LabConfig(name="t-hardware", nodes=1, spares=0, platform=False, repair_seconds=2)
    with Lab.up(plan_lab(config)) as running:
        yield running


def until(what: str, seconds: float, check: Callable[[], bool]) -> float:
    """Polls until ``check`` holds; returns how long that took."""
    start = time.monotonic()
    while not check():
        assert time.monotonic() - start < seconds, f"not {what} after {seconds} s"
        time.sleep(0.05)
    return time.monotonic() - start


def allocatable(lab: Lab) -> int:
    return int(lab.get("node", NODE)["status"]["allocatable"].get("nvidia.com/gpu", "0"))


def gpus(lab: Lab) -> list[GpuReading]:
    with lab.hardware() as hardware:
        return next(machine.gpus for machine in hardware.status() if machine.name == NODE)


def in_the_node(lab: Lab) -> Any:
    return json.loads(lab.execute(NODE, "cat", "/run/everstep/gpus.json"))


def pod(name: str, command: str, count: int) -> str:
    container = {
        "name": "work",
        "image": f"docker.io/everstep/slurm:{LabConfig().slurm}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-c", command],
        "securityContext": {"privileged": True},
        "resources": {"limits": {"nvidia.com/gpu": str(count)}},
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def kubelet_pid(lab: Lab) -> int | None:
    """Host pid of the node's kubelet; None while there is none."""
    home = str(lab.layout.root).encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
            if words[0] == b"kubelet" and f"--hostname-override={NODE}".encode() in words and home in b" ".join(words):
                return int(entry.name)
    return None


def test_a_pod_gets_the_devices_and_its_work_shows_on_them(lab: Lab) -> None:
    until("two GPUs", 10, lambda: allocatable(lab) == 2)
    lab.kubectl("apply", "-f", "-", text=pod("work", WORK, 2))
    lab.kubectl("wait", "--for=condition=Ready", "pod/work", "--timeout=30s")
    until("a busy GPU", 15, lambda: gpus(lab)[1].utilization_percent > 90)
    seen = gpus(lab)
    assert "devices work" in lab.kubectl("logs", "work")
    assert f"{seen[0].uuid}" in lab.kubectl("logs", "work")
    assert (seen[0].utilization_percent, seen[0].memory_used_mib) == (0, 0)
    assert seen[1].memory_used_mib > 500
    assert in_the_node(lab)["gpus"][1]["utilization_percent"] > 80
    lab.kubectl("delete", "pod", "work", "--wait")
    until("an idle GPU", 10, lambda: gpus(lab)[1].utilization_percent < 5)


def test_a_lost_gpu_leaves_the_node_and_the_kernel_says_so_inside_it(lab: Lab) -> None:
    lab.inject(NODE, 79, 1)
    assert until("one GPU less", 5, lambda: allocatable(lab) == 1) < 5
    last = lab.execute(NODE, "tail", "-n1", "/run/everstep/kmsg")
    assert last.startswith("3,")
    assert "NVRM: Xid (PCI:0000:02:00): 79, " in last
    assert [gpu["lost"] for gpu in in_the_node(lab)["gpus"]] == [False, True]


def test_a_kubelet_that_is_killed_finds_its_gpus_again(lab: Lab) -> None:
    before = kubelet_pid(lab)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    until("another kubelet", 10, lambda: kubelet_pid(lab) not in (None, before))
    until("its healthy GPU offered again", 15, lambda: allocatable(lab) == 1)


def test_a_power_cycle_is_another_boot_with_the_same_parts(lab: Lab) -> None:
    before, serials = in_the_node(lab)["boot_id"], [gpu.serial for gpu in gpus(lab)]
    lab.power_off(NODE)
    with lab.hardware() as hardware:
        assert next(m.state for m in hardware.status() if m.name == NODE) == "off"
    lab.power_on(NODE)
    after = in_the_node(lab)
    assert after["boot_id"] not in ("", before)
    assert lab.execute(NODE, "cat", "/proc/sys/kernel/random/boot_id").strip() == after["boot_id"]
    assert lab.get("node", NODE)["status"]["nodeInfo"]["bootID"] == after["boot_id"]
    assert [gpu.serial for gpu in gpus(lab)] == serials
    assert "Xid" not in lab.execute(NODE, "cat", "/run/everstep/kmsg")
    until("both GPUs", 10, lambda: allocatable(lab) == 2)


def test_a_retired_machine_comes_back_as_a_spare_with_new_parts(lab: Lab) -> None:
    serials = {gpu.serial for gpu in gpus(lab)}
    lab.inject(NODE, 79, 0)
    url = f"http://{lab.addresses.gateway}:{MACHINE_API_PORT}"

    async def retire() -> OperationState:
        async with MachineApi(url, lab.layout.machine_token) as api:
            await api.retire("retire-1", NODE)
            async with asyncio.timeout(60):
                while (found := await api.operation("retire-1")) and found.state.value in ("accepted", "running"):
                    await asyncio.sleep(0.1)
        assert found is not None
        return found.state

    assert asyncio.run(retire()) is OperationState.DONE
    assert serials.isdisjoint(gpu.serial for gpu in gpus(lab))
    assert lab.get("node", NODE)["metadata"]["labels"]["everstep.io/spare-for"] == lab.config.pool
    until("two new GPUs", 10, lambda: allocatable(lab) == 2)
