"""The cluster's own keys: made once, never logged, never replaced by accident."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from everstep.adapters.kube.verbs import AlreadyExists, Verbs
from everstep.apps.slurm_operator.desired import Cluster
from everstep.core.errors import NotFound, RetryLater

Object = dict[str, Any]


async def ensure_secrets(verbs: Verbs, cluster: Cluster) -> None:
    """Makes the Secrets that are not there. An existing one is never touched, whatever is in it."""
    for part, make in (("keys", _slurm_keys), ("host-keys", _host_keys)):
        await _ensure(verbs, cluster, part, make)


async def _ensure(verbs: Verbs, cluster: Cluster, part: str, make: Callable[[Cluster], Awaitable[Object]]) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    try:
        await verbs.get(f"{path}/{cluster.part(part)}", dict[str, Any])
    except NotFound:
        pass
    else:
        return
    meta = {"name": cluster.part(part), "labels": cluster.labels(), "ownerReferences": [cluster.owner()]}
    values = {name: base64.b64encode(value).decode() for name, value in (await make(cluster)).items()}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": values}
    try:
        await verbs.create(path, body)
    except AlreadyExists:
        return  # another operator was faster; its keys are the cluster's


async def _slurm_keys(cluster: Cluster) -> Object:
    own = "munge.key" if cluster.slurm_conf().uses_munge else "slurm.key"
    return {own: secrets.token_bytes(128), "jwt.key": secrets.token_bytes(32)}


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
