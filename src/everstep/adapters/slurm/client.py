"""The Scheduler port over the gateways of all Slurm clusters: one HTTP request an operation, typed errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from everstep.adapters.slurm.roundup import Roundup
from everstep.api import gateway as api
from everstep.core.errors import NotFound, Unreachable
from everstep.core.scheduler_state import JobProgress, SchedulerLook, SchedulerSnapshot

_Wire = TypeVar("_Wire")
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0


class GatewayScheduler:
    """Implements :class:`everstep.ports.Scheduler`.

    Args:
        endpoints: yields (cluster, base URL) of every gateway, asked anew for each call; may raise Unreachable when
            the list is not known.
        token: yields the bearer token; called for each request, because projected tokens are replaced on disk.
        pools: the labels that the nodes of each pool of a cluster carry; None when they are not known.
    """

    def __init__(
        self,
        endpoints: Callable[[], Iterable[tuple[str, str]]],
        token: Callable[[], str],
        transport: httpx2.AsyncBaseTransport | None = None,
        pools: Callable[[str], tuple[Mapping[str, str], ...] | None] = lambda cluster: None,
    ) -> None:
        self._endpoints = endpoints
        self._roundup = Roundup(self._snapshot, pools)
        self._token = token
        # trust_env off: a proxy from the environment has no place between the controller and its gateways.
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS), transport=transport, trust_env=False
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._roundup.close()
        await self._http.aclose()

    async def snapshots(self) -> SchedulerLook:
        return await self._roundup.look(self._endpoints())

    async def progress(self, cluster: str, job: str, user: str) -> JobProgress:
        body = await self._call(cluster, "GET", f"/v1/jobs/{_part(job)}/progress?user={_part(user)}")
        return _decode(body, JobProgress)

    async def drain(self, cluster: str, node: str, reason: str) -> None:
        await self._call(cluster, "POST", f"/v1/nodes/{_part(node)}/drain", api.Reason(reason))

    async def down(self, cluster: str, node: str, reason: str) -> None:
        await self._call(cluster, "POST", f"/v1/nodes/{_part(node)}/down", api.Reason(reason))

    async def resume(self, cluster: str, node: str, reason_prefix: str) -> None:
        await self._call(cluster, "POST", f"/v1/nodes/{_part(node)}/resume", api.ReasonPrefix(reason_prefix))

    async def forget(self, cluster: str, node: str) -> None:
        await self._call(cluster, "DELETE", f"/v1/nodes/{_part(node)}")

    async def requeue(self, cluster: str, job: str, restarts: int) -> None:
        await self._call(cluster, "POST", f"/v1/jobs/{_part(job)}/requeue", api.Guard(restarts))

    async def hold(self, cluster: str, job: str, restarts: int) -> None:
        await self._call(cluster, "POST", f"/v1/jobs/{_part(job)}/hold", api.Guard(restarts))

    async def clear_stale_allocation(self, cluster: str, job: str, restarts: int) -> None:
        await self._call(cluster, "POST", f"/v1/jobs/{_part(job)}/clear-stale", api.Guard(restarts))

    async def release(self, cluster: str, job: str, restarts: int) -> None:
        await self._call(cluster, "POST", f"/v1/jobs/{_part(job)}/release", api.Guard(restarts))

    async def tell(self, cluster: str, job: str, message: str) -> None:
        await self._call(cluster, "POST", f"/v1/jobs/{_part(job)}/tell", api.Message(message))

    async def _snapshot(self, cluster: str, url: str) -> SchedulerSnapshot:
        snapshot = _decode(await self._request(cluster, "GET", url, "/v1/snapshot"), SchedulerSnapshot)
        if snapshot.cluster != cluster:
            raise Unreachable(f"the gateway at {url} belongs to Slurm cluster {snapshot.cluster}, not {cluster}")
        return snapshot

    async def _call(self, cluster: str, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        url = dict(self._endpoints()).get(cluster)
        if url is None:
            raise NotFound(f"there is no Slurm cluster {cluster}")
        return await self._request(cluster, method, url, path, body)

    async def _request(
        self, cluster: str, method: str, url: str, path: str, body: msgspec.Struct | None = None
    ) -> bytes:
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._http.request(method, url.rstrip("/") + path, headers=headers, content=content)
        except httpx2.HTTPError as error:
            what = str(error) or type(error).__name__
            raise Unreachable(f"the gateway of Slurm cluster {cluster} does not answer: {what}") from None
        if answer.status_code not in (200, 204):
            raise api.error_of(answer.status_code, answer.content)
        return answer.content


def _part(text: str) -> str:
    return quote(text, safe="")


def _decode(body: bytes, kind: type[_Wire]) -> _Wire:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"the Slurm gateway's answer cannot be understood: {error}") from None
