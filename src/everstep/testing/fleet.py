"""A small fleet on a virtual clock: nodes, pods, agents, machines that come back repaired, and the Slurm on top.

The ports' fakes (``cluster``, ``provider``) read and change this one model, so that what one part does the others see.
Whatever must never happen is noted in ``violations`` at the moment it happens.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from everstep.core.cluster_state import (
    CLAIM_ANNOTATION,
    OUT_OF_SERVICE_LABEL,
    POOL_LABEL,
    SPARE_LABEL,
    SPARE_TAINT,
    NodeCondition,
    NodeView,
    PodView,
)
from everstep.core.health import Fault, FaultClass, FirstAction, Gpu, NodeReport, Severity, Verdict
from everstep.core.machine_state import Operation, OperationState
from everstep.core.occurrences import Occurrence
from everstep.testing.slurm_model import SlurmModel
from everstep.testing.virtual_clock import VirtualClock

POOL = "train"
NOT_READY_AFTER = 40.0  # Kubernetes' node-monitor-grace-period
WORKER_START = 1.5
WORKER_STOP = 0.5
EVICTION_SECONDS = 1.0
HEARTBEAT_EVERY = 10.0


@dataclass(slots=True)
class FleetNode:
    """One node and the machine under it; ``alive`` is the machine's power."""

    name: str
    gpus: int
    uid: str
    boot: str
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    unschedulable: bool = False
    alive: bool = True
    ready: bool | None = True
    lost_gpus: int = 0
    faults: tuple[Fault, ...] = ()
    heartbeat: float = 0.0
    worker: bool = False
    worker_planned: bool = False
    retired: int = 0
    conditions: dict[str, NodeCondition] = field(default_factory=dict)
    history: tuple[Occurrence, ...] = ()
    inherited: tuple[Occurrence, ...] = ()


