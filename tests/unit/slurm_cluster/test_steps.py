"""The processes of steps, told apart from all others."""

from __future__ import annotations

from pathlib import Path

from everstep.apps.slurm_pod.steps import Kind, step_processes


def process(proc: Path, pid: int, name: str, state: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1 0 -1 4194560 0\n")


def test_managers_tasks_and_the_rest(tmp_path: Path) -> None:
    process(tmp_path, 1, "tini", "S", 0)
    process(tmp_path, 6, "slurmd", "S", 1)
    process(tmp_path, 20, "slurmstepd", "S", 1)
    process(tmp_path, 21, "python3", "R", 20)
    process(tmp_path, 22, "data loader", "S", 21)  # a task's own child: its parent answers for it
    process(tmp_path, 30, "slurmstepd", "S", 1)
    process(tmp_path, 31, "a) S 9 (b", "S", 30)
    process(tmp_path, 40, "slurmstepd", "Z", 1)
    process(tmp_path, 41, "python3", "Z", 20)
    (tmp_path / "99").mkdir()  # gone while being looked at
    (tmp_path / "meminfo").write_text("")
    assert step_processes(tmp_path) == {20: Kind.MANAGER, 21: Kind.TASK, 30: Kind.MANAGER, 31: Kind.TASK}
