"""The demo itself: a lab, a Slurm cluster, a job, a fault, and the proof that nobody had to wake up."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from everstep.core.scheduler_state import AttemptProgress
from everstep.lab.cluster import Lab
from everstep.lab.demo.cluster_view import ClusterView, record_of, violations
from everstep.lab.demo.evidence import Attempt, Evidence, InjectedFault, JobEvidence, Record, Sample
from everstep.lab.demo.login import Login, make_key, until
from everstep.lab.demo.losses import read_losses
from everstep.lab.errors import LabError
from everstep.lab.layout import LabConfig, LabPlan

NAMESPACE, CLUSTER, USER = "slurm", "demo", "ada"
EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
# The controller notices a machine without power only when its heartbeat is overdue; everything else is quicker.
HEAL_SECONDS = 240.0
JOB_SECONDS = 300.0


class Show(Protocol):
    """How progress is shown; the command line draws it, the tests collect it."""

    def phase(self, text: str) -> None:
        """Something longer than a moment begins or went on."""
        ...

    def step(self, after: float, name: str, reason: str) -> None:
        """One step of the heal, ``after`` seconds from the fault."""
        ...


@dataclass(frozen=True)
class DemoOptions:
    """What to show.

    Attributes:
        fault: ``xid`` with ``code``, or ``power``.
        wanted_steps: how many steps the job trains.
        steps_before_fault: how many of them it has done when the fault comes.
        program, script: the training program and its batch script, both in ``examples``.
        ranks: how many processes the batch script starts.
        sbatch: extra arguments of sbatch.
        training: extra arguments of the program, for the variants of the job.
        environment: what the user has set on the login node; Slurm hands it on to the job.
        patience: how many times longer than the numpy example this one may take to get anywhere.
    """

    fault: str = "xid"
    code: str = "79"
    slurm: str = "24.11"
    name: str = "demo"
    nodes: int = 2
    spares: int = 1
    gpus: int = 2
    gpu: int = 0
    wanted_steps: int = 200
    # Enough that a restart from the top would show.
    steps_before_fault: int = 40
    program: str = "train.py"
    script: str = "train.sbatch"
    ranks: int = 2
    sbatch: Sequence[str] = ()
    training: Sequence[str] = ("--step-time", "0.15", "--save-seconds", "2")
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 1.0


@dataclass(frozen=True)
class Scene:
    """A lab with a Slurm cluster on it, in that namespace, and a user logged in."""

    lab: Lab
    login: Login
    view: ClusterView
    namespace: str = NAMESPACE


@dataclass(frozen=True)
class Training:
    """A job that trains, and the nodes that it was given."""

    job: str
    nodes: tuple[str, ...]


def run_demo(
    options: DemoOptions,
    plan: Callable[[LabConfig], LabPlan],
    show: Show,
    keep: bool = False,
    prepare: Callable[[Scene, Show], None] = lambda scene, show: None,
) -> Evidence:
    """Runs the whole demo on a lab of its own and returns what it collected; unless ``keep``, the lab ends too.

    ``prepare`` is done once the user can log in, before anything is trained.

    Raises LabError when the demo itself could not go on; a heal that went wrong is not an error but evidence.
    """
    started = time.time()
    config = LabConfig(
        name=options.name, nodes=options.nodes, spares=options.spares, gpus=options.gpus, slurm=options.slurm
    )
    show.phase("bringing a Kubernetes cluster up")
    lab = Lab.up(plan(config), show.phase)
    try:
        with tempfile.TemporaryDirectory(prefix="everstep-demo-") as folder, ClusterView(lab) as view:
            login = create_slurm(lab, view, make_key(Path(folder)), options.slurm, show)
            try:
                scene = Scene(lab, login, view)
                prepare(scene, show)
                evidence = heal_one(scene, options, show)
            finally:
                login.close()
    finally:
        if not keep:
            lab.down()
    return replace(evidence, started_at=started, finished_at=time.time())


def create_slurm(lab: Lab, view: ClusterView, key: Path, version: str, show: Show) -> Login:
    """Makes the SlurmCluster by the same one command that a platform engineer types; returns the user's login."""
    command = ["slurm", "create", CLUSTER, "--namespace", NAMESPACE, "--slurm", version]
    command += ["--pool", lab.config.pool, "--user", f"{USER}:{key}.pub", "--wait"]
    show.phase(f"everstep {' '.join(command)}")
    done = subprocess.run(
        [sys.executable, "-m", "everstep.apps.cli", *command],
        env={**os.environ, **lab.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"the Slurm cluster was not made: {(done.stderr or done.stdout).strip()}")
    host, port = view.login_endpoint(NAMESPACE, CLUSTER)
    login = Login(USER, host, port, key)
    login.wait(60)
    return login


def heal_one(scene: Scene, options: DemoOptions, show: Show) -> Evidence:
    """Trains, breaks one node under the training, waits for the end, collects."""
    bring_examples(scene.login, options.program)
    reference = reference_run(scene.login, options, show)
    training = start_training(scene.login, options, show)
    fault = inject(scene, training.nodes[0], options, show)
    record = follow(scene, fault, training.job, show, HEAL_SECONDS * options.patience)
    wait_for_end(scene, training.job, show, JOB_SECONDS * options.patience)
    return collect(scene, options, fault, training, reference, record)


def bring_examples(login: Login, program: str = "train.py") -> None:
    """Puts the training program and its batch scripts into the user's home."""
    for path in (*EXAMPLES.glob("*.sbatch"), EXAMPLES / program):
        login.write(path.name, path.read_text())


def start_training(login: Login, options: DemoOptions, show: Show) -> Training:
    """Submits the training over SSH and waits for real progress. Raises LabError if there is none."""
    job = login.submit(*job_arguments(options))
    show.phase(f"{USER} submitted job {job} over SSH; waiting for real progress")
    until(
        f"job {job} reaches step {options.steps_before_fault}",
        120 * options.patience,
        lambda: any((a.highest_step or 0) >= options.steps_before_fault for a in login.attempts(job)),
    )
    return Training(job, login.hosts(login.job(job).get("NodeList", "")))


def job_arguments(options: DemoOptions) -> list[str]:
    """What the user types after ``sbatch``."""
    variables = ",".join(f"{name}={value}" for name, value in options.environment.items())
    export = [f"--export=ALL,{variables}"] if variables else []
    return [*export, *options.sbatch, options.script, f"--steps={options.wanted_steps}", *options.training]


def reference_script(options: DemoOptions) -> str:
    """A line of bash: all ranks of the training on one machine, without any waiting; fails when one of them does."""
    world = {"WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", **options.environment}
    command = ["env", *(f"{name}={value}" for name, value in world.items())]
    python = f"python3 {options.program} --dir reference --steps {options.wanted_steps} --step-time 0".split()
    ranks = (shlex.join([*command, f"RANK={rank}", *python]) for rank in range(options.ranks))
    # By $!, for `jobs -p` no longer knows a rank that has ended already.
    start = "".join(f'{rank} & ranks="$ranks $!"; ' for rank in ranks)
    return f"ranks=; {start}for rank in $ranks; do wait $rank || {{ kill $ranks; exit 1; }}; done"


def reference_run(login: Login, options: DemoOptions, show: Show) -> dict[int, str]:
    """The same training without any interruption, as fast as it goes, on the login node; its loss by step."""
    show.phase("training the uninterrupted reference run")
    login.run("bash", "-c", reference_script(options), seconds=180 * options.patience)
    return read_losses(login.run("sh", "-c", "cat reference/losses/*.jsonl")).get(0, {})


def inject(scene: Scene, node: str, options: DemoOptions, show: Show) -> InjectedFault:
    """Breaks the node; returns what was broken and when."""
    with scene.lab.hardware() as hardware:
        if options.fault == "power":
            answer = hardware.cut_power(node)
            show.phase(f"the power of {node} is cut")
            return InjectedFault("power", "off", node, None, answer.at)
        answer = hardware.inject(node, int(options.code), options.gpu)
    show.phase(f"the kernel of {node} says: {answer.records[-1].partition(';')[2].strip()}")
    return InjectedFault("xid", options.code, node, options.gpu, answer.at)


def follow(scene: Scene, fault: InjectedFault, job: str, show: Show, seconds: float = HEAL_SECONDS) -> Record:
    """Shows each step of the record as it appears; returns the record once it has an outcome (or at the deadline)."""
    shown: set[str] = set()
    deadline = time.monotonic() + seconds
    while True:
        record = record_of(scene.view.remediation_of(fault.node, fault.at), job)
        for step in sorted(record.steps, key=lambda s: s.at):
            if step.name not in shown:
                shown.add(step.name)
                show.step(step.at - fault.at, step.name, step.reason)
        if record.outcome or time.monotonic() > deadline:
            return record
        time.sleep(0.2)


def wait_for_end(scene: Scene, job: str, show: Show, seconds: float = JOB_SECONDS) -> None:
    """Waits until the job has ended, well or badly; a job that does not end is evidence too."""
    show.phase(f"job {job} trains on; waiting for its end")
    ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
    deadline = time.monotonic() + seconds
    while scene.login.job(job).get("State", "") not in ended and time.monotonic() < deadline:
        time.sleep(0.5)


def collect(
    scene: Scene,
    options: DemoOptions,
    fault: InjectedFault,
    training: Training,
    reference: dict[int, str],
    record: Record,
) -> Evidence:
    """Asks every system for what it knows, once, at the end."""
    login, job = scene.login, training.job
    seen = login.job(job)
    losses = read_losses(login.run("sh", "-c", f"cat runs/{int(job)}/losses/*.jsonl"))
    nodes = {}
    for name in filter(None, (fault.node, record.replacement)):
        states = frozenset(
            login.run("sinfo", "-h", "-N", "-n", name, "-O", "StateComplete:|").strip(" |\n").upper().split("+")
        )
        node = scene.view.node(name, frozenset(filter(None, states)))
        if node is not None:
            nodes[name] = node
    return Evidence(
        slurm_version=options.slurm,
        fault=fault,
        job=JobEvidence(
            submitted_id=job,
            id=seen.get("JobID", ""),
            state=seen.get("State", ""),
            restarts=int(seen.get("RestartCnt") or 0),
            nodes_before=training.nodes,
            nodes_after=login.hosts(seen.get("NodeList", "")),
            steps_wanted=options.wanted_steps,
            attempts=tuple(_attempt(a, losses.get(a.attempt, {})) for a in login.attempts(job)),
            reference=reference,
            started_after=_slurm_time(login, seen.get("StartTime", "")),
        ),
        record=record,
        nodes=nodes,
        notices=notices(scene, job, fault, record),
        order_violations=violations(record.steps),
        samples=_samples(scene, fault, record),
    )


def notices(scene: Scene, job: str, fault: InjectedFault, record: Record) -> tuple[str, ...]:
    """Where a message to the owner was really found."""
    found = []
    if f"node {fault.node} failed" in scene.login.run("sh", "-c", f"cat slurm-{int(job)}.out 2>/dev/null || true"):
        found.append("in the job's own output")
    if any(event.startswith("Notice:") and USER in event for event in scene.view.events_about(record.name)):
        found.append("as a Kubernetes Event")
    return tuple(found)


def _attempt(progress: AttemptProgress, losses: dict[int, str]) -> Attempt:
    return Attempt(
        number=progress.attempt,
        resumed_from=progress.resumed_from,
        highest_step=progress.highest_step,
        first_step_at=progress.first_step_at,
        saved_step=progress.saved_step,
        save_seconds=progress.save_seconds,
        load_seconds=progress.load_seconds,
        outcome=progress.outcome,
        losses=losses,
    )


def _slurm_time(login: Login, text: str) -> float | None:
    """Slurm prints local time of the machine it is asked on; that machine converts it."""
    return float(login.run("date", f"--date={text}", "+%s")) if text and text != "N/A" else None


def _samples(scene: Scene, fault: InjectedFault, record: Record) -> tuple[Sample, ...]:
    with scene.lab.hardware() as hardware:
        history = hardware.gpus(since=fault.at - 30)
    wanted = {fault.node, record.replacement, *scene.lab.config.gpu_nodes}
    return tuple(
        Sample(s.time, s.node, float(max(s.utilization_percent, default=0)) if s.running else None)
        for s in history.samples
        if s.node in wanted
    )
