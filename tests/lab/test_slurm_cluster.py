"""A Slurm cluster made by one command on a real Kubernetes, as a researcher and a platform engineer meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from everstep.lab.cluster import Lab
from everstep.lab.demo.login import Login, make_key, until
from everstep.lab.losses import Loss, losing

pytestmark = pytest.mark.lab

NAMESPACE, NAME = "slurm-tests", "crew"
# Says when it starts and when it was told to stop; takes a second to "save".
TASK = """
import os, signal, sys, time
def say(*words): print(os.environ["SLURM_RESTART_COUNT" if "SLURM_RESTART_COUNT" in os.environ else "SLURM_PROCID"],
                       os.environ["SLURMD_NODENAME"], *words, flush=True)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
say("started")
while not told: time.sleep(0.05)
say("told"); time.sleep(1); say("saved")
"""
BATCH = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=1 --requeue --open-mode=append -o out.txt\n"


class Slurm:
    """The cluster under test: kubectl as the platform team, SSH as a researcher."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.key = make_key(folder)
        self.login = Login("ada", "", 0, self.key)

    def kubectl(self, *arguments: str) -> str:
        command = ["kubectl", "-n", NAMESPACE, *arguments]
        done = subprocess.run(
            command, env={**os.environ, **self.lab.environment}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def get(self, what: str, *names: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", what, *names, "-o", "json"))
        return found

    def create(self, *extra: str) -> dict[str, Any]:
        """`everstep slurm create ... --wait --json`."""
        words = ["slurm", "create", NAME, "-n", NAMESPACE, "--user", f"ada:{self.key}.pub", "--wait", "--json", *extra]
        command = [sys.executable, "-m", "everstep.apps.cli", *words]
        done = subprocess.run(
            command, env={**os.environ, **self.lab.environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        host, _, port = said["status"]["login"]["endpoint"].rpartition(":")
        self.login = Login("ada", host, int(port), self.key)
        return said

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The two nodes in service; other tests' heals may have changed which ones they are."""
        found = self.lab.get("nodes", "-l", f"everstep.io/pool={self.lab.config.pool}")["items"]
        return tuple(sorted(node["metadata"]["name"] for node in found))

    def worker(self, node: str) -> str:
        """Name of the slurmd pod on a node."""
        pods = self.get("pods", "-l", "everstep.io/slurm-role=worker-main")["items"]
        (name,) = [p["metadata"]["name"] for p in pods if p["spec"]["nodeName"] == node]
        return str(name)

    def node(self, name: str) -> str:
        return self.login.run("scontrol", "show", "node", name, "-o")


@pytest.fixture(scope="module")
def slurm(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(lab, tmp_path_factory.mktemp("ssh"))
    cluster.create()
    cluster.login.wait(30)
    yield cluster
    cluster.login.close()
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", "--timeout=120s")


def test_a_researcher_finds_a_slurm(slurm: Slurm) -> None:
    assert slurm.login.run("sinfo", "-h", "-o", "%P %D %T").strip() == "main* 2 idle"
    assert slurm.login.run("pwd").strip() == "/home/ada"
    ask = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $(hostname) $PWD"
    lines = slurm.login.run("srun", "-N2", "--gpus-per-node=2", "bash", "-c", ask).split("\n")
    assert sorted(filter(None, lines)) == [f"{n} 0,1 {n} /home/ada" for n in slurm.nodes]


def test_jobs_find_numpy_the_sdk_each_other_and_nothing_of_the_platform(slurm: Slurm) -> None:
    script = "import numpy, everstep_checkpoint, socket; print(socket.gethostbyname('NODE') != '')".replace(
        "NODE", slurm.nodes[0]
    )
    assert slurm.login.run("srun", "-w", slurm.nodes[1], "python3", "-c", script).strip() == "True"
    other = "import importlib.util as u; print(u.find_spec('everstep'), u.find_spec('starlette'))"
    assert slurm.login.run("srun", "-w", slurm.nodes[1], "python3", "-c", other).strip() == "None None"


def test_users_cannot_read_slurms_keys(slurm: Slurm) -> None:
    found = "find / -xdev -readable \\( -name '*.key' -o -name 'ssh_host_key*' \\) -print 2>/dev/null; true"
    assert slurm.login.run("sh", "-c", found).strip() == ""
    assert slurm.login.run("srun", "-w", slurm.nodes[0], "sh", "-c", found).strip() == ""


def test_a_user_added_later_needs_no_restart(slurm: Slurm) -> None:
    before = [p["metadata"]["uid"] for p in slurm.get("pods")["items"]]
    slurm.create("--user", f"bob:{slurm.key}.pub")
    bob = Login("bob", slurm.login.host, slurm.login.port, slurm.key)
    try:
        bob.wait(30)
        until("bob's job finds bob's home", 30, lambda: bob.run("srun", "-N2", "pwd") == "/home/bob\n/home/bob\n")
    finally:
        bob.close()
    assert [p["metadata"]["uid"] for p in slurm.get("pods")["items"]] == before


def test_a_stopping_worker_lets_its_job_save_and_run_elsewhere(slurm: Slurm) -> None:
    slurm.login.write("task.py", TASK)
    slurm.login.write("job.sh", BATCH + "srun python3 task.py\n")
    job = slurm.login.submit("job.sh")
    until("both tasks run", 30, lambda: slurm.login.run("cat", "out.txt").count("started") == 2)
    started = time.monotonic()
    slurm.kubectl("delete", "pod", slurm.worker(slurm.nodes[0]))
    took = time.monotonic() - started
    assert slurm.login.run("cat", "out.txt").count("saved") == 2
    assert took < 30, "the pod waits for its tasks, not for its whole grace"
    until("the job runs again", 60, lambda: slurm.login.run("cat", "out.txt").count("started") == 4)
    seen = slurm.login.job(job)
    assert (seen["State"], seen["RestartCnt"]) == ("RUNNING", "1")
    assert "DRAIN" not in slurm.node(slurm.nodes[0])
    slurm.login.run("scancel", job)


def test_a_drain_of_somebody_else_outlives_the_pod(slurm: Slurm) -> None:
    controller = f"{NAME}-slurmctld-0"
    update = ["exec", controller, "--", "scontrol", "update", f"nodename={slurm.nodes[0]}"]
    slurm.kubectl(*update, "state=drain", "reason=broken fan")
    slurm.kubectl("delete", "pod", slurm.worker(slurm.nodes[0]))
    slurm.create()
    assert "DRAIN" in slurm.node(slurm.nodes[0])
    assert "Reason=broken fan" in slurm.node(slurm.nodes[0])

    def shown() -> dict[str, str]:
        conditions = slurm.lab.get("node", slurm.nodes[0])["status"]["conditions"]
        return next((each for each in conditions if each["type"] == "EverstepSlurmDrained"), {})

    until("the drain shows on the Kubernetes node", 15, lambda: shown().get("status") == "True")
    assert "by somebody else: broken fan" in shown()["message"]
    slurm.kubectl(*update, "state=resume")
    until("the end of the drain shows, too", 15, lambda: shown()["status"] == "False")


def test_a_job_that_breaks_on_all_of_its_nodes_is_to_blame_itself(slurm: Slurm) -> None:
    job = slurm.login.submit("-N2", "-o", "/dev/null", "--wrap", "srun sleep 300")
    until("the job runs", 30, lambda: slurm.login.job(job).get("State") == "RUNNING")
    for node in slurm.nodes:
        slurm.lab.inject(node, 31)  # a program's own page fault

    def blamed() -> list[dict[str, Any]]:
        found = slurm.lab.get("fleetincidents")["items"]
        return [each["status"] for each in found if each["status"]["about"] == f"{NAMESPACE}/{NAME}/{job}"]

    until("the job is blamed", 20, lambda: bool(blamed()))
    (incident,) = blamed()
    assert (incident["blame"], incident["code"]) == ("job", "xid:31")
    assert set(incident["nodes"]) == set(slurm.nodes)
    about = ("-n", "default", "--field-selector=involvedObject.kind=FleetIncident")
    until("its owner is told", 10, lambda: "(to ada)" in slurm.lab.kubectl("get", "events", *about))
    slurm.login.run("scancel", job)


def test_a_changed_setting_reaches_the_nodes_and_jobs_run_on(slurm: Slurm) -> None:
    job = slurm.login.submit("-N2", "-o", "/dev/null", "--wrap", "srun sleep 300")
    until("the job runs", 30, lambda: slurm.login.job(job).get("State") == "RUNNING")
    patch = {"spec": {"config": {"slurm": {"SlurmdTimeout": "77", "DefMemPerNode": "123"}}}}
    slurm.kubectl("patch", "slurmcluster", NAME, "--type=merge", "-p", json.dumps(patch))
    cache = "/var/spool/slurmd/conf-cache/slurm.conf"
    worker = ["exec", slurm.worker(slurm.nodes[1]), "-c", "slurmd", "--", "cat", cache]
    until("the worker has the new configuration", 60, lambda: "DefMemPerNode=123" in slurm.kubectl(*worker))
    assert slurm.login.job(job)["State"] == "RUNNING"
    slurm.login.run("scancel", job)


def test_a_setting_that_healing_relies_on_is_refused(slurm: Slurm) -> None:
    def patch(value: str | None) -> None:
        body = {"spec": {"config": {"slurm": {"KillWait": value}}}}
        slurm.kubectl("patch", "slurmcluster", NAME, "--type=merge", "-p", json.dumps(body))

    patch("30")
    slurm.kubectl("wait", f"slurmcluster/{NAME}", "--for=condition=ConfigApplied=False", "--timeout=20s")
    said = slurm.get("slurmcluster", NAME)["status"]["message"]
    assert said == "config.slurm sets KillWait, which the operator owns; remove it"
    patch(None)
    slurm.kubectl("wait", f"slurmcluster/{NAME}", "--for=condition=ConfigApplied", "--timeout=20s")
    assert "KillWait                = 120 sec" in slurm.login.run("scontrol", "show", "config")


@contextmanager
def in_the_pool(lab: Lab, spare: str) -> Iterator[None]:
    """The spare serves the pool meanwhile, as the one that a heal has taken in."""
    before = lab.get("node", spare)
    pool = {"everstep.io/spare-for": None, "everstep.io/pool": lab.config.pool}
    was = {"everstep.io/spare-for": lab.config.pool, "everstep.io/pool": None}

    def make(labels: dict[str, str | None], taints: list[dict[str, str]]) -> None:
        patch = {"metadata": {"labels": labels}, "spec": {"taints": taints}}
        lab.kubectl("patch", "node", spare, "--type=merge", "-p", json.dumps(patch))

    make(pool, [])
    try:
        yield
    finally:
        make(was, before["spec"]["taints"])


def test_a_broken_connection_does_not_keep_a_new_node_out_of_slurm(slurm: Slurm) -> None:
    """slurmd would sleep 10 s over one that breaks while it fetches its configuration."""
    (spare,) = [n["metadata"]["name"] for n in slurm.lab.get("nodes", "-l", "everstep.io/spare-for")["items"]]

    def workers() -> list[dict[str, Any]]:
        pods = slurm.get("pods", "-l", "everstep.io/slurm-role=worker-main")["items"]
        return [pod for pod in pods if pod["spec"]["nodeName"] == spare]

    # The first three are the worker's own questions; of the next ones, one is slurmd's fetch.
    with losing(slurm.lab, spare, Loss.CONNECTION_CLOSED, 3, 4, 5), in_the_pool(slurm.lab, spare):
        until("the spare has a worker", 10, lambda: bool(workers()))
        (pod,) = (worker["metadata"]["name"] for worker in workers())
        slurm.kubectl("wait", f"pod/{pod}", "--for=condition=Ready", "--timeout=30s")
        said = slurm.kubectl("logs", pod, "-c", "slurmd")
        assert "IDLE" in slurm.node(spare)
    assert "failed to load configs" in said, "the connections that were closed did not include slurmd's fetch"
    assert "it is started again" in said
    until("the spare is a spare again", 60, lambda: not workers())


def test_a_kubelet_that_put_a_worker_off_is_told_of_it_again(slurm: Slurm) -> None:
    """Its first question for the claim of a new pod may be refused; then it would not ask again for 10 to 15 s."""
    own = slurm.get("pod", slurm.worker(slurm.nodes[0]))["spec"]["containers"][0]
    home = slurm.get("pvc", f"{NAME}-home")["spec"]
    labels = {"everstep.io/slurm-cluster": NAME, "everstep.io/slurm-role": "worker-late"}
    container = {"name": "late", "image": own["image"], "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"]}
    volume = {"name": "late", "persistentVolumeClaim": {"claimName": "late"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "late", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeName": slurm.nodes[0],
            "terminationGracePeriodSeconds": 0,
            "containers": [container | {"volumeMounts": [{"name": "late", "mountPath": "/late"}]}],
            "volumes": [volume],
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "late", "namespace": NAMESPACE},
        "spec": {name: home[name] for name in ("storageClassName", "accessModes", "resources")},
    }
    slurm.lab.kubectl("apply", "-f", "-", text=json.dumps(pod))
    events = ("events", "--field-selector=involvedObject.name=late,reason=FailedMount")
    until("the kubelet has put it off", 20, lambda: bool(slurm.get(*events)["items"]))
    slurm.lab.kubectl("apply", "-f", "-", text=json.dumps(claim))
    slurm.kubectl("wait", "pod/late", "--for=condition=Ready", "--timeout=30s")
    seen = slurm.get("pod", "late")
    begun = seen["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    told = seen["metadata"]["annotations"]["everstep.io/kubelet-told-at"]
    waited = datetime.fromisoformat(begun) - datetime.fromisoformat(told)
    assert waited < timedelta(seconds=5), "it began because it was told, not because its ten seconds were over"
