"""What the lab reads from the kernel, on examples of each kind of machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.lab import networks, processes
from everstep.lab.cgroups import hierarchies
from everstep.lab.errors import LabError
from everstep.lab.layout import Addresses

_V1 = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
cgroup /somewhere/else cgroup rw 0 0
"""


def test_hybrid_machines_have_one_hierarchy_a_controller_and_the_unified_one() -> None:
    assert hierarchies(_V1) == {
        Path("/sys/fs/cgroup/cpu,cpuacct"): "cgroup",
        Path("/sys/fs/cgroup/systemd"): "cgroup",
        Path("/sys/fs/cgroup/unified"): "cgroup2",
    }


def test_v2_machines_have_one() -> None:
    assert hierarchies("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n") == {Path("/sys/fs/cgroup"): "cgroup2"}


def test_a_machine_without_control_groups_is_refused() -> None:
    with pytest.raises(LabError, match="no control groups"):
        hierarchies("proc /proc proc rw 0 0\n")


@pytest.mark.parametrize(
    ("destination", "taken"),
    [
        ("default", False),
        ("10.0.0.0/8", False),
        ("198.18.0.0/15", True),
        ("198.18.3.0/24", True),
        ("198.18.4.0/24", False),
        ("198.18.3.7", True),
        ("0.0.0.0/0", False),
    ],
)
def test_a_range_that_the_machine_routes_is_not_used(destination: str, taken: bool) -> None:
    routes = json.dumps([{"dst": destination, "dev": "eth0"}])
    assert networks._taken(Addresses(3), routes) is taken


@pytest.mark.parametrize(
    ("name", "is_node"),
    [("ctl", True), ("sys-1", True), ("gpu-12", True), ("b-gpu-1", False), ("b-ctl", False), ("gpu-", False)],
)
def test_a_lab_claims_no_namespace_of_a_lab_with_a_longer_name(name: str, is_node: bool) -> None:
    assert networks._is_node(name) is is_node


def test_a_process_is_known_by_pid_and_start_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = processes.start_time(child.pid)
        assert started is not None
        assert processes.alive(child.pid, started)
        processes.kill(child.pid, started + 1)  # somebody else's process under the same pid
        assert processes.alive(child.pid, started)
        processes.kill(child.pid, started)
        child.wait()
        assert not processes.alive(child.pid, started)
    assert processes.start_time(os.getpid()) is not None


def test_a_program_that_fails_is_one_line_with_its_last_words() -> None:
    with pytest.raises(LabError) as caught:
        processes.run_now(sys.executable, "-c", "import sys; print('first'); sys.exit('the last word')")
    assert str(caught.value).endswith("failed (1): the last word")
    assert processes.run_now("false", check=False) == ""
    with pytest.raises(LabError, match="not installed"):
        processes.run_now("no-such-program-anywhere")


def test_the_cause_at_the_end_of_a_long_error_is_told() -> None:
    text = "failed to unpack " + "x" * 2000 + ": no space left on device"
    with pytest.raises(LabError, match=r"failed to unpack .*: no space left on device$") as caught:
        processes.run_now(sys.executable, "-c", f"import sys; sys.exit({text!r})")
    assert len(str(caught.value)) < 700
