"""Where a lab keeps everything, and which names and addresses it uses.

A lab is one directory. All that belongs to it can be found from there, or from names that carry the lab's name:
network namespaces `ev-<lab>-<node>`, control groups `everstep/<lab>/...`. The one thing on the host's side is a veth
`evl<index>`; to own that interface is to own the address range `index`, so no lock file is needed between labs.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.lab.errors import LabError

CONTROL = "ctl"  # the namespace of the control plane and the bridge
SYSTEM_NODE = "sys-1"
MAX_LABS = 16
MAX_NODES = 60
NODE_MAX_PODS = 60  # a /26 has 62 addresses, one of them is the node's bridge
SERVICE_RANGE = "10.96.0.0/16"  # lives in iptables of the nodes only, never a route of the host
SERVICE_KUBERNETES = "10.96.0.1"
SERVICE_DNS = "10.96.0.10"
API_PORT = 6443
MACHINE_API_PORT = 7070
COVERED = (Path("/var/lib"), Path("/var/log"), Path("/run"))  # a lab node sees its own directories there

_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
# RFC 2544's benchmarking range: no real network routes it, so a lab cannot hide one of the user's.
_NODE_RANGE = ipaddress.IPv4Network("198.18.0.0/16")
_POD_RANGE = ipaddress.IPv4Network("198.19.0.0/16")


def cache_dir() -> Path:
    """What is built once and shared by all labs: binaries, images, imported image stores."""
    return Path(os.environ.get("EVERSTEP_CACHE") or "~/.cache/everstep").expanduser()


def labs_dir() -> Path:
    """The folder with one directory a lab."""
    return Path(os.environ.get("EVERSTEP_STATE") or "~/.local/state/everstep/labs").expanduser()


class LabConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    `nodes` GPU nodes in service, `spares` warm spares, `gpus` simulated GPUs on each, `slurm` the release whose image
    the nodes hold (None: no Slurm image), `platform` whether Everstep's chart is installed, `repair_seconds` how long a
    retired machine is away.
    """

    name: str = "lab"
    nodes: int = 2
    spares: int = 1
    gpus: int = 2
    slurm: str | None = "24.11"
    pool: str = "main"
    platform: bool = True
    repair_seconds: float = 60.0

    def check(self) -> None:
        """Raises LabError for a request that cannot work."""
        LabLayout.of(self.name)
        if self.nodes < 0 or self.spares < 0 or not 0 <= self.gpus <= 16:
            raise LabError("a lab has 0 or more nodes and spares, and 0 to 16 GPUs a node")
        if self.nodes + self.spares + 1 > MAX_NODES:
            raise LabError(f"a lab has at most {MAX_NODES} nodes, the system node included")

    @property
    def gpu_nodes(self) -> list[str]:
        """Names of the GPU nodes; the spares are the last ones."""
        return [f"gpu-{number}" for number in range(1, self.nodes + self.spares + 1)]

    @property
    def spare_nodes(self) -> list[str]:
        return self.gpu_nodes[self.nodes :]

    @property
    def all_nodes(self) -> list[str]:
        return [SYSTEM_NODE, *self.gpu_nodes]


class LabPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for and what to make it of; written once to `lab.json`.

    `binaries` is the folder that the Go build filled, `archives` the OCI archives of the images.
    """

    config: LabConfig
    binaries: str
    archives: list[str]


@dataclass(frozen=True)
class Addresses:
    """The addresses of lab number `index` (0 to 15)."""

    index: int

    @property
    def host_link(self) -> str:
        """The host's end of the veth to the lab: also the index' claim."""
        return f"evl{self.index}"

    @property
    def host_network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((int(_NODE_RANGE[255 << 8]) + 4 * self.index, 30))

    @property
    def host(self) -> str:
        return str(self.host_network[1])

    @property
    def uplink(self) -> str:
        """The lab's end of the veth to the host."""
        return str(self.host_network[2])

    @property
    def nodes(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((int(_NODE_RANGE[self.index << 8]), 24))

    @property
    def gateway(self) -> str:
        """The bridge: API server, machine API."""
        return str(self.nodes[1])

    @property
    def pods(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network((int(_POD_RANGE[self.index << 12]), 20))

    @property
    def api(self) -> str:
        return f"https://{self.gateway}:{API_PORT}"

    def node(self, number: int) -> str:
        """Address of node `number` (0 is the system node)."""
        return str(self.nodes[11 + number])

    def node_pods(self, number: int) -> ipaddress.IPv4Network:
        return list(self.pods.subnets(new_prefix=26))[number]


@dataclass(frozen=True)
class LabLayout:
    """Paths and kernel names of one lab."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> LabLayout:
        """Raises LabError for what is no name of a lab: `down` of `..` would remove, and kill, what is not a lab's."""
        if not _NAME.fullmatch(name):
            raise LabError(f"lab name {name!r}: use 1 to 20 lower-case letters, digits and dashes, a letter first")
        return cls(name, labs_dir() / name)

    @property
    def plan_file(self) -> Path:
        return self.root / "lab.json"

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def events_file(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "supervisor.log"

    @property
    def socket(self) -> Path:
        return self.root / "lab.sock"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def machine_token(self) -> Path:
        """Bearer token of the machine API (mode 0600)."""
        return self.pki / "machine-token"

    @property
    def shared(self) -> Path:
        """The directory that stands for the file server."""
        return self.root / "shared"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def node(self, node: str) -> Path:
        return self.root / "nodes" / node

    def node_run(self, node: str) -> Path:
        """`/run/everstep` of the node, seen from the host."""
        return self.node(node) / "run"

    def kmsg(self, node: str) -> Path:
        """The node's kernel log (`/run/everstep/kmsg` inside): a new file at every boot."""
        return self.node_run(node) / "kmsg"

    def kubelet(self, node: str) -> Path:
        """The node's `/var/lib/kubelet`, seen from the host (device-plugin sockets included)."""
        return self.node(node) / "lib" / "kubelet"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.pki / f"{user}.kubeconfig"

    def netns(self, node: str = CONTROL) -> str:
        return f"ev-{self.name}-{node}"

    @property
    def cgroup(self) -> str:
        """Relative to each cgroup hierarchy's root."""
        return f"everstep/{self.name}"


def existing_labs() -> list[str]:
    """Names of the labs that have a directory, sorted."""
    root = labs_dir()
    found = [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name)] if root.is_dir() else []
    return sorted(entry.name for entry in found if (entry / "lab.json").exists())
