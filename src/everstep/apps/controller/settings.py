"""The controller's settings: arguments, with the environment of the chart as defaults."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Files are read again at each use, because mounted secrets are renewed in place."""

    kubeconfig: Path | None
    namespace: str
    identity: str
    probe_port: int
    gateway_token: Path
    machine_api: str
    machine_api_token: Path
    notify_urls: Path | None


def read_settings(argv: Sequence[str]) -> Settings:
    """Exits with one line on stderr when an argument cannot be understood."""
    env = os.environ
    parser = argparse.ArgumentParser(
        prog="everstep controller", description="Heals GPU nodes and brings their Slurm jobs back."
    )
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument(
        "--namespace", default=env.get("POD_NAMESPACE", "everstep-system"), help="of the leader's Lease"
    )
    parser.add_argument("--identity", default=env.get("POD_NAME") or socket.gethostname(), help="default: $POD_NAME")
    parser.add_argument("--probe-port", type=int, default=int(env.get("EVERSTEP_PROBE_PORT", "0")), help="0: none")
    parser.add_argument(
        "--gateway-token-file",
        type=Path,
        default=Path(env.get("EVERSTEP_GATEWAY_TOKEN_FILE", "/var/run/secrets/everstep/slurm-gateway/token")),
    )
    parser.add_argument("--machine-api-url", default=env.get("EVERSTEP_MACHINE_API_URL", ""))
    parser.add_argument(
        "--machine-api-token-file",
        type=Path,
        default=Path(env.get("EVERSTEP_MACHINE_API_TOKEN_FILE", "/var/run/secrets/everstep/machine-api/token")),
    )
    parser.add_argument("--notify-urls-file", type=Path, default=env.get("EVERSTEP_NOTIFY_URLS_FILE"))
    given = parser.parse_args(argv)
    return Settings(
        kubeconfig=given.kubeconfig,
        namespace=given.namespace,
        identity=given.identity,
        probe_port=given.probe_port,
        gateway_token=given.gateway_token_file,
        machine_api=given.machine_api_url,
        machine_api_token=given.machine_api_token_file,
        notify_urls=given.notify_urls_file,
    )
