"""Storage of incidents and of the policy in custom resources: :class:`everstep.ports.Remediations`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everstep.adapters.kube.caches import REMEDIATIONS, Caches
from everstep.adapters.kube.records import FINALIZER, RemediationObject, new_body, remediation_of, status_body
from everstep.adapters.kube.verbs import Verbs
from everstep.core.errors import Conflict, NotFound, Unreadable
from everstep.core.policy import Mode, Policy
from everstep.core.remediation_status import Remediation, Spec, Status

POLICY_IN_FORCE = "default"

_object = msgspec.json.Decoder(RemediationObject)


class KubeRemediations:
    """Reads come from the watch, except that this process's own last write is never forgotten while it is newer."""

    def __init__(self, verbs: Verbs, caches: Caches) -> None:
        self._verbs, self._caches = verbs, caches
        self._written: dict[str, Remediation] = {}
        caches.remediations.on_change(self._watched)

    def _watched(self, key: tuple[str, str], before: Remediation | None, after: Remediation | None) -> None:
        own = self._written.get(key[1])
        if own is None:
            return
        went = after is None  # gone or unreadable, and the watch says so in order: what it says is the newer
        if went or (after is not None and _newer(after, own)):
            del self._written[key[1]]

    async def list(self) -> Sequence[Remediation]:
        store = self._caches.remediations
        known = {remediation.name: remediation for remediation in store.all()}
        if unreadable := store.unreadable:
            (_, name), why = next(iter(unreadable.items()))
            raise Unreadable(f"remediation {name} cannot be read: {why}")
        return list({**known, **self._written}.values())

    async def create(self, name: str, spec: Spec) -> None:
        self._remember(await self._verbs.create(REMEDIATIONS, new_body(name, spec)))

    async def update_status(self, remediation: Remediation, status: Status) -> None:
        path = f"{REMEDIATIONS}/{remediation.name}/status"
        self._remember(await self._verbs.replace(path, status_body(remediation, status)))

    async def let_go(self, remediation: Remediation) -> None:
        path = f"{REMEDIATIONS}/{remediation.name}"
        try:
            found = await self._verbs.get(path, RemediationObject)
            if found.metadata.uid != remediation.uid or FINALIZER not in found.metadata.finalizers:
                return
            rest = [each for each in found.metadata.finalizers if each != FINALIZER]
            version = found.metadata.resource_version
            await self._verbs.merge(path, {"metadata": {"finalizers": rest, "resourceVersion": version}})
        except NotFound:
            return
        finally:
            self._written.pop(remediation.name, None)

    async def policy(self) -> Policy:
        """Where nobody wrote one, the defaults in mode dryRun: what nobody ordered is not done."""
        found = self._caches.policies.get(POLICY_IN_FORCE)
        return Policy(mode=Mode.DRY_RUN) if found is None else found

    def _remember(self, body: bytes) -> None:
        try:
            written = remediation_of(_object.decode(body))
        except msgspec.DecodeError as why:
            raise Conflict(f"the API server's answer to a write cannot be read: {why}") from why
        watched = self._caches.remediations.find(written.name)
        if watched is None or not _newer(watched, written):
            self._written[written.name] = written


def _newer(one: Remediation, other: Remediation) -> bool:
    """True when ``one`` is at least as new. A resourceVersion is a number and grows (Kubernetes 1.35 promises it)."""
    if one.uid != other.uid:
        return True
    return int(one.resource_version) >= int(other.resource_version)
