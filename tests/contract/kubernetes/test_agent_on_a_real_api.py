"""The agent as a process, with its pod's token, against a real API server with the chart's admission policy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .api_server import ApiServer
from .rendering import rendered

GPUS = [
    {"index": 0, "uuid": "GPU-a", "serial": "1650001", "pci": "0000:01:00"},
    {"index": 1, "uuid": "GPU-b", "serial": "1650002", "pci": "0000:02:00"},
]
POD = """
apiVersion: v1
kind: Node
metadata: {name: %(node)s}
---
apiVersion: v1
kind: Pod
metadata: {name: agent-%(node)s, namespace: everstep-system}
spec: {nodeName: %(node)s, serviceAccountName: everstep-agent, containers: [{name: agent, image: none}]}
"""
HEALTH = """
apiVersion: everstep.io/v1alpha1
kind: NodeHealth
metadata: {name: %s}
status: {verdict: Faulty}
"""
LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: %s, namespace: %s}
spec: {holderIdentity: thief}
"""


def until(what: str, check: Callable[[], Any], seconds: float = 20.0) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < give_up, f"not {what} within {seconds} s"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def cluster(api: ApiServer) -> ApiServer:
    """The API server with the chart's rights and admission policy in force."""
    documents = [
        part for part in rendered(api.binaries) if part["kind"] not in ("DaemonSet", "Deployment", "Namespace")
    ]
    api.kubectl(
        "apply", "--server-side", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    )
    probe = ("create", "--dry-run=server", "-f", "-", "--as=system:serviceaccount:everstep-system:everstep-agent")

    def in_force() -> bool:
        try:
            api.kubectl(*probe, text=HEALTH % "anybody")
        except AssertionError as refused:
            return "everstep-agent-own-node" in str(refused)
        return False

    until("the admission policy in force", in_force)
    return api


