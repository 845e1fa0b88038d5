"""Where the gateway of each SlurmCluster is: watched, so that asking costs nothing."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
import msgspec

from everstep.adapters.kube.store import Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.meta import API_VERSION
from everstep.core.errors import Unreadable

SLURM_CLUSTERS = f"/apis/{API_VERSION}/slurmclusters"
GATEWAY_PORT = 6840


class SlurmClusterView(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class SlurmClusters:
    """Every SlurmCluster and the address of its gateway's Service."""

    def __init__(self) -> None:
        self.store: Store[SlurmClusterView, tuple[str, str]] = Store("slurmclusters", _endpoint)

    async def follow(self, http: httpx2.AsyncClient) -> None:
        """Watches until cancelled."""
        await follow(http, SLURM_CLUSTERS, SlurmClusterView, self.store)

    def endpoints(self) -> Iterable[tuple[str, str]]:
        """(namespace/name, base URL) of each.

        Raises:
            Unreachable: the list is not known.
            Unreadable: a SlurmCluster cannot be understood; the jobs on its nodes must not be overlooked.
        """
        endpoints = self.store.all()
        for (namespace, name), why in self.store.unreadable.items():
            raise Unreadable(f"SlurmCluster {namespace}/{name} cannot be read: {why}")
        return endpoints


def _endpoint(view: SlurmClusterView) -> tuple[str, str]:
    meta = view.metadata
    return f"{meta.namespace}/{meta.name}", f"http://{meta.name}-gateway.{meta.namespace}.svc:{GATEWAY_PORT}"
