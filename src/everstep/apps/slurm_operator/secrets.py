"""The cluster's own keys: made once, never logged, never replaced by accident."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from everstep.adapters.kube.verbs import AlreadyExists, Verbs
from everstep.apps.slurm_operator.desired import Cluster
from everstep.core.errors import InvalidInput, NotFound, RetryLater

log = structlog.get_logger("everstep.slurm_operator")

Object = dict[str, Any]


async def ensure_secrets(verbs: Verbs, cluster: Cluster) -> None:
    """Makes the Secrets that are not there. An existing one is never touched, whatever is in it.

    Raises InvalidInput when the keys that exist are of another kind than the release of Slurm needs.
    """
    await _ensure(verbs, cluster, "host-keys", _host_keys)
    there = await _ensure(verbs, cluster, "keys", _slurm_keys)
    if there is not None and (needed := _own_key(cluster)) not in there:
        raise InvalidInput(
            f"Secret {cluster.part('keys')} has no {needed}: Slurm {cluster.spec.slurm_version} authenticates "
            "otherwise than the release that it was made for; make a new SlurmCluster"
        )


async def _ensure(
    verbs: Verbs, cluster: Cluster, part: str, make: Callable[[Cluster], Awaitable[Object]]
) -> Object | None:
    """What is in the Secret that was there; None when it was made."""
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    try:
        found = await verbs.get(f"{path}/{cluster.part(part)}", dict[str, Any])
        return dict(found.get("data") or {})
    except NotFound:
        pass
    meta = {"name": cluster.part(part), "labels": cluster.labels(), "ownerReferences": [cluster.owner()]}
    values = {name: base64.b64encode(value).decode() for name, value in (await make(cluster)).items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": values}
    try:
        await verbs.create(path, body)
    except AlreadyExists:
        log.info("another operator made the keys first; they are the cluster's", secret=cluster.part(part))
    return None


def _own_key(cluster: Cluster) -> str:
    return "munge.key" if cluster.slurm_conf().uses_munge else "slurm.key"


async def _slurm_keys(cluster: Cluster) -> Object:
    return {_own_key(cluster): secrets.token_bytes(128), "jwt.key": secrets.token_bytes(32)}


async def _host_keys(_: Cluster) -> Object:
    # ECDSA in PEM: the one kind that OpenSSL writes and the sshd of every Debian release reads.
    command = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    key, error = await process.communicate()
    if process.returncode:
        raise RetryLater(f"openssl could not make the login node's host key: {error.decode(errors='replace')[:200]}")
    return {"ssh_host_key": key}
