"""The ways in which a training is started under Slurm: who hears the stop signal, and who is told that it may not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from everstep.api.slurm_cluster import ProcessTracking
from tests.lab.heals.ward import Ward

pytestmark = pytest.mark.lab
TRAIN = 'python3 train.py --dir "$HOME/runs/$SLURM_JOB_ID" --steps 100000 --step-time 0.1 --save-every-steps 100000'


@dataclass(frozen=True)
class Way:
    """How the training is started; `warning` is a part of what it says then, `tasks` its ranks."""

    command: str
    tasks: int = 2
    warning: str = ""


WAYS = {
    "srun python": Way(f"srun {TRAIN}"),
    "exec": Way(f"srun --ntasks=1 everstep-checkpoint exec --grace 100 -- {TRAIN}", tasks=1),
    "srun bash -c": Way(
        f"srun bash -c '{TRAIN}; true'", tasks=1, warning="a shell (bash) stands between srun and this program"
    ),
    "no srun": Way(TRAIN, tasks=1, warning="put srun before it"),
}
HEARING = ("srun python", "exec")


@pytest.fixture(scope="module")
def jobs(place: Ward) -> Mapping[str, str]:
    """Way -> job; all train, and those that can hear it have been told to stop."""
    login = place.scene.login
    jobs = {
        name: login.submit("--nodes=1", f"--ntasks={way.tasks}", f"--wrap={way.command}") for name, way in WAYS.items()
    }
    told = [jobs[name] for name in HEARING]
    others = [job for job in jobs.values() if job not in told]
    try:
        place.until("those that hear train", lambda: all(highest(place, job) >= 3 for job in told), 120)
        login.run("scancel", "--signal=TERM", *told)
        place.until("they have ended", lambda: all(events(place, job, "end") for job in told), 60)
        # These may have had to wait for the processors of the others.
        place.until("the others train", lambda: all(highest(place, job) >= 3 for job in others), 120)
    finally:
        login.run("scancel", *jobs.values())
    return jobs


def events(ward: Ward, job: str, event: str) -> list[dict[str, Any]]:
    """Those of the job's record, in order."""
    text = ward.scene.login.run("sh", "-c", f"cat ~/.everstep/jobs/{int(job)}/attempt-*.jsonl 2>/dev/null || true")
    return [line for line in map(json.loads, text.splitlines()) if line["event"] == event]


def highest(ward: Ward, job: str) -> int:
    return max((int(line["step"]) for line in events(ward, job, "progress")), default=0)


@pytest.mark.parametrize("name", HEARING)
def test_a_signal_from_slurm_makes_it_save(place: Ward, jobs: Mapping[str, str], name: str) -> None:
    (start,) = events(place, jobs[name], "start")
    (stop,) = events(place, jobs[name], "stop")
    (end,) = events(place, jobs[name], "end")
    assert (start["world_size"], start["warnings"]) == (WAYS[name].tasks, [])
    assert start["grace"]["Slurm"] == 120
    assert (end["outcome"], end["saved_step"]) == ("stopped", stop["agreed_step"])
    assert end["saved_step"] > 0


def test_the_wrapper_says_how_it_ended(place: Ward, jobs: Mapping[str, str]) -> None:
    (end,) = events(place, jobs["exec"], "end")
    said = place.scene.login.run("cat", f"slurm-{jobs['exec']}.out")
    assert f"the training has stopped, newest checkpoint: step {end['saved_step']}" in said


@pytest.mark.parametrize("name", [name for name in WAYS if name not in HEARING])
def test_who_may_not_hear_slurm_is_told_at_the_start(place: Ward, jobs: Mapping[str, str], name: str) -> None:
    (start,) = events(place, jobs[name], "start")
    (warning,) = start["warnings"]
    assert WAYS[name].warning in warning
    assert warning in place.scene.login.run("cat", f"slurm-{jobs[name]}.out")


def test_slurm_tracks_processes_as_the_cluster_says(place: Ward, request: pytest.FixtureRequest) -> None:
    plugin = {ProcessTracking.CGROUP: "proctrack/cgroup", ProcessTracking.LINUX_PROC: "proctrack/linuxproc"}
    said = place.scene.login.run("scontrol", "show", "config")
    (line,) = [line for line in said.splitlines() if line.startswith("ProctrackType")]
    assert line.split("=")[1].strip() == plugin[request.node.callspec.params["place"]]


@pytest.mark.parametrize("place", [ProcessTracking.CGROUP], indirect=True)
def test_with_cgroups_nothing_of_a_job_outlives_it(place: Ward) -> None:
    login = place.scene.login
    leaves = (
        "setsid -f sh -c 'echo $$ > orphan; exec sleep 1000'; until [ -s orphan ]; do sleep 0.1; done;"
        " echo $SLURMD_NODENAME"
    )
    login.run("rm", "-f", "orphan")
    job = login.submit("--nodes=1", f"--wrap={leaves}")
    place.until(f"job {job} has ended", lambda: login.job(job).get("State", "gone") in {"COMPLETED", "gone"}, 60)
    node = login.run("cat", f"slurm-{job}.out").strip()
    look = 'kill -0 "$(cat orphan)" 2>/dev/null && echo lives || echo gone'
    assert login.run("srun", f"--nodelist={node}", "sh", "-c", look).strip() == "gone"
