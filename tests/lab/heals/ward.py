"""Where jobs are brought to be healed: a Slurm cluster in the lab, training jobs on it, and ways to hurt both.

What went wrong is an AssertionError with a sentence that says so, and with the record of the heal as far as it got.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from everstep.api.remediation import JobRecord
from everstep.apps.slurm_operator.desired import ROLE_LABEL
from everstep.core.scheduler_state import AttemptProgress
from everstep.lab.cluster import Lab
from everstep.lab.demo import stage
from everstep.lab.demo.cluster_view import RemediationObject, record_of
from everstep.lab.demo.evidence import Evidence, InjectedFault
from everstep.lab.demo.login import until
from everstep.lab.demo.proof import prove
from everstep.lab.errors import LabError

# Short enough for many heals in one test run, long enough that a restart from the top would show.
STEPS, STEP_TIME, BEFORE_FAULT = 60, 0.1, 15
READY_SECONDS = 120.0
EVERSTEP = "everstep-system"


class Silent:
    """Nobody watches; pytest shows the record when something fails."""

    def phase(self, text: str) -> None: ...

    def step(self, after: float, name: str, reason: str) -> None: ...


SILENT = Silent()


@dataclass
class Patient:
    """A training job and the fault that was done to one of its nodes."""

    options: stage.DemoOptions
    training: stage.Training
    fault: InjectedFault | None = None

    @property
    def job(self) -> str:
        return self.training.job

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.training.nodes


@dataclass
class Ward:
    """The lab's Slurm cluster as tests use it."""

    scene: stage.Scene
    reference: Mapping[int, str]

    @property
    def lab(self) -> Lab:
        return self.scene.lab

    # --- jobs --------------------------------------------------------------------------------------------------------
    def train(
        self, *training: str, steps: int = STEPS, step_time: float = STEP_TIME, nodes: int = 2,
        before: int = BEFORE_FAULT, script: str = "train.sbatch", on: str = "",
    ) -> Patient:  # fmt: skip
        """A job that trains and has really begun to. ``on``: the one node to run on."""
        sbatch = [f"--nodes={nodes}", *([f"--nodelist={on}"] if on else []), f"--export=ALL,STEPS={steps}"]
        options = stage.DemoOptions(
            slurm=str(self.lab.config.slurm), wanted_steps=steps, steps_before_fault=before, script=script,
            sbatch=sbatch, training=("--step-time", str(step_time), *training),
        )  # fmt: skip
        return Patient(options, stage.start_training(self.scene.login, options, SILENT))

    def state(self, patient: Patient) -> str:
        return self.scene.login.job(patient.job).get("State", "gone")

    def attempts(self, patient: Patient) -> tuple[AttemptProgress, ...]:
        return self.scene.login.attempts(patient.job)

    def cancel(self, *patients: Patient) -> None:
        """The end of what a failed test left running."""
        self.scene.login.run("scancel", *(patient.job for patient in patients))

    # --- harm --------------------------------------------------------------------------------------------------------
    def break_gpu(self, patient: Patient, node: str = "") -> InjectedFault:
        """XID 79 on a node of the job."""
        patient.fault = stage.inject(self.scene, node or patient.nodes[0], patient.options, SILENT)
        return patient.fault

    def cut_power(self, patient: Patient) -> InjectedFault:
        """The first node of the job just dies."""
        options = replace(patient.options, fault="power")
        patient.fault = stage.inject(self.scene, patient.nodes[0], options, SILENT)
        return patient.fault

    def pod(self, label: str, namespace: str = stage.NAMESPACE, node: str = "") -> str:
        """Name of the one living pod with that label."""
        found = self.lab.get("pods", "-n", namespace, "-l", label)
        alive = [pod["metadata"]["name"] for pod in found["items"] if _lives_on(pod, node)]
        assert len(alive) == 1, f"there should be one pod with {label} in {namespace}, there is {alive or 'none'}"
        return str(alive[0])

    def controller(self) -> str:
        return self.pod("app.kubernetes.io/component=controller", EVERSTEP)

    def worker(self, node: str) -> str:
        """The pod of slurmd on that node."""
        return self.pod(f"{ROLE_LABEL}=worker-{self.lab.config.pool}", node=node)

    def kill(self, command: str, node: str = "sys-1") -> None:
        """``kill -9`` of the processes on a node whose command line holds these words."""
        home = f"/{self.lab.layout.cgroup}/{node}/"
        killed = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command in words and "tini" not in words and home in (process / "cgroup").read_text():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
        assert killed, f"no process of {node} runs {command!r}"

    def delete_at_once(self, pod: str, namespace: str = stage.NAMESPACE) -> None:
        """The pod's processes are killed, without a word to them."""
        self.lab.kubectl("delete", "pod", "-n", namespace, pod, "--grace-period=0", "--force", "--wait=false")

    # --- what is seen ------------------------------------------------------------------------------------------------
    def record(self, fault: InjectedFault) -> RemediationObject | None:
        return self.scene.view.remediation_of(fault.node, fault.at)

    def until_step(self, fault: InjectedFault, step: str, seconds: float = 60) -> None:
        """The record holds the step."""
        self.until(f"the record of {fault.node} holds {step}", lambda: step in self._steps(fault), seconds, [fault])

    def until_replaced(self, fault: InjectedFault, seconds: float = 60) -> str:
        """Another node is in service in the faulty one's place, which a job may still hold; returns its name."""

        def in_service() -> bool:
            return record_of(self.record(fault), "").in_service_at is not None

        self.until(f"something is in service in place of {fault.node}", in_service, seconds, [fault])
        return record_of(self.record(fault), "").replacement or ""

    def until_resolved(self, fault: InjectedFault, seconds: float = 240) -> RemediationObject:
        """The record of the heal once it has an outcome."""

        def outcome() -> bool:
            found = self.record(fault)
            return bool(found and found.status and found.status.outcome)

        self.until(f"the heal of {fault.node} has an outcome", outcome, seconds, [fault])
        record = self.record(fault)
        assert record is not None
        return record

    def until_repaired(self, fault: InjectedFault) -> None:
        """The record says that the machine's repair is done."""

        def done() -> bool:
            found = self.record(fault)
            mark = found.status.operation if found and found.status else None
            return mark is not None and mark.state == "done" and mark.ended_at is not None

        self.until(f"the repair of {fault.node} is on record", done, READY_SECONDS, [fault])

    def until_saved(self, patient: Patient) -> None:
        """Slurm has the job's start on its disk; that takes up to 5 s, and a slurmctld killed before forgets it."""
        slurmctld = ("exec", "-n", stage.NAMESPACE, f"{stage.CLUSTER}-slurmctld-0", "--")

        def written() -> str:
            return self.lab.kubectl(*slurmctld, "stat", "-c", "%.Y", "/var/spool/slurmctld/job_state")

        before = written()
        self.lab.kubectl(*slurmctld, "scontrol", "update", f"jobid={patient.job}", "comment=to be written")
        self.until("Slurm has written its jobs down", lambda: written() != before, 30)

    def until_state(self, patient: Patient, *states: str, seconds: float = 120) -> None:
        """Slurm shows the job in one of these states."""
        faults = [patient.fault] if patient.fault else []
        wanted = " or ".join(states)
        self.until(
            f"job {patient.job} is {wanted}", lambda: self.state(patient) in states, seconds, faults,
            lambda: f"it is {self.state(patient)}",
        )  # fmt: skip

    def until(
        self, what: str, check: Callable[[], bool], seconds: float, faults: Iterable[InjectedFault] = (),
        detail: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """Waits for a condition; what is missing at the deadline is told with the records of the faults."""
        try:
            until(what, seconds, check, every=0.1)
        except LabError as error:
            raise AssertionError("\n".join([str(error), detail(), *map(self.tell, faults)])) from None

    def until_reason(self, fault: InjectedFault, words: str, seconds: float = 60) -> None:
        """The record gives these words as its reason."""
        self.until(f"the record of {fault.node} says {words!r}", lambda: words in self.tell(fault), seconds, [fault])

    def _idle(self) -> set[str]:
        return set(self.scene.login.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())

    def job_record(self, fault: InjectedFault, patient: Patient) -> JobRecord:
        """What the record says about the job."""
        found = self.record(fault)
        jobs = found.status.jobs if found and found.status else []
        mine = [job for job in jobs if job.id == patient.job]
        assert mine, f"the record does not know job {patient.job}\n{self.tell(fault)}"
        return mine[0]

    @staticmethod
    def span_of_budget(record: RemediationObject) -> tuple[float, float]:
        """From its admission to its replacement in service: the fleet is one node short."""
        status = record.status
        taken = status.replacement if status else None
        assert status
        assert status.admitted_at
        assert taken
        assert taken.in_service_at
        return status.admitted_at.timestamp(), taken.in_service_at.timestamp()

    def slurm_states(self, node: str) -> set[str]:
        """Base state and flags of a node in Slurm."""
        out = self.scene.login.run("sinfo", "-h", "-N", "-n", node, "-O", "StateComplete:|")
        return set(out.strip(" |\n").upper().split("+"))

    def _steps(self, fault: InjectedFault) -> set[str]:
        return {step.name for step in record_of(self.record(fault), "").steps}

    def tell(self, fault: InjectedFault) -> str:
        """The record of a heal as text."""
        found = self.record(fault)
        if found is None or found.status is None:
            return f"no Remediation was opened for {fault.node}"
        status = found.status
        lines = [f"{found.metadata.name}: {status.outcome or status.stage}: {status.reason}"]
        lines += [f"  {step.at.timestamp() - fault.at:+7.2f} s {step.name}: {step.reason}" for step in status.steps]
        lines += [f"  job {job.id}: {job.phase}, {job.restarts} restarts, {job.reason}" for job in status.jobs]
        return "\n".join(lines)

    # --- the end -----------------------------------------------------------------------------------------------------
    def evidence(self, patient: Patient) -> Evidence:
        """Waits for the end of the heal and of the job; then all that the systems know."""
        fault = patient.fault
        assert fault is not None
        self.until_resolved(fault)
        stage.wait_for_end(self.scene, patient.job, SILENT)
        reference = {step: loss for step, loss in self.reference.items() if step <= patient.options.wanted_steps}
        record = record_of(self.record(fault), patient.job)
        return stage.collect(self.scene, patient.options, fault, patient.training, reference, record)

    def assert_healed(self, patient: Patient, but: Iterable[str] = ()) -> Evidence:
        """Every claim of the demo is proven, except those named, which the test judges itself."""
        evidence = self.evidence(patient)
        wrong = [claim.says for claim in prove(evidence) if not claim.proven and claim.name not in but]
        assert not wrong, "\n".join([*wrong, self.tell(evidence.fault)])
        return evidence

    def assert_retired_once(self, fault: InjectedFault) -> None:
        """The machine was handed to its provider one single time, and one record was opened."""
        names = [r["metadata"]["name"] for r in self._remediations() if self._concerns(r, fault)]
        assert len(names) == 1, f"one fault, and these records: {names}\n{self.tell(fault)}"
        offs = [e for e in self.lab.events() if e.text == f"{fault.node}: power off" and e.time >= fault.at]
        assert len(offs) == 1, f"{fault.node} was switched off {len(offs)} times\n{self.tell(fault)}"

    def _remediations(self) -> list[dict[str, Any]]:
        return list(self.lab.get("remediations")["items"])

    @staticmethod
    def _concerns(remediation: dict[str, Any], fault: InjectedFault) -> bool:
        created = time.strptime(remediation["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
        return remediation["spec"]["nodeName"] == fault.node and time.mktime(created) - time.timezone >= int(fault.at)

    def until_whole(self) -> None:
        """Two nodes in service and answering in Slurm, one spare, every agent content, nothing under way."""
        config = self.lab.config
        missing: list[str] = []

        def whole() -> bool:
            missing[:] = self._missing(config.nodes, config.spares)
            return not missing

        self.until("the lab is whole again", whole, READY_SECONDS, (), lambda: "; ".join(missing))

    def _missing(self, nodes: int, spares: int) -> list[str]:
        wrong = [
            f"{r['metadata']['name']} is open" for r in self._remediations() if not r.get("status", {}).get("outcome")
        ]
        verdicts = {h["metadata"]["name"]: h["status"]["verdict"] for h in self.lab.get("nodehealths")["items"]}
        idle = self._idle()
        serving = spare = 0
        for node in self.lab.get("nodes")["items"]:
            name, labels = node["metadata"]["name"], node["metadata"]["labels"]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
            usable = ready and not node["spec"].get("unschedulable") and verdicts.get(name) == "Healthy"
            offered = node["status"]["allocatable"].get("nvidia.com/gpu") == str(self.lab.config.gpus)
            if usable and offered and "everstep.io/pool" in labels and name in idle:
                serving += 1
            elif usable and offered and "everstep.io/spare-for" in labels:
                spare += 1
            elif name.startswith("gpu-"):
                wrong.append(f"{name} is neither in service and idle nor a spare")
        if (serving, spare) != (nodes, spares):
            wrong.append(f"{serving} of {nodes} nodes are in service and {spare} of {spares} are spares")
        return wrong


def _lives_on(pod: dict[str, Any], node: str) -> bool:
    """Not being deleted, and on that node, if one is named."""
    return "deletionTimestamp" not in pod["metadata"] and node in ("", pod["spec"].get("nodeName"))
