"""The lab's file server: a provisioner for the ReadWriteMany class `shared`, over a directory that every node mounts.

It does what an NFS provisioner does: a claim gets a volume of its own (a folder that all nodes see under
`/run/file-server`), and a volume whose claim is gone is deleted with its folder.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from lightkube import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import HostPathVolumeSource, ObjectReference, PersistentVolumeSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from everstep.lab.kubeapi import follow
from everstep.lab.switchboard import Switchboard

CLASS = "shared"
PROVISIONER = "everstep.io/lab-file-server"
_IN_NODES = Path("/run/file-server")
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


def volume_for(claim: PersistentVolumeClaim) -> PersistentVolume | None:
    """The volume that an unbound claim of our class asks for; None for any other claim."""
    metadata, spec = claim.metadata, claim.spec
    if not metadata or not spec or spec.storageClassName != CLASS or spec.volumeName or metadata.deletionTimestamp:
        return None
    name = f"pvc-{metadata.uid}"
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations={_PROVISIONED_BY: PROVISIONER}),
        spec=PersistentVolumeSpec(
            accessModes=spec.accessModes,
            capacity=(spec.resources.requests if spec.resources else None) or {"storage": "1Gi"},
            storageClassName=CLASS,
            persistentVolumeReclaimPolicy="Delete",
            hostPath=HostPathVolumeSource(path=str(_IN_NODES / name), type="Directory"),
            claimRef=ObjectReference(
                apiVersion="v1",
                kind="PersistentVolumeClaim",
                namespace=metadata.namespace,
                name=metadata.name,
                uid=metadata.uid,
            ),
        ),
    )


async def serve_storage(client: AsyncClient, board: Switchboard) -> None:
    """Provisions and deletes until cancelled."""
    await asyncio.gather(_provision(client, board), _delete(client, board))


async def _provision(client: AsyncClient, board: Switchboard) -> None:
    async for claim in follow(client, PersistentVolumeClaim, board.problem):
        volume = volume_for(claim)
        if volume is None or volume.metadata is None:
            continue
        folder = board.layout.shared / str(volume.metadata.name)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        try:
            await client.create(volume)
        except ApiError as error:
            if error.status.code != 409:  # else it is there, and the claim will see it soon
                whose = f"{claim.metadata.namespace}/{claim.metadata.name}"
                board.problem(f"cannot create the volume of claim {whose}: {error}")
            continue
        board.report(f"volume {volume.metadata.name} for claim {claim.metadata.namespace}/{claim.metadata.name}")


async def _delete(client: AsyncClient, board: Switchboard) -> None:
    async for volume in follow(client, PersistentVolume, board.problem):
        ours = (volume.metadata.annotations or {}).get(_PROVISIONED_BY) == PROVISIONER
        if not ours or not volume.status or volume.status.phase not in ("Released", "Failed"):
            continue
        try:
            await client.delete(PersistentVolume, volume.metadata.name)
        except ApiError as error:
            if error.status.code != 404:
                board.problem(f"cannot delete volume {volume.metadata.name}: {error}")
                continue
        await asyncio.to_thread(shutil.rmtree, board.layout.shared / volume.metadata.name, ignore_errors=True)
