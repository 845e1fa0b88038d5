"""Where the operator mounts things in a Slurm pod, and which variables it sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from everstep.core.errors import InvalidInput

CONFIG = Path("/etc/everstep/slurm")  # slurm.conf, gres.conf, cgroup.conf, client.conf
KEYS = Path("/etc/everstep/keys")  # jwt.key and, by release, slurm.key or munge.key
SLURM_FOLDER = Path("/etc/slurm")
SACK_FOLDER = Path("/run/slurm")
MUNGE_FOLDER = Path("/run/munge")
MUNGE_SOCKET = MUNGE_FOLDER / "munge.socket.2"
# Its presence tells the probes that this node's slurmd has registered.
REGISTERED = Path("/run/everstep-registered")


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """What the operator tells a worker.

    Attributes:
        node: Slurm's name of the node, which is Kubernetes' name of it.
        address: the pod's IP.
        controller: host name of slurmctld.
        conf: what slurmd says about the node (``Feature=main Gres=gpu:2``).
    """

    node: str
    address: str
    controller: str
    conf: str

    @classmethod
    def from_environment(cls) -> WorkerPod:
        """Raises InvalidInput when a variable is missing."""
        names = ("NODE_NAME", "POD_IP", "EVERSTEP_SLURM_CONTROLLER", "EVERSTEP_SLURM_NODE_CONF")
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise InvalidInput(f"{', '.join(missing)} must be set; the operator does so")
        return cls(*(os.environ[name] for name in names))
