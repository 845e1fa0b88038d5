"""A lab without Everstep on it: power, cables, storage, broken daemons, and what is left when it is gone."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from everstep.lab.cluster import Lab, remove
from everstep.lab.errors import LabError
from everstep.lab.layout import LabConfig, LabLayout, LabPlan
from everstep.lab.setup import plan_lab
from everstep.lab.state import read_state
from everstep.lab.status import troubles
from tests.lab.traces import routes, traces

pytestmark = pytest.mark.lab
PROJECT = Path(__file__).resolve().parents[2]

_CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: homes}
spec: {storageClassName: shared, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
"""
_POD = """
---
apiVersion: v1
kind: Pod
metadata: {name: on-NODE}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: docker.io/everstep/everstep:dev
    imagePullPolicy: IfNotPresent
    command: [python3, -c, "import time; time.sleep(3600)"]
    volumeMounts: [{name: homes, mountPath: /homes}]
  volumes: [{name: homes, persistentVolumeClaim: {claimName: homes}}]
"""


def _plan(name: str, nodes: int = 1) -> LabPlan:
    return plan_lab(LabConfig(name=name, nodes=nodes, spares=0, slurm=None, platform=False))


@pytest.fixture(scope="module")
def bare() -> Iterator[Lab]:
    with Lab.up(_plan(f"bare-{os.getpid()}", nodes=2)) as lab:
        yield lab


