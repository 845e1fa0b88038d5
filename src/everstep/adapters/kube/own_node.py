"""What an agent writes: the NodeHealth and the heartbeat Lease that are named like its own node."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from everstep.adapters.kube.mirror import moment, to_api, to_core
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api import cases, meta, node_health
from everstep.core.correlation.casebook import Case, Casebook
from everstep.core.diagnosis import Diagnosis
from everstep.core.errors import NotFound, Unreachable, Unreadable
from everstep.core.health import Fault, Gpu, Verdict
from everstep.core.occurrences import Occurrence

log = logging.getLogger(__name__)

MANAGER = "everstep-agent"
LEASE_SECONDS = 40  # four missed renewals, as the kubelet's own node Lease
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
_HEALTH = f"/apis/{meta.GROUP}/{meta.VERSION}/nodehealths/"


@dataclass(frozen=True, slots=True)
class Said:
    """What was last written: the diagnosis, its verdict, and since when (Unix seconds) that verdict stands.

    ``inherited`` is what the controller knows of this node's GPUs from other nodes.
    """

    diagnosis: Diagnosis
    verdict: Verdict
    since: float
    inherited: tuple[Occurrence, ...] = ()


class _Stored(msgspec.Struct):
    metadata: ObjectMeta
    status: node_health.NodeHealthStatus | None = None


class _Status(msgspec.Struct):
    """What is there after a write; of most lists only how many entries they have."""

    inherited: list[cases.Occurrence] = []
    faults: list[msgspec.Raw] = []
    gpus: list[msgspec.Raw] = []
    sources: list[msgspec.Raw] = []
    cases: list[msgspec.Raw] = []
    history: list[msgspec.Raw] = []


_LISTS = ("faults", "gpus", "sources", "cases", "history")


class _Answer(msgspec.Struct):
    """The part of the written object that others may have added."""

    status: _Status = msgspec.field(default_factory=_Status)


_answer = msgspec.json.Decoder(_Answer)


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
        status = found.status
        return Said(_diagnosis(status), status.verdict, _unix(status.since), _occurrences(status.inherited))

    async def publish(self, diagnosis: Diagnosis, since: float) -> Sequence[Occurrence]:
        """Writes the whole object in one request, which also makes it where it is missing.

        ``since`` is when the verdict last changed, in Unix seconds. Returns what the controller has written into it
        of this node's GPUs (``status.inherited``).
        """
        # Lists are written though they are empty: one that is left out becomes null where others own it too, which the
        # API server then refuses, for ever.
        status = dict.fromkeys(_LISTS, ()) | msgspec.to_builtins(_status(diagnosis, since))
        body = {
            "apiVersion": meta.API_VERSION,
            "kind": "NodeHealth",
            "metadata": {"name": self._node},
            "status": status,
        }
        answer = await self._verbs.apply(self._path, body, MANAGER)
        try:
            written = _answer.decode(answer).status
            if any(len(getattr(written, name)) != len(status[name]) for name in _LISTS):
                # Server-side apply keeps entries that somebody else has added, a fault that nobody could ever clear.
                log.warning("NodeHealth/%s held what this agent does not say; it is taken out", self._node)
                lists = {name: status[name] for name in _LISTS}
                answer = await self._verbs.merge(self._path, {"status": lists})
                written = _answer.decode(answer).status
            return _occurrences(written.inherited)
        except msgspec.DecodeError as why:
            raise Unreachable(f"the answer to the write of NodeHealth/{self._node} cannot be read: {why}") from why

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
        since=moment(since),
        boot_id=diagnosis.boot_id,
        faults=[to_api(fault, meta.Fault) for fault in diagnosis.faults],
        gpus=[to_api(gpu, node_health.Gpu) for gpu in diagnosis.gpus],
        sources=[to_api(source, node_health.Source) for source in diagnosis.sources],
        cases=[to_api(case, cases.Case) for case in diagnosis.book.cases],
        history=[to_api(item, cases.Occurrence) for item in diagnosis.book.history],
        log=node_health.LogPosition(
            sequence=diagnosis.sequence,
            lost=diagnosis.lost_records,
            numbering=diagnosis.numbering,
            skipped=diagnosis.skipped_records,
        ),
        summary=node_health.Summary(
            faults=",".join(dict.fromkeys(f"{fault.kind}:{fault.code}" for fault in diagnosis.faults)),
            gpus=f"{reached}/{len(diagnosis.gpus)}",
        ),
    )


def _diagnosis(status: node_health.NodeHealthStatus) -> Diagnosis:
    position = status.log or node_health.LogPosition()
    return Diagnosis(
        boot_id=status.boot_id,
        sequence=position.sequence,
        numbering=position.numbering,
        book=Casebook(tuple(to_core(case, Case) for case in status.cases), _occurrences(status.history)),
        faults=tuple(to_core(fault, Fault) for fault in status.faults),
        gpus=tuple(to_core(gpu, Gpu) for gpu in status.gpus),
        lost_records=position.lost,
        skipped_records=position.skipped,
    )


def _occurrences(items: Sequence[cases.Occurrence]) -> tuple[Occurrence, ...]:
    return tuple(to_core(item, Occurrence) for item in items)


def _unix(since: datetime | None) -> float:
    return since.timestamp() if since else 0.0
