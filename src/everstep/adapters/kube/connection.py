"""How a process reaches the API server: by its service account in a pod, by a kubeconfig anywhere else."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Generator
from pathlib import Path
from time import monotonic

import httpx2

from everstep.core.errors import InvalidInput

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE = 60.0  # seconds; the kubelet replaces the token file long before it expires, client-go reads as often
TIMEOUT = httpx2.Timeout(10.0)
USER_AGENT = "everstep"

# A peer that vanished without a word is noticed in 10 + 3 x 5 seconds, sooner than a watch's read timeout.
KEEPALIVE: list[tuple[int, int, int]] = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
]


class ServiceAccountToken(httpx2.Auth):
    """Bearer token from a file that the kubelet rotates: read once a minute, and again after a 401."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = -TOKEN_MAX_AGE

    def _read(self) -> str:
        self._token, self._read_at = self._path.read_text().strip(), monotonic()
        return self._token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        token = self._token if monotonic() - self._read_at < TOKEN_MAX_AGE else self._read()
        request.headers["Authorization"] = f"Bearer {token}"
        reply = yield request
        if reply.status_code == 401 and self._read() != token:
            request.headers["Authorization"] = f"Bearer {self._token}"
            yield request


def connect(kubeconfig: Path | None = None, service_account: Path = SERVICE_ACCOUNT) -> httpx2.AsyncClient:
    """An HTTP client bound to the API server; paths are relative to it (``/api/v1/nodes``). The caller closes it.

    ``kubeconfig`` wins where given; then the pod's service account; then ``$KUBECONFIG`` or ``~/.kube/config``.

    Raises:
        InvalidInput: no way to reach a cluster is configured, or the configuration is malformed.
    """
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        trust = ssl.create_default_context(cafile=str(service_account / "ca.crt"))
        return _client(server, trust, ServiceAccountToken(service_account / "token"))
    return _from_kubeconfig(kubeconfig or Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser())


def own_namespace(service_account: Path = SERVICE_ACCOUNT) -> str:
    """Namespace that this pod runs in; ``everstep-system`` outside a pod."""
    path = service_account / "namespace"
    return path.read_text().strip() if path.exists() else "everstep-system"


def _from_kubeconfig(path: Path) -> httpx2.AsyncClient:
    try:
        from everstep.adapters.kube import kubeconfig  # noqa: PLC0415  # only tools outside a pod need lightkube
    except ImportError as why:
        raise InvalidInput("reading a kubeconfig needs the extra: pip install 'everstep[cluster]'") from why
    return _client(*kubeconfig.read(path))


def _client(server: str, trust: ssl.SSLContext, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    # Limits: each watch holds one connection for good; the rest is for calls.
    transport = httpx2.AsyncHTTPTransport(
        verify=trust,
        trust_env=False,
        socket_options=KEEPALIVE,
        limits=httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0),
    )
    return httpx2.AsyncClient(
        base_url=server,
        auth=auth,
        transport=transport,
        timeout=TIMEOUT,
        headers={"User-Agent": USER_AGENT},
    )