def _until(what: str, check: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not {what} after {seconds} s"
        time.sleep(0.1)


def _boot_id(lab: Lab, node: str) -> str:
    return str(lab.get("node", node)["status"]["nodeInfo"]["bootID"])


def _ready(lab: Lab, node: str) -> str:
    conditions = lab.get("node", node)["status"]["conditions"]
    return str(next(each["status"] for each in conditions if each["type"] == "Ready"))


def _command(lab: Lab, *words: str) -> Any:
    """What `everstep lab ... --json` says."""
    argv = [sys.executable, "-m", "everstep.apps.cli", "lab", *words, "--name", lab.layout.name, "--json"]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_everything_of_a_new_lab_runs(bare: Lab) -> None:
    assert troubles(bare) == []
    assert bare.state.phase == "ready"
    assert {node["metadata"]["name"] for node in bare.get("nodes")["items"]} == {"sys-1", "gpu-1", "gpu-2"}


def test_nobody_gets_in_without_a_certificate(bare: Lab) -> None:
    trust = ssl.create_default_context(cafile=str(bare.layout.pki / "ca.crt"))
    with httpx2.Client(verify=trust, trust_env=False) as stranger:
        assert stranger.get(f"{bare.addresses.api}/api/v1/nodes").status_code == 401


def test_a_volume_is_shared_by_all_nodes_and_goes_with_its_claim(bare: Lab) -> None:
    bare.kubectl("apply", "-f", "-", text=_CLAIM + _POD.replace("NODE", "gpu-1") + _POD.replace("NODE", "gpu-2"))
    bare.kubectl("wait", "--for=condition=Ready", "pod/on-gpu-1", "pod/on-gpu-2", "--timeout=60s")
    write = "import pathlib; pathlib.Path('/homes/x').write_text('from gpu-1')"
    bare.kubectl("exec", "on-gpu-1", "--", "python3", "-c", write)
    read = bare.kubectl("exec", "on-gpu-2", "--", "python3", "-c", "print(open('/homes/x').read())")
    assert read.strip() == "from gpu-1"
    folder = bare.layout.shared / bare.get("pvc", "homes")["spec"]["volumeName"]
    assert (folder / "x").exists()
    bare.kubectl("delete", "pod/on-gpu-1", "pod/on-gpu-2", "pvc/homes", "--wait=false")
    _until("deleted with its claim", lambda: not folder.exists() and not bare.get("pv")["items"])


def test_the_readmes_command_installs_everstep_so_that_it_only_watches(bare: Lab) -> None:
    (command,) = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith("helm ")]

    def say(command: str) -> str:
        how = {**os.environ, **bare.environment, "HELM_CACHE_HOME": str(bare.layout.root / "helm")}
        done = subprocess.run(
            command.split(), cwd=PROJECT, env=how, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert "watches this cluster in mode DryRun" in say(command)
        assert bare.get("remediationpolicies", "default")["spec"]["mode"] == "DryRun"
        assert {"nodehealths.everstep.io", "remediations.everstep.io"} <= {
            each["metadata"]["name"] for each in bare.get("crds")["items"]
        }
    finally:
        say("helm uninstall everstep --namespace everstep-system")
    bare.kubectl("delete", "namespace", "everstep-system", "--wait=false")


def test_a_power_cut_ends_every_process_and_the_next_boot_has_a_new_id(bare: Lab) -> None:
    before = _boot_id(bare, "gpu-1")
    assert bare.execute("gpu-1", "cat", "/proc/sys/kernel/random/boot_id").strip() == before
    assert _command(bare, "power-off", "gpu-1") == {"node": "gpu-1", "power": "off", "network": "plugged", "boots": 1}
    with pytest.raises(LabError, match="gpu-1 does not run: `everstep lab power-on gpu-1` boots it"):
        bare.execute("gpu-1", "true")
    assert "gpu-1 is off" in troubles(bare)
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{bare.layout.cgroup}/gpu-1"))
    assert _command(bare, "power-on", "gpu-1")["boots"] == 2
    assert _boot_id(bare, "gpu-1") != before
    assert troubles(bare) == []


def test_the_gateway_borrows_its_address_from_no_machine(bare: Lab) -> None:
    """Or the power of that one machine would take the network of all others with it for a while."""
    command = ["ip", "-json", "-n", bare.layout.netns(), "link", "show"]
    links = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    addresses = {link["ifname"]: link["address"] for link in links}
    ports = {link["ifname"] for link in links if link.get("master") == "br0"}
    assert ports == {"ve-sys-1", "ve-gpu-1", "ve-gpu-2"}
    assert addresses["br0"] not in {addresses[port] for port in ports}


def test_the_kernel_log_is_the_nodes_own_and_new_at_every_boot(bare: Lab) -> None:
    bare.inject("gpu-2", 79)
    assert "Xid" in bare.execute("gpu-2", "cat", "/run/everstep/kmsg")
    assert "Xid" not in bare.execute("gpu-1", "cat", "/run/everstep/kmsg")
    bare.power_off("gpu-2")
    bare.power_on("gpu-2")
    assert "Xid" not in bare.layout.kmsg("gpu-2").read_text()


def test_a_cut_cable_makes_the_node_unreachable_until_it_is_back(bare: Lab) -> None:
    bare.cut("gpu-1")
    assert "gpu-1: its network is cut" in troubles(bare)
    _until("noticed by Kubernetes", lambda: _ready(bare, "gpu-1") == "Unknown")
    bare.restore("gpu-1")
    _until("Ready again", lambda: _ready(bare, "gpu-1") == "True")


def test_a_daemon_that_dies_is_reported_and_started_again(bare: Lab) -> None:
    bare.execute("gpu-1", "sh", "-c", "kill -9 $(pidof kube-proxy)")
    _until("reported", lambda: bare.state.nodes["gpu-1"].daemons["kube-proxy"].exits == 1)
    _until("running again", lambda: bare.state.nodes["gpu-1"].daemons["kube-proxy"].running)
    assert any("kube-proxy ended (-9)" in problem for problem in bare.state.problems)


def test_unknown_nodes_are_named(bare: Lab) -> None:
    with pytest.raises(LabError, match=r"no node 'gpu-9'.*it has sys-1, gpu-1, gpu-2"):
        bare.power_off("gpu-9")


def test_a_second_lab_lives_beside_it_and_leaves_nothing(bare: Lab) -> None:
    with Lab.up(_plan(f"beside-{os.getpid()}")) as second:
        assert second.addresses.index != bare.addresses.index
        assert second.get("nodes")["items"] != bare.get("nodes")["items"]
        link = second.addresses.host_link
        assert len(routes(link)) == 3
        layout = second.layout
    assert traces(layout) == []
    assert routes(link) == []
    assert troubles(bare) == []


def test_a_dead_supervisor_is_noticed_and_down_ends_what_it_left() -> None:
    lab = Lab.up(_plan(f"orphan-{os.getpid()}"))
    try:
        os.kill(lab.state.supervisor.pid, signal.SIGKILL)
        _until("noticed", lambda: any("supervisor is dead" in trouble for trouble in troubles(lab)))
        assert lab.get("nodes")["items"], "the cluster itself does not need the supervisor"
    finally:
        lab.down()
    assert traces(lab.layout) == []


@pytest.mark.parametrize("milestone", ["prepared", "nodes started", "API server ready"])
def test_down_leaves_nothing_when_up_was_killed_half_way(milestone: str) -> None:
    name = f"killed-{os.getpid()}"
    layout = LabLayout.of(name)
    starter = _start(name)
    try:
        _until(milestone, lambda: (state := read_state(layout)) and milestone in state.timings)
        starter.kill()
        state = read_state(layout)
        assert state
        os.kill(state.supervisor.pid, signal.SIGKILL)
    finally:
        starter.kill()
        starter.wait()
        remove(name)
    assert traces(layout) == []


def test_an_interrupted_up_leaves_nothing_by_itself() -> None:
    name = f"cut-{os.getpid()}"
    layout = LabLayout.of(name)
    starter = _start(name)
    try:
        _until("prepared", lambda: (state := read_state(layout)) and "prepared" in state.timings)
        starter.send_signal(signal.SIGINT)
        starter.wait(30)
        assert traces(layout) == []
    finally:
        starter.kill()
        starter.wait()
        remove(name)


def _start(name: str) -> subprocess.Popen[bytes]:
    code = "import sys, msgspec; from everstep.lab.cluster import Lab; from everstep.lab.layout import LabPlan;"
    code += "Lab.up(msgspec.json.decode(sys.argv[1], type=LabPlan))"
    return subprocess.Popen([sys.executable, "-c", code, msgspec.json.encode(_plan(name)).decode()])


def test_a_lab_that_cannot_start_says_why_in_one_line() -> None:
    plan = _plan(f"broken-{os.getpid()}")
    broken = LabPlan(config=plan.config, binaries="/nonexistent", archives=plan.archives)
    try:
        with pytest.raises(LabError) as caught:
            Lab.up(broken)
    finally:
        remove(plan.config.name)
    assert "did not come up" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert traces(LabLayout.of(plan.config.name)) == []
