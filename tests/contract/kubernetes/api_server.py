"""A real etcd and kube-apiserver on loopback, without nodes: enough for whatever only reads and writes objects."""

from __future__ import annotations

import json
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

STARTS_WITHIN = 60.0  # seconds; both together take three on an idle machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class ApiServer:
    """The two processes, their ports and their credentials; everything lives under ``root``."""

    binaries: Path
    root: Path
    etcd_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    port: int = field(default_factory=free_port)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        key = self.root / "service-accounts.key"
        make = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)]
        subprocess.run(make, check=True, capture_output=True)
        (self.root / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self._write_kubeconfig()
        self.start_etcd()
        self.start_api()

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        self._spawn(
            "etcd", f"--data-dir={self.root / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--log-level=warn",
        )  # fmt: skip

    def start_api(self) -> None:
        key = str(self.root / "service-accounts.key")
        self._spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", f"--cert-dir={self.root / 'certs'}",
            f"--token-auth-file={self.root / 'tokens.csv'}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", "--anonymous-auth=false",
            "--allow-privileged",
            "--endpoint-reconciler-type=none",  # nobody reaches it by a Service, and loopback may not be one
            "--etcd-compaction-interval=0",  # only when a test asks for it
        )  # fmt: skip
        self._wait_ready()

    def kill(self, name: str) -> None:
        """Ends ``etcd`` or ``kube-apiserver`` the hard way."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def compact(self) -> int:
        """Makes etcd forget every version but the present one, which is returned."""
        url = f"http://127.0.0.1:{self.etcd_port}/v3/kv/"
        with httpx2.Client(trust_env=False) as http:
            answer = http.post(url + "range", json={"key": "AA==", "limit": 1}).raise_for_status().json()
            revision = int(answer["header"]["revision"])
            http.post(url + "compaction", json={"revision": revision, "physical": True}).raise_for_status()
        return revision

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        command = [str(self.binaries / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, text=True, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(self.binaries / name), *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + STARTS_WITHIN
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx2.Client(verify=False, trust_env=False, headers=headers) as http:
            while time.monotonic() < give_up:
                for name, process in self._running.items():
                    assert process.poll() is None, f"{name} ended; its log is {self.root / name}.log"
                try:
                    if http.get(f"https://127.0.0.1:{self.port}/readyz").status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                time.sleep(0.1)
        raise AssertionError(f"no API server within {STARTS_WITHIN} s; its log is under {self.root}")

    def _write_kubeconfig(self) -> None:
        cluster = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": f"{self.root}/certs/apiserver.crt",
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(json.dumps(config))
