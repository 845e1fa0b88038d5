"""What an agent writes: the NodeHealth and the heartbeat Lease that are named like its own node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api import meta, node_health
from everstep.core.diagnosis import Diagnosis
from everstep.core.errors import NotFound, Unreadable
from everstep.core.health import Fault, Gpu, Verdict

MANAGER = "everstep-agent"
LEASE_SECONDS = 40  # four missed renewals, as the kubelet's own node Lease
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
_HEALTH = f"/apis/{meta.GROUP}/{meta.VERSION}/nodehealths/"


@dataclass(frozen=True, slots=True)
class Said:
    """What was last written: the diagnosis, its verdict, and since when (Unix seconds) that verdict stands."""

    diagnosis: Diagnosis
    verdict: Verdict
    since: float


class _Stored(msgspec.Struct):
    metadata: ObjectMeta
    status: node_health.NodeHealthStatus | None = None


class OwnNode:
    """Reads and writes the objects of one node; every method raises only errors of :mod:`everstep.core.errors`."""

    def __init__(self, verbs: Verbs, node: str, lease_namespace: str) -> None:
        self._verbs = verbs
        self._node = node
        self._path = _HEALTH + node
        self._lease = _LEASES.format(namespace=lease_namespace, name=node)

    async def stored(self) -> Said | None:
        """What an earlier agent of this node wrote last; None when there is nothing.

        Raises:
            Unreadable: it is there and cannot be understood; it is left as it is.
        """
        try:
            body = await self._verbs.get(self._path, msgspec.Raw)
        except NotFound:
            return None
        try:
            found = msgspec.json.decode(body, type=_Stored)
        except msgspec.DecodeError as why:
            raise Unreadable(
                f"NodeHealth/{self._node} cannot be understood ({why}); correct it, or delete it to start anew"
            ) from why
        if found.status is None:
            return None
        return Said(_diagnosis(found.status), found.status.verdict, _unix(found.status.since))

    async def publish(self, diagnosis: Diagnosis, since: float) -> None:
        """Writes the whole object in one request, which also makes it where it is missing.

        ``since`` is when the verdict last changed, in Unix seconds.
        """
        body = {
            "apiVersion": meta.API_VERSION,
            "kind": "NodeHealth",
            "metadata": {"name": self._node},
            "status": _status(diagnosis, since),
        }
        await self._verbs.apply(self._path, body, MANAGER)

    async def beat(self) -> None:
        """Renews the heartbeat Lease, and makes it where it is missing."""
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node},
            "spec": spec,
        }
        await self._verbs.apply(self._lease, body, MANAGER)


def _status(diagnosis: Diagnosis, since: float) -> node_health.NodeHealthStatus:
    reached = sum(not gpu.lost for gpu in diagnosis.gpus)
    return node_health.NodeHealthStatus(
        verdict=diagnosis.verdict,
        reason=diagnosis.reason,
        since=_moment(since),
        boot_id=diagnosis.boot_id,
        faults=[_to_wire(fault) for fault in diagnosis.faults],
        gpus=[
            node_health.Gpu(gpu.index, gpu.uuid, gpu.serial, gpu.pci, gpu.model, gpu.lost, gpu.recovery_action)
            for gpu in diagnosis.gpus
        ],
        log=node_health.LogPosition(sequence=diagnosis.sequence, lost=diagnosis.lost_records),
        summary=node_health.Summary(
            faults=",".join(dict.fromkeys(f"{fault.kind}:{fault.code}" for fault in diagnosis.faults)),
            gpus=f"{reached}/{len(diagnosis.gpus)}",
        ),
    )


def _to_wire(fault: Fault) -> meta.Fault:
    return meta.Fault(
        key=fault.key,
        kind=fault.kind,
        code=fault.code,
        fault_class=fault.fault_class,
        severity=fault.severity,
        action=fault.action,
        reason=fault.reason,
        pci=fault.pci,
        gpu_index=fault.gpu_index,
        gpu_serial=fault.gpu_serial,
        line=fault.line,
        first_seen=_moment(fault.first_seen),
        last_seen=_moment(fault.last_seen),
        count=fault.count,
        boot_id=fault.boot_id,
        injected=fault.injected,
    )


def _diagnosis(status: node_health.NodeHealthStatus) -> Diagnosis:
    position = status.log or node_health.LogPosition()
    return Diagnosis(
        boot_id=status.boot_id,
        sequence=position.sequence,
        faults=tuple(_from_wire(fault) for fault in status.faults),
        gpus=tuple(
            Gpu(gpu.index, gpu.uuid, gpu.serial, gpu.pci, gpu.model, gpu.lost, gpu.recovery_action)
            for gpu in status.gpus
        ),
        lost_records=position.lost,
    )


def _from_wire(fault: meta.Fault) -> Fault:
    return Fault(
        key=fault.key,
        kind=fault.kind,
        code=fault.code,
        fault_class=fault.fault_class,
        severity=fault.severity,
        action=fault.action,
        reason=fault.reason,
        pci=fault.pci,
        gpu_index=fault.gpu_index,
        gpu_serial=fault.gpu_serial,
        line=fault.line,
        first_seen=_unix(fault.first_seen),
        last_seen=_unix(fault.last_seen),
        count=fault.count,
        boot_id=fault.boot_id,
        injected=fault.injected,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _unix(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0
