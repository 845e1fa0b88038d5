"""One SlurmCluster for the tests of everything that follows from it."""

from __future__ import annotations

from typing import Any

import msgspec

from everstep.api.slurm_cluster import SlurmClusterSpec
from everstep.apps.slurm_operator.desired import Cluster, Settings

SETTINGS = Settings("docker.io/everstep/slurm", ("system:serviceaccount:everstep-system:everstep-controller",))

SPEC: dict[str, Any] = {
    "slurmVersion": "24.11",
    "nodePools": [
        {"name": "main", "selector": {"matchLabels": {"everstep.io/pool": "main"}}, "gpus": {"count": 2}},
    ],
    "users": [{"name": "ada", "uid": 2001, "sshKeys": ["ssh-ed25519 AAAAC3Nza ada@laptop"]}],
    "storage": {"home": {"storageClassName": "shared", "size": "10Gi"}},
}


def cluster(**change: Any) -> Cluster:
    """The example with some fields of its spec replaced."""
    return Cluster("slurm", "demo", "uid-1", 3, msgspec.convert({**SPEC, **change}, SlurmClusterSpec))
