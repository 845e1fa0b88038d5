"""Storage of what many nodes share: :class:`everstep.ports.FleetIncidents`. Few objects, so each look lists them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec
import structlog

from everstep.adapters.kube.mirror import to_api, to_core
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.fleet_incident import FleetIncidentStatus
from everstep.api.meta import API_VERSION
from everstep.core.correlation.fleet import FleetRecord
from everstep.core.errors import NotFound

log = structlog.get_logger(__name__)

FLEET_INCIDENTS = f"/apis/{API_VERSION}/fleetincidents"


class _Object(msgspec.Struct, frozen=True):
    """The status is decoded on its own, so that one that cannot be understood still has a name."""

    metadata: ObjectMeta
    status: msgspec.Raw = msgspec.Raw(b"null")


class _List(msgspec.Struct, frozen=True):
    items: list[_Object]


_status = msgspec.json.Decoder(FleetIncidentStatus)


class KubeFleetIncidents:
    """Reads are lists, writes are server-side applies of the whole object."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def list(self) -> Sequence[FleetRecord]:
        items = (await self._verbs.get(FLEET_INCIDENTS, _List)).items
        return [record for each in items if (record := _record(each)) is not None]

    async def write(self, record: FleetRecord) -> None:
        status = to_api(
            record,
            FleetIncidentStatus,
            node_count=len(record.nodes),
            state="Active" if record.ended_at is None else "Over",
        )
        body = {
            "apiVersion": API_VERSION,
            "kind": "FleetIncident",
            "metadata": {"name": record.name},
            "status": status,
        }
        await self._verbs.apply(f"{FLEET_INCIDENTS}/{record.name}", body)

    async def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._verbs.delete(f"{FLEET_INCIDENTS}/{name}")


def _record(found: _Object) -> FleetRecord | None:
    name = found.metadata.name
    try:
        return to_core(_status.decode(found.status), FleetRecord, name=name)
    except msgspec.DecodeError as why:
        log.warning("a fleet incident cannot be understood and is left alone; delete it", name=name, error=str(why))
        return None
