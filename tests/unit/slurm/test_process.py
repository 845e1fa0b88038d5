"""The gateway as a process: it starts with its arguments, says what is wrong with them, and ends when asked to."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

MODULE = [sys.executable, "-m", "everstep.apps.slurm_gateway"]
IMPORTS = "import sys, everstep.apps.slurm_gateway.__main__; print('\\n'.join(sys.modules))"


def arguments(folder: Path, **changes: str) -> list[str]:
    (folder / "slurm.conf").write_text("ClusterName=x\n")
    options = {
        "cluster": "slurm/main",
        "slurm-conf": str(folder / "slurm.conf"),
        "jwt-key": str(folder / "jwt.key"),
        "allow": "controller",
        "bind": "127.0.0.1",
        "kube-api": "http://127.0.0.1:1",
    }
    return [word for name, value in (options | changes).items() for word in (f"--{name}", value)]


def test_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(
        [*MODULE, *arguments(tmp_path, port=str(port))], stderr=subprocess.PIPE, text=True
    ) as gateway:
        try:
            assert _answer(f"http://127.0.0.1:{port}/healthz", within=20) == 200
            assert _answer(f"http://127.0.0.1:{port}/v1/snapshot", within=1) == 401
            gateway.send_signal(signal.SIGTERM)
            _, said = gateway.communicate(timeout=10)
        finally:
            gateway.kill()
    assert '"event": "serving"' in said
    assert "caller turned away" in said


def _answer(url: str, within: float) -> int:
    deadline = time.monotonic() + within
    while True:
        try:
            return httpx2.get(url, trust_env=False).status_code
        except httpx2.TransportError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cluster": "main"}, "NAMESPACE/NAME"),
        ({"slurm-conf": "/nonexistent"}, "--slurm-conf /nonexistent is not there"),
        ({"kube-api": "http://10.0.0.1"}, "must be an https URL"),
        ({"kube-api": ""}, "--kube-api URL"),
        ({"kube-api": "https://10.0.0.1", "kube-ca": "/nonexistent"}, "--kube-ca /nonexistent is not there"),
    ],
)
def test_says_what_is_wrong_with_its_arguments(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    ended = subprocess.run(
        [*MODULE, *arguments(tmp_path, **changes)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert says in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_loads_nothing_that_it_does_not_need() -> None:
    loaded = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=60)
    # structlog takes rich where there is one; the images have none.
    unwanted = re.compile(r"^(typer|lightkube|numpy|matplotlib|grpc|apprise|prometheus_client)$", re.MULTILINE)
    assert unwanted.findall(loaded.stdout) == []