@dataclass(slots=True)
class Fleet:
    """Attributes:
    repair_seconds: from the hand-over to the machine's return as a spare; None: it never returns.
    pods: by uid.
    operations: the provider's memory.
    """

    clock: VirtualClock
    slurm: SlurmModel
    repair_seconds: float | None = 60.0
    nodes: dict[str, FleetNode] = field(default_factory=dict)
    pods: dict[str, PodView] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    evictions: list[str] = field(default_factory=list)
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def add_node(self, name: str, *, spare: bool = False, gpus: int = 1) -> FleetNode:
        node = FleetNode(name, gpus, f"uid-{next(self._ids)}", f"boot-{next(self._ids)}")
        if spare:
            node.labels[SPARE_LABEL] = POOL
            node.taints = (SPARE_TAINT,)
        else:
            node.labels[POOL_LABEL] = POOL
        self.nodes[name] = node
        self.add_pod(f"agent-{name}", name, owner="DaemonSet")
        if not spare:
            self._start_worker(node)
        return node

    def add_pod(self, name: str, node: str, owner: str = "ReplicaSet", labels: dict[str, str] | None = None) -> None:
        uid = f"pod-{next(self._ids)}"
        self.pods[uid] = PodView("default", name, uid, node, labels or {}, owner_kind=owner)

    def break_gpu(self, name: str, kind: str = "xid", code: str = "79") -> None:
        """The agent reports the fault at once."""
        node, now = self.nodes[name], self.clock.now()
        key = f"{kind}:{code}@serial-{node.boot}"
        node.faults = (
            *node.faults,
            Fault(
                key, kind, code, FaultClass.HARDWARE, Severity.CRITICAL, FirstAction.REBOOT_NODE,
                f"{kind.upper()} {code}", first_seen=now, last_seen=now, boot_id=node.boot,
            ),
        )  # fmt: skip
        node.lost_gpus = 1

    def power_off(self, name: str) -> None:
        """The machine dies: no heartbeat, no kubelet, no slurmd."""
        node = self.nodes[name]
        if not node.alive:
            return
        node.heartbeat = self._heartbeat(node)
        node.alive = False
        if name in self.slurm.nodes:
            self.slurm.power_off(name)
        boot = node.boot

        def not_ready() -> None:
            if self.nodes.get(name) is node and node.boot == boot and not node.alive:
                node.ready = None

        self.clock.plan(NOT_READY_AFTER, not_ready)

    def come_back(self, name: str) -> None:
        """The repaired machine boots as a warm spare: a new node object, a new boot."""
        old = self.nodes.get(name)
        for uid in [uid for uid, pod in self.pods.items() if pod.node == name]:
            del self.pods[uid]
        self.add_node(name, spare=True, gpus=old.gpus if old else 1)

    def settle(self) -> None:
        """What the Slurm operator does: a worker pod on every node in service, none anywhere else."""
        for node in self.nodes.values():
            wanted = POOL_LABEL in node.labels and OUT_OF_SERVICE_LABEL not in node.labels and node.alive
            if wanted and not node.worker and not node.worker_planned and not node.unschedulable:
                node.worker_planned = True
                self.clock.plan(WORKER_START, lambda node=node: self._start_worker(node))  # type: ignore[misc]
            elif not wanted and node.worker:
                self._stop_worker(node)

    def view(self, node: FleetNode) -> NodeView:
        return NodeView(
            name=node.name,
            uid=node.uid,
            resource_version="1",
            ready=node.ready,
            unschedulable=node.unschedulable,
            boot_id=node.boot,
            labels=dict(node.labels),
            annotations=dict(node.annotations),
            taints=node.taints,
            gpus_allocatable=node.gpus - node.lost_gpus,
            gpus_capacity=node.gpus,
            conditions=tuple(node.conditions.values()),
        )

    def report(self, node: FleetNode) -> NodeReport:
        return NodeReport(
            node=node.name,
            verdict=Verdict.FAULTY if node.faults else Verdict.HEALTHY,
            boot_id=node.boot,
            faults=node.faults,
            gpus=tuple(Gpu(i, f"uuid-{node.boot}-{i}", f"serial-{node.boot}-{i}", f"{i}") for i in range(node.gpus)),
            heartbeat=self._heartbeat(node),
            history=node.history,
            inherited=node.inherited,
        )

    def evict(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.terminating:
            return
        self.evictions.append(pod.name)
        if pod.name.startswith("slurmd-") and self._jobs_on(pod.node):
            self.violations.append(f"the Slurm worker on {pod.node} was evicted under a job")
        self.pods[uid] = replace(pod, terminating=True)
        self.clock.plan(EVICTION_SECONDS, lambda: self._gone(uid))

    def retire(self, operation: str, machine: str) -> None:
        """The machine goes away now and comes back repaired later."""
        if operation in self.operations:
            return
        node = self.nodes[machine]
        self.operations[operation] = Operation(operation, machine, "retire", OperationState.ACCEPTED)
        node.retired += 1
        if node.retired > 1:
            self.violations.append(f"machine {machine} was retired twice in one life")
        if POOL_LABEL in node.labels or SPARE_LABEL in node.labels:
            self.violations.append(f"machine {machine} was retired while its node was in service")
        if self._jobs_on(machine) and node.alive:
            self.violations.append(f"machine {machine} was retired under a job")
        if node.alive and any(p.node == machine and p.owner_kind != "DaemonSet" for p in self.pods.values()):
            self.violations.append(f"machine {machine} was retired with pods on it")
        self.clock.plan(1.0, lambda: self.power_off(machine))
        if self.repair_seconds is not None:
            self.clock.plan(self.repair_seconds, lambda: self._repaired(operation, machine))

    def _repaired(self, operation: str, machine: str) -> None:
        self.operations[operation] = replace(self.operations[operation], state=OperationState.DONE)
        self.come_back(machine)

    def out_of_service(self) -> list[str]:
        """Nodes that healing took out."""
        return [
            n.name for n in self.nodes.values()
            if OUT_OF_SERVICE_LABEL in n.labels or (POOL_LABEL in n.labels and n.unschedulable)
        ]  # fmt: skip

    def in_service(self) -> list[str]:
        return [n.name for n in self.nodes.values() if n.labels.get(POOL_LABEL) == POOL and not n.unschedulable]

    def claims(self, remediation: str) -> list[str]:
        return [n.name for n in self.nodes.values() if n.annotations.get(CLAIM_ANNOTATION) == remediation]

    def _heartbeat(self, node: FleetNode) -> float:
        now = self.clock.now()
        return now - now % HEARTBEAT_EVERY if node.alive else node.heartbeat

    def _start_worker(self, node: FleetNode) -> None:
        node.worker_planned = False
        if self.nodes.get(node.name) is not node or not node.alive or POOL_LABEL not in node.labels:
            return
        node.worker = True
        self.add_pod(f"slurmd-{node.name}", node.name, owner="SlurmCluster")
        if node.name in self.slurm.nodes:
            self.slurm.power_on(node.name)
        else:
            self.slurm.add_nodes(node.name, gpus=node.gpus)

    def _stop_worker(self, node: FleetNode) -> None:
        node.worker = False
        if self._jobs_on(node.name) and node.alive:
            self.violations.append(f"the Slurm worker on {node.name} was stopped under a job")
        if node.name in self.slurm.nodes:
            self.slurm.power_off(node.name)
        for uid in [u for u, p in self.pods.items() if p.node == node.name and p.name.startswith("slurmd-")]:
            self.clock.plan(WORKER_STOP, lambda uid=uid: self._gone(uid))  # type: ignore[misc]

    def _jobs_on(self, node: str) -> list[str]:
        """What really runs there, whether or not Slurm's controller can be asked."""
        return [job.id for job in self.slurm.jobs.values() if job.view().active and node in job.nodes]

    def _gone(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is not None and pod.name.startswith("slurmd-") and pod.node in self.nodes:
            node = self.nodes[pod.node]
            if node.worker:
                node.worker = False
                if node.name in self.slurm.nodes:
                    self.slurm.power_off(node.name)
