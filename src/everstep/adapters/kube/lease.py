"""The Lease that lets one controller act: :class:`everstep.ports.LeaderLease`."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.kube.views import Lease, LeaseSpec
from everstep.core.errors import Conflict, NotFound


class KubeLeaderLease:
    """Compare-and-swap on one coordination.k8s.io Lease.

    Whether another holder's time is over is judged by how long its record did not change before this process's own
    eyes, so that no two clocks are ever compared.
    """

    def __init__(self, verbs: Verbs, namespace: str, name: str, now: Callable[[], float] = monotonic) -> None:
        self._verbs, self._name, self._now = verbs, name, now
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._watched: tuple[str, float] | None = None  # (resourceVersion, when it was first seen)

    async def hold(self, identity: str, seconds: float) -> bool:
        try:
            found = await self._verbs.get(f"{self._collection}/{self._name}", Lease)
        except NotFound:
            return await self._write(None, _spec(identity, seconds, None))
        if found.spec.holder_identity not in (None, "", identity) and not self._over(found):
            return False
        return await self._write(found, _spec(identity, seconds, found.spec))

    async def release(self, identity: str) -> None:
        try:
            found = await self._verbs.get(f"{self._collection}/{self._name}", Lease)
        except NotFound:
            return
        if found.spec.holder_identity == identity:
            await self._write(found, {"holderIdentity": "", "leaseDurationSeconds": 1})

    def _over(self, found: Lease) -> bool:
        version, now = found.metadata.resource_version, self._now()
        if self._watched is None or self._watched[0] != version:
            self._watched = (version, now)
            return False
        return now - self._watched[1] > (found.spec.lease_duration_seconds or 0)

    async def _write(self, found: Lease | None, spec: dict[str, object]) -> bool:
        body: dict[str, object] = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        try:
            if found is None:
                await self._verbs.create(self._collection, {**body, "metadata": {"name": self._name}})
            else:
                version = found.metadata.resource_version
                meta = {"name": self._name, "resourceVersion": version}
                await self._verbs.replace(f"{self._collection}/{self._name}", {**body, "metadata": meta})
        except Conflict:  # somebody else wrote first; who, the next call will see
            return False
        return True


def _spec(identity: str, seconds: float, before: LeaseSpec | None) -> dict[str, object]:
    now = datetime.now(UTC)
    stays = before is not None and before.holder_identity == identity
    acquired = before.acquire_time if before is not None and stays else now
    transitions = (before.lease_transitions or 0) if before is not None else 0
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, math.ceil(seconds)),
        "acquireTime": _micro(acquired or now),
        "renewTime": _micro(now),
        "leaseTransitions": transitions if stays or before is None else transitions + 1,
    }


def _micro(moment: datetime) -> str:
    """``MicroTime``: the API server insists on six digits."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
