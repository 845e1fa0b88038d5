"""What the lab tells its hardware: which machines there are, and where each node keeps what the hardware touches."""

from __future__ import annotations

from typing import Protocol

import msgspec

RECORDS_FILE = "machines.json"
CONTROL_SOCKET = "hardware.sock"


class Power(Protocol):
    """How the lab switches a machine; both must be safe to repeat, because a crash can fall between act and record."""

    async def power_off(self, node: str) -> None:
        """Ends every process of the node at once; a node that is off already is fine."""
        ...

    async def power_on(self, node: str, as_spare_of: str | None) -> None:
        """Starts the node; with ``as_spare_of`` it joins the cluster as a warm spare of that pool."""
        ...


class MachineSettings(msgspec.Struct, frozen=True):
    """One machine and the paths of the node on it, as the host sees them.

    Attributes:
        name: node name.
        gpus: number of GPUs; 0 for a node that only carries control pods.
        pool: pool that it serves or stands by for; None when it is in none.
        run_directory: the node sees it as ``/run/everstep``; gets ``kmsg``, ``gpus.json`` and ``boot_id``.
        kubelet_directory: the node's ``/var/lib/kubelet``.
        pid_file: the lab writes the host pid of the node's first process here.
    """

    name: str
    gpus: int
    run_directory: str
    kubelet_directory: str
    pid_file: str
    pool: str | None = None


class HardwareSettings(msgspec.Struct, frozen=True):
    """The whole hardware of one lab.

    Attributes:
        lab: name of the lab.
        directory: the lab's directory; records and the control socket live in it.
        api_host, api_port: where the machine API listens, inside ``api_namespace``.
        api_namespace: path of a network namespace, ``/run/netns/X``; None for the caller's own.
        token_file: bearer token of the machine API; written with mode 0600 when it does not exist.
        repair_seconds: how long a retired machine stays away.
        sample_seconds: how often GPUs are sampled.
    """

    lab: str
    directory: str
    machines: tuple[MachineSettings, ...]
    api_host: str
    token_file: str
    api_port: int = 7070
    api_namespace: str | None = None
    repair_seconds: float = 60.0
    sample_seconds: float = 1.0
