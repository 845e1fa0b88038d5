"""Who may call: the API server reviews the bearer token, and the user name must be on the list. Fails closed."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import msgspec

from everstep.api.gateway import AUDIENCE
from everstep.core.errors import Refused, Unreachable

# A token that is revoked keeps working for this long at most.
CACHE_SECONDS = 30.0
_CACHE_SIZE = 64
_MAX_TOKEN = 16 * 1024
_REVIEWS_AT_ONCE = 4
_TIMEOUT_SECONDS = 5.0
_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"


class _User(msgspec.Struct):
    username: str = ""


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    error: str = ""


class _Review(msgspec.Struct):
    status: _Status


@dataclass(frozen=True, slots=True)
class ReviewServer:
    """Where tokens are reviewed, and with which identity; it needs ``create`` on ``tokenreviews``.

    Attributes:
        url: of the API server, such as ``https://10.96.0.1:443``.
        ca_file: certificates to trust; None only for a server without TLS.
        token_file: read for each review, because the kubelet replaces it.
    """

    url: str
    ca_file: Path | None
    token_file: Path


@dataclass(slots=True)
class Callers:
    """Admits callers by TokenReview.

    Attributes:
        allowed: user names such as ``system:serviceaccount:everstep-system:everstep-controller``.
    """

    server: ReviewServer
    allowed: frozenset[str]
    now: Callable[[], float] = time.monotonic
    _known: dict[bytes, tuple[str, float]] = field(default_factory=dict, init=False)
    _reviews: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_REVIEWS_AT_ONCE), init=False)
    _http: httpx2.AsyncClient | None = field(default=None, init=False)

    async def admit(self, authorization: str) -> str:
        """The caller's user name. Raises Refused, or Unreachable when the review cannot be asked."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN:
            raise Refused(f"a bearer token for the audience {AUDIENCE} is needed")
        digest = hashlib.sha256(token.encode()).digest()
        user, until = self._known.get(digest, ("", 0.0))
        if self.now() >= until:
            asked_at = self.now()
            async with self._reviews:
                user = await self._review(token)
            self._remember(digest, user, asked_at + CACHE_SECONDS)
        return user

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def _remember(self, digest: bytes, user: str, until: float) -> None:
        now = self.now()
        self._known = {key: value for key, value in self._known.items() if value[1] > now}
        if len(self._known) < _CACHE_SIZE:
            self._known[digest] = (user, until)

    async def _review(self, token: str) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        status = await self._ask(msgspec.json.encode(body))
        if not status.authenticated or AUDIENCE not in status.audiences:
            raise Refused(f"the token is not valid for the audience {AUDIENCE}")
        if status.user.username not in self.allowed:
            raise Refused(f"{status.user.username} may not use this gateway")
        return status.user.username

    async def _ask(self, body: bytes) -> _Status:
        try:
            own_token = self.server.token_file.read_text().strip()
            answer = await self._client().post(
                self.server.url.rstrip("/") + _PATH,
                content=body,
                headers={"Authorization": f"Bearer {own_token}", "Content-Type": "application/json"},
            )
        except (httpx2.HTTPError, OSError) as error:
            raise Unreachable(f"callers cannot be checked: {str(error) or type(error).__name__}") from None
        if answer.status_code not in (200, 201):
            raise Unreachable(f"callers cannot be checked: the API server answers HTTP {answer.status_code}")
        try:
            return msgspec.json.decode(answer.content, type=_Review).status
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreachable(f"callers cannot be checked: {error}") from None

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            ca_file = self.server.ca_file
            verify = ssl.create_default_context(cafile=str(ca_file)) if ca_file else False
            self._http = httpx2.AsyncClient(verify=verify, timeout=_TIMEOUT_SECONDS, trust_env=False)
        return self._http
