"""``python -m everstep.apps.slurm_gateway``: serves one Slurm cluster to the controller.

    --cluster NAMESPACE/NAME   of the SlurmCluster; goes into every snapshot
    --slurm-conf FILE          five lines are enough: ClusterName, SlurmctldHost, SlurmctldPort, AuthType,
                               AuthAltTypes=auth/jwt; with SLURM_JWT neither munge nor slurm.key is needed
    --jwt-key FILE             the key of AuthAltParameters=jwt_key=; read anew for each token (every 5 minutes)
    --slurm-user NAME          whom the tokens name; root or SlurmUser (default root)
    --home-root DIR            holds the users' homes; read-only is enough (default /home)
    --allow USERNAME           may call; repeatable, at least one
    --port N --bind ADDRESS    (default 6840 on every address)
    --kube-api URL             default: the pod's own, from KUBERNETES_SERVICE_HOST and _PORT; http only on loopback
    --kube-ca FILE, --kube-token FILE   default: the pod's service account

The pod's service account needs ``create`` on ``tokenreviews`` (the ClusterRole ``system:auth-delegator``). Homes are
read as the process's own user, so it runs as root, or with CAP_DAC_READ_SEARCH, where homes are closed to others.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec
import structlog
import uvicorn

from everstep.adapters.slurm.cli import SlurmCommands
from everstep.adapters.slurm.operations import SlurmOperations
from everstep.adapters.slurm.reads import SlurmReads
from everstep.adapters.slurm.records import RecordFolder
from everstep.adapters.slurm.shared import Shared
from everstep.adapters.slurm.tokens import TokenSource
from everstep.api.gateway import PORT
from everstep.apps.slurm_gateway.callers import Callers, ReviewServer
from everstep.apps.slurm_gateway.routes import Gateway, application

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM; exits 2 with one line when the arguments do not fit."""
    options = _parse(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.get_logger().info("serving", cluster=options.cluster, port=options.port)
    # h11 and no lifespan: a handful of requests a second, and the least to load.
    uvicorn.run(
        application(_gateway(options)),
        host=options.bind,
        port=options.port,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=128,
        timeout_graceful_shutdown=5,
    )


def _gateway(options: argparse.Namespace) -> Gateway:
    tokens = TokenSource(options.jwt_key, options.slurm_user)
    commands = SlurmCommands(options.slurm_conf, tokens.token)
    reads = SlurmReads(commands)

    async def snapshot() -> bytes:
        return msgspec.json.encode(await reads.snapshot(options.cluster), order="deterministic")

    return Gateway(
        callers=Callers(
            ReviewServer(options.kube_api, options.kube_ca, options.kube_token), allowed=frozenset(options.allow)
        ),
        operations=SlurmOperations(commands, reads),
        snapshot=Shared(snapshot),
        records=RecordFolder(options.home_root),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="everstep slurm-gateway", description="Serve one Slurm to the controller.")
    parser.add_argument("--cluster", required=True, metavar="NAMESPACE/NAME")
    parser.add_argument("--slurm-conf", required=True, type=Path, metavar="FILE")
    parser.add_argument("--jwt-key", required=True, type=Path, metavar="FILE")
    parser.add_argument("--slurm-user", default="root", metavar="NAME")
    parser.add_argument("--home-root", default=Path("/home"), type=Path, metavar="DIR")
    parser.add_argument("--allow", required=True, action="append", metavar="USERNAME")
    parser.add_argument("--port", default=PORT, type=int)
    parser.add_argument("--bind", default="0.0.0.0", metavar="ADDRESS")  # noqa: S104 - every caller is authenticated
    parser.add_argument("--kube-api", default=_own_api(), metavar="URL")
    parser.add_argument("--kube-ca", default=_SERVICE_ACCOUNT / "ca.crt", type=Path, metavar="FILE")
    parser.add_argument("--kube-token", default=_SERVICE_ACCOUNT / "token", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.cluster.count("/") != 1 or options.cluster.strip("/") != options.cluster:
        _fail(parser, f"--cluster is NAMESPACE/NAME, not {options.cluster!r}")
    if not options.kube_api:
        _fail(parser, "outside Kubernetes, name the API server that reviews callers: --kube-api URL")
    server = urlsplit(options.kube_api)
    if server.scheme == "http" and server.hostname in {"127.0.0.1", "::1", "localhost"}:
        options.kube_ca = None
    elif server.scheme != "https":
        _fail(parser, f"--kube-api must be an https URL, not {options.kube_api!r}")
    elif not options.kube_ca.is_file():
        _fail(parser, f"--kube-ca {options.kube_ca} is not there: the API server's certificate cannot be checked")
    if not options.slurm_conf.is_file():
        _fail(parser, f"--slurm-conf {options.slurm_conf} is not there")
    return options


def _own_api() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    parser.error(message)


if __name__ == "__main__":
    main()
