"""The lab's own view of its Kubernetes API, for what the supervisor itself has to do there."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from lightkube import AsyncClient, KubeConfig, codecs
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import NamespacedResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.core_v1 import Node

from everstep.lab.errors import LabError

FIELD_MANAGER = "everstep-lab"


def connect(kubeconfig: Path) -> AsyncClient:
    """A client that ignores proxies of the environment: the lab is on this machine."""
    config = KubeConfig.from_file(kubeconfig)
    return AsyncClient(config=config, field_manager=FIELD_MANAGER, trust_env=False, timeout=httpx2.Timeout(10))


async def api_ready(pki: Path, url: str) -> bool:
    """Whether the API server says that it is ready; raises httpx2.HTTPError while it says nothing."""
    trust = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    trust.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    async with httpx2.AsyncClient(verify=trust, trust_env=False, timeout=5) as client:
        return (await client.get(f"{url}/readyz")).status_code == 200


async def until(
    what: str,
    check: Callable[[], Awaitable[bool]],
    seconds: float,
    interval: float = 0.1,
    detail: Callable[[], str] = str,
) -> None:
    """Asks until the answer is yes; an unreachable API server is "not yet".

    Raises LabError after `seconds` with `what` and `detail()`.
    """
    deadline = time.monotonic() + seconds
    error = ""
    while True:
        try:
            if await check():
                return
            error = ""
        except (httpx2.HTTPError, ApiError) as caught:
            error = f"; last error: {caught}"
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not after {seconds:g} s{' (' + detail() + ')' if detail() else ''}{error}")
        await asyncio.sleep(interval)


async def apply(client: AsyncClient, text: str) -> None:
    """Server-side apply of a YAML stream, in its order."""
    for resource in codecs.load_all_yaml(text):
        await client.apply(resource, force=True)


async def ready_nodes(client: AsyncClient) -> set[str]:
    ready = set()
    async for node in client.list(Node):
        conditions = (node.status.conditions if node.status else None) or []
        if any(condition.type == "Ready" and condition.status == "True" for condition in conditions):
            ready.add(_name(node))
    return ready


async def rolled_out(client: AsyncClient, namespace: str, names: set[str] | None = None) -> dict[str, bool]:
    """Deployments and DaemonSets of a namespace by name -> whether all their pods are new and ready."""
    result = {}
    async for deployment in client.list(Deployment, namespace=namespace):
        status, spec = deployment.status, deployment.spec
        wanted = spec.replicas if spec and spec.replicas is not None else 1
        current = bool(status and status.observedGeneration == _generation(deployment))
        result[_name(deployment)] = bool(
            current and status and (status.updatedReplicas or 0) >= wanted and (status.readyReplicas or 0) >= wanted
        )
    async for daemons in client.list(DaemonSet, namespace=namespace):
        state = daemons.status
        result[_name(daemons)] = bool(
            state
            and state.observedGeneration == _generation(daemons)
            and state.desiredNumberScheduled > 0
            and (state.numberReady or 0) >= state.desiredNumberScheduled
        )
    return {name: ready for name, ready in result.items() if names is None or name in names}


async def follow(client: AsyncClient, kind: Any, report: Callable[[str], None]) -> AsyncIterator[Any]:
    """Every object of a kind, now and whenever it changes, for ever: lists again after any trouble.

    An object may come more than once; one that was deleted meanwhile does not come.
    """
    where: dict[str, Any] = {"namespace": "*"} if issubclass(kind, NamespacedResource) else {}
    quiet = True
    while True:
        try:
            listing = client.list(kind, **where)
            async for item in listing:
                yield item
            version = listing.resourceVersion
            quiet = True
            async for change, item in client.watch(kind, resource_version=version, **where):
                if change != "DELETED":
                    yield item
        except (httpx2.HTTPError, ApiError, OSError) as error:
            if quiet:
                report(f"watching {kind.__name__}: {error}; trying again")
                quiet = False
        await asyncio.sleep(0.5)


def _name(resource: Any) -> str:
    metadata: ObjectMeta | None = resource.metadata
    return (metadata.name if metadata else None) or ""


def _generation(resource: Any) -> int | None:
    metadata: ObjectMeta | None = resource.metadata
    return metadata.generation if metadata else None
