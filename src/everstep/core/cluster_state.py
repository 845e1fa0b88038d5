"""Read-only views of Kubernetes objects: only the fields that decisions need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

POOL_LABEL = "everstep.io/pool"
SPARE_LABEL = "everstep.io/spare-for"
SPARE_TAINT = "everstep.io/spare"
CLAIM_ANNOTATION = "everstep.io/claimed-by"
OUT_OF_SERVICE_LABEL = "everstep.io/out-of-service"
OPT_OUT_LABEL = "everstep.io/do-not-replace"
SLURM_CLUSTER_LABEL = "everstep.io/slurm-cluster"  # on every pod of a Slurm cluster that the operator runs
GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """One entry of a node's ``.status.conditions``, whoever wrote it.

    Attributes:
        status: ``True``, ``False`` or ``Unknown``.
        reason: one word in CamelCase.
        message: one sentence.
        since: Unix seconds of its last transition; 0.0 when it does not say.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One Kubernetes node.

    Attributes:
        taints: keys of its taints.
        conditions: all of them, Ready too.
        ready: ``True``/``False`` as the node says; None when the cluster does not know (``Unknown``).
        gpus_allocatable: healthy GPUs that the device plugin offers.
        gpus_capacity: GPUs that the device plugin knows.
        created: Unix seconds.
    """

    name: str
    uid: str
    resource_version: str
    ready: bool | None
    unschedulable: bool
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    gpus_allocatable: int = 0
    gpus_capacity: int = 0
    created: float = 0.0
    conditions: tuple[NodeCondition, ...] = ()

    def condition(self, type_: str) -> NodeCondition | None:
        return next((each for each in self.conditions if each.type == type_), None)

    @property
    def pool(self) -> str | None:
        return self.labels.get(POOL_LABEL)

    @property
    def spare_for(self) -> str | None:
        return self.labels.get(SPARE_LABEL)

    @property
    def claimed_by(self) -> str | None:
        return self.annotations.get(CLAIM_ANNOTATION)

    @property
    def out_of_service(self) -> str | None:
        return self.labels.get(OUT_OF_SERVICE_LABEL)


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod on a node.

    Attributes:
        owner_kind: kind of the controlling owner (``DaemonSet``, ``Node`` for mirror pods, ...), "" without one.
        finished: phase is Succeeded or Failed.
        terminating: has a deletion timestamp.
    """

    namespace: str
    name: str
    uid: str
    node: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_kind: str = ""
    finished: bool = False
    terminating: bool = False