class NodeAgent:
    """One node's files, its pod's token, and the agent process."""

    def __init__(self, api: ApiServer, node: str, folder: Path) -> None:
        self.api, self.node, self.folder = api, node, folder
        self.kmsg, self.kubeconfig = folder / "kmsg", folder / "kubeconfig"
        self._sequence = 0
        self._process: subprocess.Popen[bytes] | None = None
        api.kubectl("apply", "-f", "-", text=POD % {"node": node})
        bound = ("--bound-object-kind=Pod", f"--bound-object-name=agent-{node}")
        token = api.kubectl("create", "token", "everstep-agent", "-n", "everstep-system", *bound).strip()
        config = json.loads(api.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self.kubeconfig.write_text(json.dumps(config))
        self.boot("boot-1")

    def boot(self, boot_id: str) -> None:
        self._sequence = 0
        self.kmsg.write_text("5,0,1,-;Linux version 6.1\n")
        (self.folder / "gpus.json").write_text(json.dumps({"boot_id": boot_id, "gpus": GPUS}))

    def says(self, code: int, gpu: int = 1) -> None:
        self._sequence += 1
        with self.kmsg.open("a") as log:
            text = f"NVRM: Xid (PCI:{GPUS[gpu]['pci']}): {code}, pid=1, name=a, text"
            log.write(f"4,{self._sequence},{time.monotonic_ns() // 1000},-;{text}\n")

    def start(self) -> None:
        command = [sys.executable, "-m", "everstep.apps.agent", "--node", self.node, "--kmsg", str(self.kmsg)]
        command += ["--simulated-gpus", str(self.folder / "gpus.json"), "--kubeconfig", str(self.kubeconfig)]
        with (self.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(10)

    @property
    def status(self) -> dict[str, Any]:
        found = self.api.kubectl("get", "nodehealth", self.node, "--ignore-not-found", "-o", "json")
        return dict(json.loads(found)["status"]) if found else {}

    def until_verdict(self, verdict: str) -> dict[str, Any]:
        until(f"{self.node} {verdict}", lambda: self.status.get("verdict") == verdict)
        return self.status

    def apply(self, text: str) -> str:
        """What the API server answers when the agent's own token is used by hand."""
        command = [str(self.api.binaries / "kubectl"), "--kubeconfig", str(self.kubeconfig)]
        done = subprocess.run(
            [*command, "apply", "--server-side", "-f", "-"], input=text, text=True, capture_output=True, check=False
        )
        return done.stdout if done.returncode == 0 else done.stderr


@pytest.fixture
def agent(cluster: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeAgent]:
    node = NodeAgent(cluster, request.node.name.replace("_", "-").removeprefix("test-")[:40].strip("-"), tmp_path)
    try:
        yield node
    finally:
        node.kill()


def test_an_xid_becomes_a_fault_of_the_right_gpu(agent: NodeAgent) -> None:
    agent.start()
    agent.until_verdict("Healthy")
    agent.says(79)
    status = agent.until_verdict("Faulty")
    (fault,) = status["faults"]
    assert (fault["key"], fault["gpuIndex"], fault["class"]) == ("xid:79@1650002", 1, "hardware")
    assert status["reason"] == "XID 79: GPU fell off the bus (GPU 1)"
    assert status["summary"] == {"faults": "xid:79", "gpus": "2/2"}


def test_kill_nine_loses_and_repeats_nothing(agent: NodeAgent) -> None:
    for round_ in range(4):
        agent.start()
        agent.says(95)
        if round_ % 2:
            until("this line written", lambda: agent.status.get("log", {}).get("sequence") == agent._sequence)
        agent.kill()
        agent.says(95)  # while no agent runs
    agent.start()
    until("all lines written", lambda: agent.status.get("log", {}).get("sequence") == 8)
    assert agent.status["faults"][0]["count"] == 8


def test_a_part_that_fails_again_after_its_repair_is_known(agent: NodeAgent) -> None:
    """Merged cases and the history pass the API server's schema, a kill -9 and a reboot."""
    agent.start()
    agent.says(63)
    agent.says(79)
    until("both lines written", lambda: agent.status.get("log", {}).get("sequence") == 2)
    agent.kill()
    agent.says(48)  # belongs to the 63, though another agent reads it
    agent.start()
    until("the third line written", lambda: agent.status.get("log", {}).get("sequence") == 3)
    faults = {fault["code"]: (fault["action"], fault.get("count", 1)) for fault in agent.status["faults"]}
    assert faults == {"48": ("resetGPU", 2), "79": ("rebootNode", 1)}
    agent.kill()
    agent.boot("boot-2")
    agent.start()
    agent.until_verdict("Healthy")
    agent.says(79)
    (again,) = agent.until_verdict("Faulty")["faults"]
    assert (again["action"], again["reason"]) == (
        "replaceNode",
        "XID 79: GPU fell off the bus; 2 times, 2/7d is the limit",
    )


def test_a_repaired_machine_clears_its_faults(agent: NodeAgent) -> None:
    agent.start()
    agent.says(79)
    agent.until_verdict("Faulty")
    agent.kill()
    agent.boot("boot-2")
    agent.start()
    status = agent.until_verdict("Healthy")
    assert "faults" not in status
    assert status["bootID"] == "boot-2"


def test_the_heartbeat_has_the_nodes_name(agent: NodeAgent) -> None:
    agent.start()
    get = ("get", "lease", agent.node, "-n", "everstep-node-lease", "--ignore-not-found", "-o", "json")
    found = json.loads(until("a heartbeat", lambda: agent.api.kubectl(*get)))
    assert found["spec"]["holderIdentity"] == agent.node
    assert found["spec"]["renewTime"]


def test_sigterm_ends_it_cleanly(agent: NodeAgent) -> None:
    agent.start()
    agent.until_verdict("Healthy")
    assert agent.stop() == 0


def test_an_api_server_that_was_away_hears_what_happened(agent: NodeAgent) -> None:
    agent.start()
    agent.until_verdict("Healthy")
    agent.api.kill("kube-apiserver")
    agent.says(79)
    agent.api.start_api()
    agent.until_verdict("Faulty")


def test_a_token_of_one_node_writes_nothing_of_another(agent: NodeAgent) -> None:
    assert "serverside-applied" in agent.apply(HEALTH % agent.node)
    refused = agent.apply(HEALTH % "gpu-other")
    assert f'its token is bound to node "{agent.node}", not to "gpu-other"' in refused
    assert "not to" in agent.apply(LEASE % ("gpu-other", "everstep-node-lease"))
    assert "cannot patch" in agent.apply(LEASE % (agent.node, "kube-system"))


def test_a_token_that_is_bound_to_no_pod_writes_nothing(agent: NodeAgent) -> None:
    config = json.loads(agent.kubeconfig.read_text())
    token = agent.api.kubectl("create", "token", "everstep-agent", "-n", "everstep-system").strip()
    config["users"][0]["user"] = {"token": token}
    agent.kubeconfig.write_text(json.dumps(config))
    assert 'its token is bound to node ""' in agent.apply(HEALTH % agent.node)


def test_what_others_write_into_a_node_health_does_not_stay(agent: NodeAgent) -> None:
    """A fault that nobody's agent knows could never be cleared, and would have the node replaced again and again."""
    agent.start()
    agent.until_verdict("Healthy")
    made_up = {"key": "a", "kind": "xid", "code": "79", "class": "hardware", "severity": "critical"}
    past = {"device": "1650001", "code": "xid:31", "at": "2026-01-01T00:00:00Z", "lineages": ["uid 1000"]}
    patch = {"status": {"faults": [{**made_up, "action": "replaceNode", "reason": "r"}], "history": [past]}}
    agent.api.kubectl("patch", "nodehealth", agent.node, "--type=merge", "-p", json.dumps(patch))
    assert agent.status["faults"]
    agent.says(13)
    until("the next write", lambda: agent.status["log"]["sequence"] == 1)
    until("only the agent's own fault", lambda: [fault["code"] for fault in agent.status["faults"]] == ["13"])
    assert [item["code"] for item in agent.status["history"]] == ["xid:13"]
    agent.kill()
    agent.boot("boot-2")
    agent.start()
    until("the proof of a new boot", lambda: agent.status["bootID"] == "boot-2" and not agent.status.get("faults"))
