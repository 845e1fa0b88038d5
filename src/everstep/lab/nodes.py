"""One lab node: its files, its mounts, its daemons, and its power switch.

A node is a network, mount, pid, uts and cgroup namespace with a containerd, a kubelet and a kube-proxy of its own.
Its first process is init.py; to kill that is to cut the power.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from everstep.lab import cgroups
from everstep.lab.controlplane import Daemon, control_daemons
from everstep.lab.layout import CONTROL, NODE_MAX_PODS, SERVICE_DNS, Addresses, LabLayout

_INIT = Path(__file__).with_name("init.py")
_CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
# Where programs inside a node find its own hardware: the host's /dev/kmsg is not the node's.
# What `everstep check` goes by there; the agent's pod has the same from its chart.
NODE_ENVIRONMENT = {
    "EVERSTEP_KMSG": "/run/everstep/kmsg",
    "EVERSTEP_NVML_LIBRARY": "/run/everstep/driver",
    "EVERSTEP_PCI_DEVICES": "/run/everstep/pci",
    "EVERSTEP_BOOT_ID": "/run/everstep/boot_id",
}


@dataclass(frozen=True)
class NodeParts:
    """What it takes to boot a node: `number` counts from 0 (the system node), `binaries` is a folder."""

    layout: LabLayout
    addresses: Addresses
    binaries: Path
    node: str
    number: int

    @property
    def root(self) -> Path:
        return self.layout.node(self.node)


def write_files(parts: NodeParts, labels: dict[str, str], taints: list[dict[str, str]]) -> None:
    """Writes the node's configuration; labels and taints hold for its first registration."""
    root = parts.root
    for folder in ("lib/kubelet", "lib/cni", "lib/dbus", "varlog", "log", "run", "cni", "plugins"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{parts.node}.{parts.layout.name}").hex + "\n"
    (root / "machine-id").write_text(machine_id)
    (root / "lib/dbus/machine-id").write_text(machine_id)
    (root / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    (root / "cni" / "10-lab.conflist").write_text(json.dumps(_cni(parts)))
    (root / "containerd.toml").write_text(_CONTAINERD.format(root=root))
    (root / "kubelet.yaml").write_text(json.dumps(_kubelet(parts, taints), indent=1))
    (root / "labels").write_text(",".join(f"{key}={value}" for key, value in labels.items()))


def _cni(parts: NodeParts) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam",
                    "ranges": [[{"subnet": str(parts.addresses.node_pods(parts.number))}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


_CONTAINERD = """version = 3
root = "{root}/containerd"
state = "/run/containerd"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'docker.io/everstep/pause:dev'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/usr/lib/cni', '/opt/cni/bin']
    conf_dir = '{root}/cni'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
"""


def _kubelet(parts: NodeParts, taints: list[dict[str, str]]) -> dict[str, object]:
    pki = parts.layout.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": parts.addresses.node(parts.number),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{_CONTAINERD_SOCKET}",
        "clusterDomain": "cluster.local",
        "clusterDNS": [SERVICE_DNS],
        "resolvConf": str(parts.root / "resolv.conf"),
        "tlsCertFile": str(pki / f"{parts.node}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{parts.node}.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "volumePluginDir": str(parts.root / "plugins"),
        "maxPods": NODE_MAX_PODS,
        # A GPU that comes or breaks shows on the Node within a second, not after the usual ten; that costs nothing.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "1m",
        "registerWithTaints": taints,
        # A lab image is there from the start; several pods of a node may start at the same time.
        "serializeImagePulls": False,
        "maxParallelImagePulls": 5,
    }


def _gate(layout: LabLayout) -> Path:
    return layout.control / "ready"


def open_gate(layout: LabLayout) -> None:
    """Lets kubelets and proxies start. Before the API server is ready they would only retry, later and later."""
    _gate(layout).touch()


def _node_daemons(parts: NodeParts) -> list[Daemon]:
    root, layout = parts.root, parts.layout
    programs: list[tuple[str, list[str], list[str]]] = [
        ("containerd", ["containerd", "--config", str(root / "containerd.toml")], []),
        (
            "kubelet",
            [
                "kubelet",
                f"--kubeconfig={layout.kubeconfig(parts.node)}",
                f"--config={root / 'kubelet.yaml'}",
                "--root-dir=/var/lib/kubelet",
                f"--hostname-override={parts.node}",
                f"--node-ip={parts.addresses.node(parts.number)}",
                f"--node-labels={(root / 'labels').read_text()}",
            ],
            [str(_gate(layout)), f"cri:{_CONTAINERD_SOCKET}"],
        ),
        (
            "kube-proxy",
            [
                "kube-proxy",
                f"--kubeconfig={layout.kubeconfig('proxy')}",
                f"--hostname-override={parts.node}",
                "--proxy-mode=iptables",
                f"--cluster-cidr={parts.addresses.pods}",
                # 0 leaves the kernel's settings alone: they belong to the host.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
                "--healthz-bind-address=127.0.0.1:10256",
            ],
            [str(_gate(layout))],
        ),
    ]
    logs = root / "log"
    return [
        {"name": name, "argv": argv, "after": after, "log": str(logs / f"{name}.log")} for name, argv, after in programs
    ]


def _spec(
    node: str, layout: LabLayout, binaries: Path, mounts: list[list[str]], daemons: list[Daemon]
) -> dict[str, object]:
    return {
        "hostname": node,
        "cgroup": f"{layout.cgroup}/{node}",
        "hierarchies": {str(root): kind for root, kind in cgroups.hierarchies().items()},
        "mounts": mounts,
        "daemons": daemons,
        "environment": {
            "PATH": f"{binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "GOMAXPROCS": "2",
        },
    }


def node_spec(parts: NodeParts, boot_id: str) -> dict[str, object]:
    """What init.py needs to boot the node once; its kernel log was begun by whoever made the boot id."""
    root, layout = parts.root, parts.layout
    (root / "boot-id").write_text(boot_id + "\n")
    layout.shared.mkdir(exist_ok=True)
    mounts = [
        ["--bind", str(root / "lib"), "/var/lib"],
        ["--make-rshared", "/var/lib"],
        ["--bind", str(root / "varlog"), "/var/log"],
        ["-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"],
        ["mkdir", "/run/everstep"],
        ["--bind", str(layout.node_run(parts.node)), "/run/everstep"],
        ["mkdir", "/run/file-server"],
        ["--bind", str(layout.shared), "/run/file-server"],
        ["--bind", str(root / "boot-id"), "/proc/sys/kernel/random/boot_id"],
    ]
    if Path("/etc/machine-id").exists():  # else the node's own /var/lib/dbus/machine-id is what counts
        mounts.append(["--bind", str(root / "machine-id"), "/etc/machine-id"])
    return _spec(parts.node, layout, parts.binaries, mounts, _node_daemons(parts))


def control_spec(layout: LabLayout, addresses: Addresses, binaries: Path) -> dict[str, object]:
    (layout.control / "log").mkdir(parents=True, exist_ok=True)
    return _spec(CONTROL, layout, binaries, [], control_daemons(layout, addresses))


async def boot(
    layout: LabLayout, node: str, spec: dict[str, object], log: Path, held: int | None
) -> asyncio.subprocess.Process:
    """Starts init.py in new namespaces; its stdout tells what becomes of the daemons.

    The process returned is the one to kill: it takes init, and so every process of the node, with it. `held` is a file
    descriptor that stays open for as long as init lives (imagestore.hold).
    """
    path = log.with_suffix(".spec.json")
    path.write_text(json.dumps(spec, indent=1))
    await asyncio.to_thread(cgroups.create, f"{layout.cgroup}/{node}")
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            "nsenter", f"--net=/run/netns/{layout.netns(node)}",
            "unshare", "--mount", "--propagation", "private", "--uts",
            "--pid", "--mount-proc", "--fork", "--kill-child",
            sys.executable, "-I", "-S", str(_INIT), str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            pass_fds=(held,) if held is not None else (),
        )  # fmt: skip
