"""Where a process finds its API server and its credentials."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from everstep.adapters.kube import connection
from everstep.adapters.kube.connection import ServiceAccountToken, connect
from everstep.core.errors import InvalidInput


def test_missing_kubeconfig_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match=r"cannot use the kubeconfig .*none"):
        connect()


def test_kubeconfig_without_a_context_says_so(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\n")
    with pytest.raises(InvalidInput, match="context"):
        connect(file)


@pytest.mark.parametrize("text", ["root:x:0:0:root:/root:/bin/bash", "- a", "{}", "\x00", "{", ""])
def test_what_is_no_kubeconfig_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"kubeconfig|names no current context"):
        connect(path)


def test_kubeconfig(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: sesame}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
    )
    assert str(connect(file).base_url) == "https://127.0.0.1:6443"


def test_token_is_read_again_after_it_was_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    auth = ServiceAccountToken(file)

    def send(status: int) -> list[str]:
        flow = auth.auth_flow(httpx2.Request("GET", "http://api/"))
        sent = [next(flow).headers["Authorization"]]
        with suppress(StopIteration):
            sent.append(flow.send(httpx2.Response(status)).headers["Authorization"])
        return sent

    assert send(200) == ["Bearer old"]
    file.write_text("new\n")
    assert send(401) == ["Bearer old", "Bearer new"]
    file.write_text("newer\n")
    assert send(401) == ["Bearer new", "Bearer newer"]
    assert send(401) == ["Bearer newer"]  # the same token again would be refused again
    file.write_text("newest\n")
    monkeypatch.setattr(connection, "TOKEN_MAX_AGE", 0.0)
    assert send(200) == ["Bearer newest"]
