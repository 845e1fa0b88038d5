"""Asks for a Slurm cluster: fills in what the Kubernetes cluster itself can tell, applies the object, waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.verbs import AlreadyExists, Verbs
from everstep.adapters.kube.views import Node
from everstep.api.meta import API_VERSION
from everstep.api.slurm_cluster import (
    Config,
    Gpus,
    NodePool,
    Partition,
    ProcessTracking,
    Selector,
    SlurmClusterSpec,
    SlurmClusterStatus,
    Storage,
    User,
    Volume,
)
from everstep.core.cluster_state import GPU_RESOURCE, POOL_LABEL
from everstep.core.errors import InvalidInput, NotFound, Unreachable
from everstep.lab.storage import PROVISIONER as LAB_FILE_SERVER

MANAGER = "everstep-cli"
FIRST_UID = 2001
_PAUSE = 0.2


class _Items(msgspec.Struct):
    items: list[dict[str, Any]]


class _Nodes(msgspec.Struct):
    items: list[Node]


class _Meta(msgspec.Struct, rename="camel"):
    generation: int = 0


class _Object(msgspec.Struct):
    metadata: _Meta
    spec: SlurmClusterSpec
    status: SlurmClusterStatus = msgspec.field(default_factory=SlurmClusterStatus)


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for; ``gpus`` None means what the nodes offer."""

    namespace: str
    name: str
    version: str
    pools: tuple[str, ...]
    users: tuple[tuple[str, int | None, tuple[str, ...]], ...]
    gpus: int | None
    storage_class: str | None
    size: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a SlurmCluster says of itself."""

    namespace: str
    name: str
    spec: SlurmClusterSpec
    status: SlurmClusterStatus
    current: bool

    def is_true(self, condition: str) -> bool:
        """Whether a condition holds for what the object asks now."""
        return self.current and any(c.type == condition and c.status == "True" for c in self.status.conditions)

    @property
    def ready(self) -> bool:
        return self.is_true("Ready")

    def as_json(self) -> str:
        """One line: namespace, name, ready, and the status as it is."""
        seen = {"namespace": self.namespace, "name": self.name, "ready": self.ready, "status": self.status}
        return msgspec.json.encode(seen).decode()

    def as_text(self) -> str:
        """A few lines for people, the last one ready to paste."""
        lines = [f"SlurmCluster {self.namespace}/{self.name}: {self.status.message or 'asked for'}"]
        lines += [f"  {c.type:<16} {c.status:<6} {c.message}" for c in self.status.conditions]
        host, _, port = self.status.login.endpoint.rpartition(":")
        lines += [f"  ssh -p {port} {user.name}@{host}" for user in self.spec.users if host]
        return "\n".join(lines)


def read_user(text: str) -> tuple[str, int | None, tuple[str, ...]]:
    """``NAME:FILE`` or ``NAME:UID:FILE`` -> (name, uid or None, keys). Raises InvalidInput."""
    name, _, rest = text.partition(":")
    number, _, path = rest.partition(":")
    uid = int(number) if path and number.isdigit() else None
    file = Path(path if uid is not None else rest).expanduser()
    if not name or not rest:
        raise InvalidInput(f"--user {text!r}: write NAME:FILE, where the file holds public SSH keys")
    try:
        keys = tuple(k.strip() for k in file.read_text().splitlines() if k.strip() and not k.startswith("#"))
    except (OSError, UnicodeDecodeError) as why:
        raise InvalidInput(f"--user {name}: cannot read the public keys: {why}") from why
    if not keys or any("PRIVATE KEY" in key for key in keys):
        raise InvalidInput(f"--user {name}: {file} holds no public key; give the .pub file")
    return name, uid, keys


async def create_cluster(
    kubeconfig: Path | None, request: Request, wait: float | None, tell: Callable[[str], None]
) -> Said:
    """Applies the object and, with ``wait`` seconds, waits until every node is in Slurm.

    Raises EverstepError: InvalidInput for what cannot be, Unreachable when the time is over.
    """
    async with connect(kubeconfig) as http:
        verbs = Verbs(http)
        spec = await _spec(verbs, request)
        body = {
            "apiVersion": API_VERSION,
            "kind": "SlurmCluster",
            "metadata": {"name": request.name, "namespace": request.namespace},
            "spec": msgspec.to_builtins(spec),
        }
        await _ensure_namespace(verbs, request.namespace)
        await verbs.apply(_path(request.namespace, request.name), body, MANAGER)
        if wait is None:
            return await _read(verbs, request.namespace, request.name)
        return await _wait(verbs, request, wait, tell)


async def read_cluster(kubeconfig: Path | None, namespace: str, name: str) -> Said:
    """Raises EverstepError."""
    async with connect(kubeconfig) as http:
        return await _read(Verbs(http), namespace, name)


async def _wait(verbs: Verbs, request: Request, seconds: float, tell: Callable[[str], None]) -> Said:
    deadline, shown = time.monotonic() + seconds, ""
    while True:
        said = await _read(verbs, request.namespace, request.name)
        if said.ready and said.is_true("NodesReady"):
            return said
        refused = next((c for c in said.status.conditions if c.type == "ConfigApplied" and c.status == "False"), None)
        if said.current and refused is not None:
            raise InvalidInput(refused.message)
        message = said.status.message or "waiting for the operator (is Everstep installed?)"
        if time.monotonic() > deadline:
            raise Unreachable(f"SlurmCluster {request.name} is not ready after {seconds:.0f} s: {message}")
        if message != shown:
            tell(message)
            shown = message
        await asyncio.sleep(_PAUSE)


async def _read(verbs: Verbs, namespace: str, name: str) -> Said:
    found = await verbs.get(_path(namespace, name), _Object)
    current = found.status.observed_generation == found.metadata.generation
    return Said(namespace, name, found.spec, found.status, current)


def _path(namespace: str, name: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/slurmclusters/{name}"


async def _ensure_namespace(verbs: Verbs, namespace: str) -> None:
    try:
        await verbs.get(f"/api/v1/namespaces/{namespace}", dict[str, Any])
    except NotFound:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        try:
            await verbs.create("/api/v1/namespaces", body)
        except AlreadyExists:
            return


async def _spec(verbs: Verbs, request: Request) -> SlurmClusterSpec:
    storage_class, in_lab = await _storage_class(verbs, request.storage_class)
    return SlurmClusterSpec(
        slurm_version=request.version,
        node_pools=[await _pool(verbs, pool, request.gpus) for pool in request.pools],
        partitions=[Partition("main", list(request.pools), default=True)],
        users=await _users(verbs, request),
        storage=Storage(home=Volume(storage_class, request.size)),
        # The lab's nodes may run where control groups cannot be delegated.
        config=Config(process_tracking=ProcessTracking.LINUX_PROC if in_lab else ProcessTracking.CGROUP),
    )


async def _pool(verbs: Verbs, pool: str, gpus: int | None) -> NodePool:
    selector = Selector({POOL_LABEL: pool})
    if gpus is None:
        nodes = await verbs.get("/api/v1/nodes", _Nodes, {"labelSelector": f"{POOL_LABEL}={pool}"})
        counts = {node.metadata.name: int(node.status.capacity.get(GPU_RESOURCE, "0")) for node in nodes.items}
        if not counts:
            raise InvalidInput(f"no node has the label {POOL_LABEL}={pool}; label the nodes, or name --gpus")
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            raise InvalidInput(f"the nodes of pool {pool} differ in their GPUs ({shown}); name --gpus")
        gpus = next(iter(counts.values()))
    return NodePool(pool, selector, Gpus(gpus) if gpus else None)


async def _users(verbs: Verbs, request: Request) -> list[User]:
    """A user keeps the number that the cluster gave before: files belong to numbers."""
    try:
        known = {user.name: user.uid for user in (await _read(verbs, request.namespace, request.name)).spec.users}
    except NotFound:
        known = {}
    taken = {*known.values(), *(uid for _, uid, _ in request.users if uid is not None)}
    users = []
    for name, uid, keys in request.users:
        number = uid if uid is not None else known.get(name)
        if number is None:
            number = next(n for n in range(FIRST_UID, 60_000) if n not in taken)
            taken.add(number)
        users.append(User(name, number, ssh_keys=list(keys)))
    return users


async def _storage_class(verbs: Verbs, wanted: str | None) -> tuple[str | None, bool]:
    """(class to name, whether it is a lab's)."""
    classes = (await verbs.get("/apis/storage.k8s.io/v1/storageclasses", _Items)).items
    names = [c["metadata"]["name"] for c in classes]
    in_lab = any(c["provisioner"] == LAB_FILE_SERVER for c in classes)
    if wanted is not None:
        if wanted not in names:
            raise InvalidInput(f"there is no storage class {wanted}; there are: {', '.join(names) or 'none'}")
        return wanted, in_lab
    mark = "storageclass.kubernetes.io/is-default-class"
    if any((c["metadata"].get("annotations") or {}).get(mark) == "true" for c in classes):
        return None, in_lab
    if len(names) == 1:
        return names[0], in_lab
    raise InvalidInput(f"name a --storage-class that many nodes can mount; there are: {', '.join(names) or 'none'}")
