"""Whose process a line names; where that is not certain, nobody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.adapters.node.jobs import HOST_PIDS, JobsOfProcesses
from everstep.core.correlation.sighting import Job
from everstep.core.health import Evidence

LINE = Evidence("xid", "31", pid=4711, process="python3")
V1 = "9:memory:/slurm/uid_1000/job_42/step_0/task_0\n1:name=systemd:/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(HOST_PIDS)
    process(tmp_path)
    return tmp_path


def process(proc: Path, comm: str = "python3", uid: int = 1000, cgroup: str = V2) -> None:
    folder = proc / "4711"
    folder.mkdir(exist_ok=True)
    (folder / "comm").write_text(comm + "\n")
    (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cgroup").write_text(cgroup)


@pytest.mark.parametrize("cgroup", [V1, V2, V2.replace("/user/task_0", ""), "0::/slurm/job_42\n"])
def test_a_job_of_slurm(proc: Path, cgroup: str) -> None:
    process(proc, cgroup=cgroup)
    assert JobsOfProcesses(proc)(LINE) == (Job("42", "uid 1000"),)


def test_a_user_outside_slurm(proc: Path) -> None:
    process(proc, cgroup="0::/kubepods.slice/pod1/abc\n")
    assert JobsOfProcesses(proc)(LINE) == (Job("", "uid 1000"),)


def test_names_are_cut_by_the_kernel(proc: Path) -> None:
    process(proc, comm="a-very-long-nam")
    line = Evidence("xid", "31", pid=4711, process="a-very-long-name-indeed")
    assert JobsOfProcesses(proc)(line) == (Job("42", "uid 1000"),)


def test_what_is_not_certain_is_nobody(proc: Path) -> None:
    jobs = JobsOfProcesses(proc)
    assert jobs(Evidence("xid", "31", pid=None, process="python3")) == ()
    assert jobs(Evidence("xid", "31", pid=4711)) == ()
    assert jobs(Evidence("xid", "31", pid=0, process="python3")) == ()
    assert jobs(Evidence("xid", "31", pid=99, process="python3")) == ()  # it has ended
    assert jobs(Evidence("xid", "31", pid=4711, process="nvidia-smi")) == ()  # the number went to another one
    process(proc, uid=0)
    assert jobs(LINE) == ()  # the system's own


def test_another_pid_namespace_counts_other_processes(proc: Path) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532204]")
    assert JobsOfProcesses(proc)(LINE) == ()
