"""Asks for a Slurm cluster: fills in what the Kubernetes cluster itself can tell, applies the object, waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import re
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
    Login,
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
from everstep.apps.refusals import in_plain_words, kind_is_missing
from everstep.core.cluster_state import GPU_RESOURCE, POOL_LABEL
from everstep.core.errors import EverstepError, InvalidInput, NotFound, Refused, Unreachable
from everstep.lab.storage import PROVISIONER as LAB_FILE_SERVER

MANAGER = "everstep-cli"
DEFAULT_VERSION = "24.11"
VERSIONS = ("22.05", DEFAULT_VERSION, "26.05")
DEFAULT_SIZE = "100Gi"
_OPTIONS = {
    r"metadata\.name$": "NAME",
    r"metadata\.namespace": "--namespace",
    r"spec\.slurmVersion": "--slurm",
    r"spec\.nodePools\[\d+\]\.gpus": "--gpus",
    r"spec\.nodePools": "--pool",
    r"spec\.users": "--user",
    r"spec\.storage\.home\.size": "--size",
    r"spec\.storage\.home\.storageClassName": "--storage-class",
}
_UIDS = range(10_000, 60_000)
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
    """What the command line asks for. What is None stays as the cluster has it, or is chosen for a new one."""

    namespace: str
    name: str
    version: str | None = None
    pools: tuple[str, ...] | None = None
    users: tuple[tuple[str, int | None, tuple[str, ...]], ...] | None = None
    gpus: int | None = None
    storage_class: str | None = None
    size: str | None = None


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
    uid = int(number) if path and re.fullmatch("[0-9]{1,9}", number) else None
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
    if not re.fullmatch("[a-z][a-z0-9-]*", request.name) or not re.fullmatch("[a-z0-9-]+", request.namespace):
        raise InvalidInput(f"{request.namespace}/{request.name}: a name has small letters, digits and dashes only")
    if request.version is not None and request.version not in VERSIONS:
        raise InvalidInput(f"--slurm {request.version}: choose one of {', '.join(VERSIONS)}")
    what = f"SlurmCluster {request.namespace}/{request.name}"
    async with connect(kubeconfig) as http:
        with in_plain_words(what, _OPTIONS):
            return await _create(Verbs(http), request, wait, tell)


async def _create(verbs: Verbs, request: Request, wait: float | None, tell: Callable[[str], None]) -> Said:
    spec = await wanted(verbs, request, tell)
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
        try:
            with in_plain_words(f"SlurmCluster {namespace}/{name}"):
                return await _read(Verbs(http), namespace, name)
        except NotFound as why:
            if isinstance(why.__cause__, EverstepError) and kind_is_missing(why.__cause__):
                raise
            hint = "`kubectl get slurmclusters -A` shows those there are"
            raise NotFound(f"there is no SlurmCluster {name} in namespace {namespace}; {hint}") from why


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
    except Refused:
        return  # who may not look at namespaces may still have one; that it is missing, the next request says
    except NotFound:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        try:
            await verbs.create("/api/v1/namespaces", body)
        except AlreadyExists:
            return


async def wanted(verbs: Verbs, request: Request, tell: Callable[[str], None]) -> SlurmClusterSpec:
    """The whole spec: what was asked, what the cluster of this name has already, and what Kubernetes can tell.

    Raises EverstepError.
    """
    try:
        before = (await _read(verbs, request.namespace, request.name)).spec
    except NotFound:
        before = None
    storage_class, in_lab = await _storage_class(verbs, request.storage_class, before)
    tracking = ProcessTracking.LINUX_PROC if in_lab else ProcessTracking.CGROUP
    home = before.storage.home if before else Volume()
    size = request.size or (home.size if before else DEFAULT_SIZE)
    spec = SlurmClusterSpec(
        slurm_version=request.version or (before.slurm_version if before else DEFAULT_VERSION),
        node_pools=before.node_pools if before else [],
        partitions=before.partitions if before else [],
        users=_users(request, before.users if before else [], tell),
        storage=Storage(home=Volume(storage_class, size), state=before.storage.state if before else None),
        # The lab's nodes may run where control groups cannot be delegated.
        config=before.config if before else Config(process_tracking=tracking),
        login=before.login if before else Login(),
        image=before.image if before else "",
    )
    if before is None or request.pools is not None or request.gpus is not None:
        pools = request.pools or (tuple(pool.name for pool in before.node_pools) if before else ("main",))
        spec.node_pools = [await _pool(verbs, pool, request.gpus) for pool in pools]
    if before is None or request.pools is not None:
        spec.partitions = [Partition("main", [pool.name for pool in spec.node_pools], default=True)]
    return spec


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


def _users(request: Request, before: list[User], tell: Callable[[str], None]) -> list[User]:
    if request.users is None:
        return before
    names = [name for name, _, _ in request.users]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInput(f"--user {twice} is named twice; put all keys of a user into one file")
    if gone := sorted({user.name for user in before} - set(names)):
        tell(f"no longer named, so no longer able to log in: {', '.join(gone)} (their files stay)")
    known = {user.name: user.uid for user in before}
    taken = {*known.values(), *(uid for _, uid, _ in request.users if uid is not None)}
    users = []
    for name, uid, keys in request.users:
        number = uid or known.get(name) or free_uid(name, taken)
        taken.add(number)
        users.append(User(name, number, ssh_keys=list(keys)))
    return users


def free_uid(name: str, taken: set[int]) -> int:
    """A number that follows from the name, so that nobody is ever given the files of a user who left.

    Counting up would hand the number of a removed user, or of any user of a cluster that was deleted and made anew
    over the same volume, to the next one.
    """
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return next(n for step in _UIDS if (n := _UIDS[(first + step) % len(_UIDS)]) not in taken)


async def _storage_class(verbs: Verbs, asked: str | None, before: SlurmClusterSpec | None) -> tuple[str | None, bool]:
    """(class to name, whether it is a lab's)."""
    classes = (await verbs.get("/apis/storage.k8s.io/v1/storageclasses", _Items)).items
    names = [c["metadata"]["name"] for c in classes]
    in_lab = any(c["provisioner"] == LAB_FILE_SERVER for c in classes)
    if asked is not None:
        if asked not in names:
            raise InvalidInput(f"there is no storage class {asked}; there are: {', '.join(names) or 'none'}")
        return asked, in_lab
    if before is not None:
        return before.storage.home.storage_class_name, in_lab
    mark = "storageclass.kubernetes.io/is-default-class"
    if any((c["metadata"].get("annotations") or {}).get(mark) == "true" for c in classes):
        return None, in_lab
    if len(names) == 1:
        return names[0], in_lab
    raise InvalidInput(f"name a --storage-class that many nodes can mount; there are: {', '.join(names) or 'none'}")
