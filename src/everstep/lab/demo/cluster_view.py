"""What the demo reads from the API server: remediations, nodes, node health, events. Read-only."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import httpx2
import msgspec

from everstep.api.node_health import NodeHealthStatus
from everstep.api.remediation import RemediationSpec, RemediationStatus
from everstep.core.cluster_state import POOL_LABEL
from everstep.core.remediation_status import Step as CoreStep
from everstep.core.remediation_status import StepName, order_violations
from everstep.lab.cluster import Lab
from everstep.lab.demo.evidence import NodeEvidence, Record, Step
from everstep.lab.errors import LabError

GROUP = "/apis/everstep.io/v1alpha1"


class Meta(msgspec.Struct, rename="camel"):
    name: str
    labels: dict[str, str] = {}
    creation_timestamp: datetime | None = None


class RemediationObject(msgspec.Struct):
    metadata: Meta
    spec: RemediationSpec
    status: RemediationStatus | None = None


class NodeHealthObject(msgspec.Struct):
    metadata: Meta
    status: NodeHealthStatus | None = None


class Objects(msgspec.Struct):
    items: list[msgspec.Raw] = []


class ClusterView:
    """A reader with the lab's admin certificate. Every method raises LabError when the server does not answer."""

    def __init__(self, lab: Lab) -> None:
        pki = lab.layout.pki
        trust = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        trust.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._http = httpx2.Client(base_url=lab.addresses.api, verify=trust, trust_env=False, timeout=10)

    def __enter__(self) -> ClusterView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _get(self, path: str) -> bytes:
        try:
            answer = self._http.get(path)
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise LabError(f"cannot read {path} from the API server: {error}") from error
        return answer.content

    def remediation_of(self, node: str, since: float = 0.0) -> RemediationObject | None:
        """The youngest remediation of that node that was opened at or after ``since``, Unix seconds."""
        found = [
            msgspec.json.decode(raw, type=RemediationObject)
            for raw in msgspec.json.decode(self._get(f"{GROUP}/remediations"), type=Objects).items
        ]
        # The API server keeps whole seconds.
        mine = [r for r in found if r.spec.node == node and _opened(r) >= int(since)]
        return max(mine, key=_opened, default=None)

    def node(self, name: str, slurm_states: frozenset[str]) -> NodeEvidence | None:
        """One node as Kubernetes and its agent show it; None when there is no such Node."""
        items: list[dict[str, Any]] = msgspec.json.decode(self._get("/api/v1/nodes"))["items"]
        node = next((item for item in items if item["metadata"]["name"] == name), None)
        if node is None:
            return None
        conditions = node.get("status", {}).get("conditions", [])
        return NodeEvidence(
            name=name,
            pool=node["metadata"].get("labels", {}).get(POOL_LABEL),
            schedulable=not node["spec"].get("unschedulable", False),
            ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
            verdict=self._verdict(name),
            slurm_states=slurm_states,
        )

    def _verdict(self, node: str) -> str:
        for raw in msgspec.json.decode(self._get(f"{GROUP}/nodehealths"), type=Objects).items:
            health = msgspec.json.decode(raw, type=NodeHealthObject)
            if health.metadata.name == node and health.status:
                return str(health.status.verdict)
        return "Unknown"

    def events_about(self, name: str) -> list[str]:
        """``Reason: message`` of every Event on an object of that name."""
        items = msgspec.json.decode(self._get(f"/api/v1/events?fieldSelector=involvedObject.name={name}"))["items"]
        return [f"{event.get('reason', '')}: {event.get('message', '')}" for event in items]

    def login_endpoint(self, namespace: str, cluster: str) -> tuple[str, int]:
        """Host and port at which the cluster's users log in. Raises LabError while there is none."""
        raw: dict[str, Any] = msgspec.json.decode(self._get(f"{GROUP}/namespaces/{namespace}/slurmclusters/{cluster}"))
        endpoint = raw.get("status", {}).get("login", {}).get("endpoint", "")
        host, _, port = endpoint.rpartition(":")
        if not host:
            raise LabError(f"SlurmCluster {namespace}/{cluster} has no login endpoint yet")
        return host, int(port)


def record_of(remediation: RemediationObject | None, job: str) -> Record:
    """The record in the demo's own words; an empty one when there is no remediation."""
    if remediation is None or remediation.status is None:
        return Record("", "", "no Remediation was opened", (), None)
    status = remediation.status
    mine = next((j for j in status.jobs if j.id == job), None)
    replacement = status.replacement
    return Record(
        name=remediation.metadata.name,
        outcome=str(status.outcome or ""),
        reason=status.reason,
        steps=tuple(Step(str(s.name), s.at.timestamp(), s.reason) for s in status.steps),
        replacement=replacement.node if replacement else None,
        released_at=_seconds(mine.released_at) if mine else None,
        in_service_at=_seconds(replacement.in_service_at) if replacement else None,
    )


def violations(steps: Sequence[Step]) -> tuple[str, ...]:
    """What contradicts the declared order of the promise."""
    return tuple(order_violations(CoreStep(StepName(s.name), s.at, s.reason) for s in steps))


def _opened(remediation: RemediationObject) -> float:
    return _seconds(remediation.metadata.creation_timestamp) or 0.0


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
