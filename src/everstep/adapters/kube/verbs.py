"""The few verbs that the platform speaks to the API server, with every refusal mapped to the core's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import httpx2
import msgspec

from everstep.adapters.kube.wire import ApiStatus
from everstep.core.errors import Conflict, EverstepError, InvalidInput, NotFound, Refused, RetryLater, Unreachable

FIELD_MANAGER = "everstep"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

T = TypeVar("T")

_status = msgspec.json.Decoder(ApiStatus)

_BY_STATUS: dict[int, type[EverstepError]] = {
    400: InvalidInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    405: Refused,
    409: Conflict,
    410: RetryLater,
    413: InvalidInput,
    415: Refused,
    422: InvalidInput,
    429: RetryLater,
}


class AlreadyExists(Conflict):
    """Somebody (perhaps this process, before a crash) created the object first."""


class ApiRefusal(Exception):
    """The API server's own words; it is the cause (``__cause__``) of the error that a refusal raises."""

    def __init__(self, code: int, status: ApiStatus) -> None:
        super().__init__(status.message)
        self.code = code
        self.status = status


class Verbs:
    """Requests with one meaning each; every method raises only errors of :mod:`everstep.core.errors`.

    A write whose answer was lost raises Unreachable: it may have happened, so callers repeat only what is idempotent
    or guarded by a resourceVersion.
    """

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str, as_: type[T], params: Mapping[str, str] | None = None) -> T:
        return self._decode(await self.send("GET", path, params=params), as_, path)

    async def create(self, path: str, body: Any) -> bytes:
        """Raises AlreadyExists when the name is taken."""
        return await self.send("POST", path, body)

    async def replace(self, path: str, body: Any) -> bytes:
        """The body's ``metadata.resourceVersion`` is the precondition; raises Conflict when it is no longer true."""
        return await self.send("PUT", path, body)

    async def merge(self, path: str, body: Any) -> bytes:
        """JSON merge patch; with ``metadata.resourceVersion`` in the body it carries that precondition."""
        return await self.send("PATCH", path, body, content_type=MERGE)

    async def strategic(self, path: str, body: Any) -> bytes:
        """Strategic merge patch, for kinds of Kubernetes itself: of a list with keys, only the named entries change."""
        return await self.send("PATCH", path, body, content_type=STRATEGIC)

    async def apply(self, path: str, body: Any, manager: str = FIELD_MANAGER) -> bytes:
        """Server-side apply: creates the object or takes over the named fields."""
        params = {"fieldManager": manager, "force": "true"}
        return await self.send("PATCH", path, body, params=params, content_type=APPLY)

    async def delete(self, path: str) -> bytes:
        return await self.send("DELETE", path)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Sends one request and returns the body of a 2xx answer."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type} if content is not None else {}
        try:
            reply = await self.http.request(method, path, content=content, params=dict(params or {}), headers=headers)
        except (httpx2.HTTPError, OSError) as why:
            raise Unreachable(f"the API server did not answer {method} {path}: {type(why).__name__}: {why}") from why
        if reply.is_success:
            return reply.content
        raise refusal(method, path, reply)

    @staticmethod
    def _decode(body: bytes, as_: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(body, type=as_)
        except msgspec.DecodeError as why:
            raise Unreachable(f"the answer to GET {path} cannot be read: {why}") from why


def refusal(method: str, path: str, reply: httpx2.Response) -> EverstepError:
    """The error that an unsuccessful answer stands for; 5xx and anything unknown is Unreachable."""
    try:
        status = _status.decode(reply.content)
    except msgspec.DecodeError:  # a proxy's page, or 429 as plain text
        status = ApiStatus(message=reply.text[:200])
    kind = _BY_STATUS.get(reply.status_code, Unreachable)
    if status.reason == "AlreadyExists":
        kind = AlreadyExists
    said = status.message.strip() or reply.reason_phrase
    error = kind(f"{method} {path} was answered {reply.status_code}: {said}")
    error.__cause__ = ApiRefusal(reply.status_code, status)
    return error
