"""The ways in which a PyTorch training is started under Slurm: each saves at one step when it is requeued, and goes on.

Run by `make test-torch-lab` alone, which names this file: torch is 5 GB, so no test_*.py that every run would collect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.lab.demo import stage
from everstep.lab.demo.frameworks import framework_of
from tests.lab.heals.test_launchers import events, highest
from tests.lab.heals.ward import SILENT, Ward

# The first test waits for the lab, for Slurm, for a first `import torch`, and the very first time for 5 GB of packages.
pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

WORKERS = Path(__file__).resolve().parents[3] / "checkpoint/tests-torch/programs/with_workers.py"
DIR = '--dir "$HOME/runs/$SLURM_JOB_ID"'
TORCHRUN = "python3 -m torch.distributed.run --nproc-per-node=2"
# Its batch script runs on the first node, where rank 0 is. The grace asked for is one that all on the way can give.
DDP = (
    "MASTER=$SLURMD_NODENAME PORT=$((29000 + SLURM_JOB_ID % 1000))"
    " srun bash -c 'exec everstep-checkpoint exec --grace 120 --"
    f" {TORCHRUN} --nnodes=2 --node-rank=$SLURM_NODEID --master-addr=$MASTER --master-port=$PORT"
    f" train_torch_ddp.py {DIR} --steps 100000 --step-time 0.1 --save-every 3600 --grace 110'"
)
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "gone"}
# As long as the others may take on a machine of two cores, most of it for `import torch`.
BEGIN_SECONDS, SAVE_SECONDS = 300.0, 60.0


@dataclass(frozen=True)
class Way:
    """How the training is started.

    `torchrun`: the seconds that it leaves; `warnings`: a part of each that is said; `apart`: rank 1 may begin
    later than rank 0, and notes its steps in a file.
    """

    command: str
    shape: tuple[str, ...] = ("--nodes=1", "--ntasks=1")
    ranks: int = 1
    torchrun: float | None = None
    warnings: tuple[str, ...] = ()
    apart: bool = False


WAYS = {
    # The order of the processors they get: the one that needs two nodes first.
    "srun torchrun": Way(DDP, ("--nodes=2", "--ntasks-per-node=1"), ranks=4, torchrun=115),
    # `exec`: torchrun is then what Slurm knows as the batch script, and hears of a requeue.
    "torchrun": Way(
        f"exec {TORCHRUN} --standalone with_workers.py {DIR} --workers 2",
        ranks=2,
        torchrun=30,
        warnings=("torchrun gives 30 s", "put srun before it"),
        apart=True,
    ),
    "srun python, no workers": Way(f"srun python3 with_workers.py {DIR} --workers 0"),
    "srun python, 2 workers": Way(f"srun python3 with_workers.py {DIR} --workers 2"),
}


@pytest.fixture(scope="module")
def jobs(place: Ward) -> Iterator[Mapping[str, Future[str]]]:
    """Way -> job, once it was requeued and trains again. They wait side by side, as far as there are processors."""
    options, prepare = framework_of("torch", stage.DemoOptions(slurm=str(place.lab.config.slurm)))
    login = place.scene.login
    prepare(place.scene, SILENT)
    stage.bring_examples(login, options.program)
    login.write(WORKERS.name, WORKERS.read_text())
    export = ",".join(["--export=ALL", *(f"{name}={value}" for name, value in options.environment.items())])
    with ThreadPoolExecutor(len(WAYS)) as pool:
        yield {name: pool.submit(requeued, place, way, export) for name, way in WAYS.items()}


def requeued(ward: Ward, way: Way, export: str) -> str:
    """Starts it, has Slurm requeue it once it trains, and cancels it when it trains again; returns the job."""
    login = ward.scene.login
    job = login.submit(export, *way.shape, f"--wrap={way.command}")
    try:
        wait(ward, job, "trains", lambda: reached(ward, job, way, 3), BEGIN_SECONDS)
        login.run("scontrol", "requeue", job)
        wait(ward, job, "has saved", lambda: bool(events(ward, job, "end")), SAVE_SECONDS)
        wait(ward, job, "is queued again", lambda: login.job(job).get("State") == "PENDING", SAVE_SECONDS)
        login.run("scontrol", "update", f"jobid={job}", "StartTime=now")  # by itself Slurm lets it wait for 121 s
        saved = events(ward, job, "end")[0]["saved_step"] or 0
        wait(ward, job, "trains again", lambda: trains_again(ward, job, way, saved), BEGIN_SECONDS)
    finally:
        login.run("scancel", job)
    ward.until(f"job {job} has saved again", lambda: len(events(ward, job, "end")) == 2, SAVE_SECONDS)
    return job


def trains_again(ward: Ward, job: str, way: Way, saved: int) -> bool:
    return len(events(ward, job, "start")) == 2 and reached(ward, job, way, saved + 1)


def reached(ward: Ward, job: str, way: Way, step: int) -> bool:
    """Every rank has done that many steps. One that is not there yet would end at a signal like any other program."""
    if highest(ward, job) < step:
        return False
    rank1 = ward.scene.login.run("sh", "-c", f"cat runs/{int(job)}/steps-1 2>/dev/null || true") if way.apart else ""
    return not way.apart or int(rank1 or 0) >= step


def wait(ward: Ward, job: str, what: str, check: Callable[[], bool], seconds: float) -> None:
    """Waits for it; a job that has ended will not get there, and its output says why."""

    def said() -> str:
        return ward.scene.login.run("sh", "-c", f"tail -n 60 slurm-{int(job)}.out 2>/dev/null || true")

    def so() -> bool:
        if check():
            return True
        state = ward.scene.login.job(job).get("State", "gone")
        assert state not in ENDED, f"job {job} is {state} before it {what}\n{said()}"
        return False

    ward.until(f"job {job} {what}", so, seconds, detail=said)


@pytest.mark.parametrize("name", WAYS)
def test_requeued_and_cancelled_it_saves_at_one_step_and_goes_on_from_it(
    place: Ward, jobs: Mapping[str, Future[str]], name: str
) -> None:
    job = jobs[name].result()
    first, second = events(place, job, "start")
    assert first["world_size"] == second["world_size"] == WAYS[name].ranks
    stops, ends = events(place, job, "stop"), events(place, job, "end")
    assert [end["outcome"] for end in ends] == ["stopped", "stopped"]
    assert [end["saved_step"] for end in ends] == [stop["agreed_step"] for stop in stops]
    assert ends[1]["saved_step"] > ends[0]["saved_step"] == second["resumed_from"] > 0


@pytest.mark.parametrize("name", WAYS)
def test_a_signal_to_every_process_costs_no_data_loader(
    place: Ward, jobs: Mapping[str, Future[str]], name: str
) -> None:
    said = place.scene.login.run("cat", f"slurm-{jobs[name].result()}.out")
    assert "exited unexpectedly" not in said
    assert "killed by signal" not in said


@pytest.mark.parametrize("name", WAYS)
def test_who_cuts_the_grace_is_known_at_the_start(place: Ward, jobs: Mapping[str, Future[str]], name: str) -> None:
    start = events(place, jobs[name].result(), "start")[0]
    assert start["grace"]["Slurm"] == 120
    assert start["grace"].get("torchrun") == WAYS[name].torchrun
    assert len(start["warnings"]) == len(WAYS[name].warnings), start["warnings"]
    for part, warning in zip(WAYS[name].warnings, start["warnings"], strict=True):
        assert part in warning
