"""SlurmCluster: a whole Slurm cluster as one object."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from everstep.api.meta import Condition, Moment
from everstep.api.schema import doc, map_of

_NAME = "^[a-z][a-z0-9-]*$"
# The API server answers a claim with a size that is no quantity as if it had failed itself.
_QUANTITY = "^[0-9]+([.][0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


class ProcessTracking(StrEnum):
    """How slurmd finds every process of a job when it ends one."""

    CGROUP = "Cgroup"
    LINUX_PROC = "LinuxProc"


class Selector(msgspec.Struct, rename="camel", omit_defaults=True):
    """Which Kubernetes nodes are meant."""

    match_labels: Annotated[dict[str, str], doc("Labels that a node must carry, all of them.")]


class Gpus(msgspec.Struct, rename="camel", omit_defaults=True):
    """GPUs of each node of a pool, given to Slurm as GRES."""

    count: Annotated[int, doc("GPUs on each node; the pod of slurmd requests all of them.", minimum=0, maximum=64)]


class NodePool(msgspec.Struct, rename="camel", omit_defaults=True):
    """Kubernetes nodes that are Slurm nodes: one slurmd on each, under the name of the Kubernetes node."""

    name: Annotated[str, doc("Name of the pool; a Slurm feature of its nodes.", maxLength=20, pattern=_NAME)]
    selector: Annotated[Selector, doc("Which nodes belong to the pool.")]
    gpus: Annotated[Gpus | None, doc("GPUs of each node. Absent: a pool without GPUs.")] = None
    cpus: Annotated[int | None, doc("CPUs that Slurm counts on each node. Absent: those it finds.", minimum=1)] = None
    memory_mib: Annotated[
        int | None, doc("Memory that Slurm counts on each node, in MiB. Absent: what it finds.", minimum=1)
    ] = None


class Partition(msgspec.Struct, rename="camel", omit_defaults=True):
    """A queue of jobs over some pools."""

    name: Annotated[str, doc("Name of the partition.", maxLength=40, pattern="^[A-Za-z][A-Za-z0-9_-]*$")]
    node_pools: Annotated[list[str], doc("Names of the pools. Empty: all of them.")] = []
    default: Annotated[bool, doc("Jobs that name no partition go here.")] = False
    max_time: Annotated[
        str, doc("Longest time of a job in Slurm's form (days-hours:minutes:seconds) or INFINITE.", maxLength=20)
    ] = "INFINITE"


class User(msgspec.Struct, rename="camel", omit_defaults=True):
    """Somebody who may log in and submit jobs. Files on shared storage belong to the number, so it never changes."""

    name: Annotated[str, doc("Login name.", pattern="^[a-z_][a-z0-9_-]*$", maxLength=32)]
    uid: Annotated[int, doc("User id.", minimum=1000, maximum=60000)]
    gid: Annotated[int | None, doc("Group id. Absent: the user id.", minimum=1000, maximum=60000)] = None
    ssh_keys: Annotated[list[str], doc("Public keys, each a line as in authorized_keys.")] = []


class Volume(msgspec.Struct, rename="camel", omit_defaults=True):
    """A claim for a volume."""

    storage_class_name: Annotated[
        str | None, doc("Storage class that can be mounted by many nodes. Absent: the default class.")
    ] = None
    size: Annotated[str, doc("Capacity to ask for, as a Kubernetes quantity.", pattern=_QUANTITY)] = "100Gi"


class Storage(msgspec.Struct, rename="camel", omit_defaults=True):
    """What outlives pods. Neither volume is deleted with the SlurmCluster."""

    home: Annotated[Volume, doc("The users' home directories, on every node.")] = msgspec.field(default_factory=Volume)
    state: Annotated[
        Volume | None, doc("Slurm's own state: jobs and nodes. Absent: 1Gi of the class of the homes.")
    ] = None


class Login(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where users log in by SSH."""

    node_port: Annotated[
        int | None, doc("Port on every node. Absent: one is chosen.", minimum=30000, maximum=32767)
    ] = None


class Config(msgspec.Struct, rename="camel", omit_defaults=True):
    """Slurm's own configuration, beyond what follows from the rest of the object."""

    slurm: Annotated[
        dict[str, str],
        doc(
            "Further keys of slurm.conf. Keys that the operator owns or Slurm does not know are refused: ConfigApplied."
        ),
    ] = {}
    process_tracking: Annotated[
        ProcessTracking, doc("Cgroup, or LinuxProc where slurmd may not make cgroups (it can lose a job's orphans).")
    ] = ProcessTracking.CGROUP


class SlurmClusterSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """A whole Slurm cluster."""

    slurm_version: Annotated[str, doc("Release of Slurm.", enum=["22.05", "24.11", "26.05"])]
    node_pools: Annotated[list[NodePool], map_of("Nodes of the cluster.", "name", minItems=1, maxItems=32)]
    image: Annotated[str, doc("Image of every Slurm daemon. Empty: the operator's, by slurmVersion.")] = ""
    partitions: Annotated[
        list[Partition], map_of("Queues. Empty: one named main over all pools.", "name", maxItems=64)
    ] = []
    users: Annotated[list[User], map_of("Who may log in.", "name", maxItems=2000)] = []
    storage: Annotated[Storage, doc("What outlives pods.")] = msgspec.field(default_factory=Storage)
    login: Annotated[Login, doc("Where users log in.")] = msgspec.field(default_factory=Login)
    config: Annotated[Config, doc("Slurm's own configuration.")] = msgspec.field(default_factory=Config)


class LoginStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """Where users log in."""

    endpoint: Annotated[str, doc("host:port of SSH.")] = ""


class NodesStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """Slurm's nodes."""

    desired: Annotated[int, doc("Kubernetes nodes that should run slurmd.")] = 0
    ready: Annotated[int, doc("Of these, nodes whose slurmd has registered.")] = 0


class Issue(msgspec.Struct, rename="camel", omit_defaults=True):
    """Something that keeps the cluster from being what was asked for."""

    code: Annotated[str, doc("One word, for programs.")]
    message: Annotated[str, doc("One sentence, for people.")]
    since: Annotated[Moment | None, doc("When it was first seen.")] = None


class SlurmClusterStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the operator sees."""

    observed_generation: Annotated[int, doc("metadata.generation that this speaks about.")] = 0
    login: Annotated[LoginStatus, doc("Where users log in.")] = msgspec.field(default_factory=LoginStatus)
    nodes: Annotated[NodesStatus, doc("Slurm's nodes.")] = msgspec.field(default_factory=NodesStatus)
    node_summary: Annotated[str, doc("ready/desired, for the screen.")] = ""
    message: Annotated[str, doc("The state in one sentence.")] = ""
    conditions: Annotated[list[Condition], map_of("Aspects of the state.", "type")] = []
    issues: Annotated[list[Issue], map_of("What is wrong.", "code")] = []
