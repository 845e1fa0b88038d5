"""Kubernetes Events, so that ``kubectl describe`` of a node, pod or Remediation tells what was done and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import structlog

from everstep.adapters.kube.verbs import AlreadyExists, Verbs
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.meta import API_VERSION
from everstep.core.errors import InvalidInput, NotFound

COMPONENT = "everstep-controller"
NOWHERE = "default"  # where Kubernetes itself keeps the Events of cluster-scoped objects
MESSAGE_LIMIT = 1024  # characters, the API server's own limit

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    api_version: str
    plural: str

    def path(self, name: str, namespace: str) -> str:
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{inside}/{self.plural}/{name}"


PLACES = {
    "Node": Place("v1", "nodes"),
    "Pod": Place("v1", "pods"),
    "NodeHealth": Place(API_VERSION, "nodehealths"),
    "Remediation": Place(API_VERSION, "remediations"),
    "FleetIncident": Place(API_VERSION, "fleetincidents"),
    "RemediationPolicy": Place(API_VERSION, "remediationpolicies"),
    "SlurmCluster": Place(API_VERSION, "slurmclusters"),
}


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about; "" for a uid that the caller does not know."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class Recorder:
    """Writes core/v1 Events. The same reason and sentence about the same object is one Event, whoever repeats it."""

    def __init__(self, verbs: Verbs, component: str = COMPONENT) -> None:
        self._verbs, self._component = verbs, component

    async def record(self, about: About, reason: str, message: str, warning: bool = False) -> None:
        """An object that does not exist gets no Event.

        Raises:
            InvalidInput: a kind that has no place here.
            RetryLater: the API server did not take it.
        """
        place = PLACES.get(about.kind)
        if place is None:
            raise InvalidInput(f"no Event can be written about a {about.kind}; known are {', '.join(PLACES)}")
        uid = about.uid or await self._uid(place, about)
        if not uid:
            log.info("no event: the object does not exist", kind=about.kind, name=about.name, reason=reason)
            return
        reference = {
            "apiVersion": place.api_version,
            "kind": about.kind,
            "name": about.name,
            "uid": uid,  # kubectl describe finds Events by it
            **({"namespace": about.namespace} if about.namespace else {}),
        }
        await self._write(reference, about.namespace or NOWHERE, reason, message[:MESSAGE_LIMIT], warning)

    async def _uid(self, place: Place, about: About) -> str:
        try:
            return (await self._verbs.get(place.path(about.name, about.namespace), Named)).metadata.uid
        except NotFound:
            return ""

    async def _write(self, about: dict[str, str], namespace: str, reason: str, message: str, warning: bool) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = sha256("\0".join((about["uid"], reason, message)).encode()).hexdigest()[:16]
        name = f"{about['name'][:200]}.{digest}"
        events = f"/api/v1/namespaces/{namespace}/events"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }
        try:
            await self._verbs.create(events, body)
        except AlreadyExists:
            await self._verbs.merge(f"{events}/{name}", {"lastTimestamp": now})
        except NotFound:  # the namespace is going away, and the object with it
            log.info("no event: the namespace does not exist", namespace=namespace, reason=reason)
