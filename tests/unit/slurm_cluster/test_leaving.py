"""The order of words to Slurm when a worker's pod stops, against a Slurm that answers from a script."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everstep.apps.slurm_pod import leaving
from everstep.apps.slurm_pod.steps import Kind
from everstep.core.errors import Unreachable
from everstep.core.slurm_worker import STOPPING


def job_line(form: str, **known: str) -> str:
    """One job as `squeue -O` prints it; ``form`` is the -O argument, with its separators."""
    values = {"JobID": "7", "JobArrayID": "7", "UserName": "ada", "State": "RUNNING", "RestartCnt": "0"}
    values |= {"NodeList": "gpu-1", "NumNodes": "1", "Requeue": "1", "BatchFlag": "1", "PriorityLong": "1"}
    values |= {"EligibleTime": "N/A", "StartTime": "N/A", "SubmitTime": "N/A", "NumTasks": "1", "Reason": "None"}
    values |= known
    text = ""
    for part in form.split(","):
        name, _, separator = part.partition(":")
        text += values.get(name, "") + separator
    return text


class Script:
    """Plays Slurm's command line; ``said`` is what was asked to change."""

    def __init__(self, state: str = "IDLE", reason: str = "", jobs: tuple[dict[str, str], ...] = ()) -> None:
        self.state, self.reason, self.jobs = state, reason, jobs
        self.said: list[str] = []
        self.reachable = True

    async def run(self, program: str, *arguments: str) -> str:
        if not self.reachable:
            raise Unreachable("no controller")
        if program == "squeue":
            return "".join(job_line(arguments[-1], **job) for job in self.jobs)
        if "config" in arguments:
            return "SLURM_VERSION = 24.11.5\n"
        if "show" in arguments:
            reason = f" Reason={self.reason} [root@2026-01-01T00:00:00]" if self.reason else ""
            return f"NodeName=gpu-1 Arch=x86_64 NodeAddr=10.0.0.1 State={self.state}{reason}\n"
        self.said.append(" ".join([program, *arguments]))
        return ""


def requeue_all(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(leaving, "slurm", lambda: script)
    asyncio.run(leaving._requeue_all("gpu-1"))
    return script.said


DRAIN = f"scontrol update nodename=gpu-1 state=DRAIN reason={STOPPING}"


def test_jobs_are_requeued_after_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue_all(Script(jobs=({},)), monkeypatch) == [DRAIN, "scontrol requeue 7"]


@pytest.mark.parametrize("reason", ["broken fan", "everstep: gpu-1-xid-79"])
def test_a_drain_that_is_there_is_kept_whoever_set_it(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue_all(Script("IDLE+DRAIN", reason), monkeypatch) == []


def test_a_job_that_may_not_be_requeued_is_asked_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    said = requeue_all(Script(jobs=({"Requeue": "0"},)), monkeypatch)
    assert said == [DRAIN, "scontrol update jobid=7 Requeue=1", "scontrol requeue 7"]


def test_an_interactive_job_is_ended_with_the_same_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue_all(Script(jobs=({"BatchFlag": "0"},)), monkeypatch) == [DRAIN, "scancel 7"]


@pytest.mark.parametrize("job", [{"State": "COMPLETING"}, {"State": "PENDING"}, {"NodeList": "gpu-2"}])
def test_other_jobs_are_left_alone(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue_all(Script(jobs=(job,)), monkeypatch) == [DRAIN]


def test_without_a_controller_the_tasks_are_told_directly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = Script()
    script.reachable = False
    running = {20: Kind.MANAGER, 21: Kind.TASK}
    told: list[int] = []

    def kill(pid: int, _: int) -> None:
        told.append(pid)
        running.clear()

    monkeypatch.setattr(leaving, "slurm", lambda: script)
    monkeypatch.setattr(leaving, "_ASK_SECONDS", 0.05)
    monkeypatch.setattr(leaving, "_PAUSE", 0.01)
    monkeypatch.setattr(leaving, "step_processes", lambda: dict(running))
    monkeypatch.setattr(leaving.os, "kill", kill)
    asyncio.run(leaving._leave("gpu-1"))
    assert told == [21]
