"""Where the gateway of each SlurmCluster is, and which nodes may be its: watched, so that asking costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx2
import msgspec

from everstep.adapters.kube.store import Store
from everstep.adapters.kube.stream import follow
from everstep.adapters.kube.wire import ObjectMeta
from everstep.api.meta import API_VERSION
from everstep.api.slurm_cluster import SlurmClusterSpec
from everstep.core.errors import Unreadable

SLURM_CLUSTERS = f"/apis/{API_VERSION}/slurmclusters"
GATEWAY_PORT = 6840


class SlurmClusterView(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Known:
    """One SlurmCluster; ``pools`` None: its spec cannot be understood."""

    cluster: str
    url: str
    pools: tuple[Mapping[str, str], ...] | None


class SlurmClusters:
    """Every SlurmCluster, the address of its gateway's Service, and the labels of its nodes."""

    def __init__(self) -> None:
        self.store: Store[SlurmClusterView, Known] = Store("slurmclusters", _known)

    async def follow(self, http: httpx2.AsyncClient) -> None:
        """Watches until cancelled."""
        await follow(http, SLURM_CLUSTERS, SlurmClusterView, self.store)

    def endpoints(self) -> Iterable[tuple[str, str]]:
        """(namespace/name, base URL) of each.

        Raises:
            Unreachable: the list is not known.
            Unreadable: a SlurmCluster cannot be understood; the jobs on its nodes must not be overlooked.
        """
        known = self.store.all()
        for (namespace, name), why in self.store.unreadable.items():
            raise Unreadable(f"SlurmCluster {namespace}/{name} cannot be read: {why}")
        return [(each.cluster, each.url) for each in known]

    def pools(self, cluster: str) -> tuple[Mapping[str, str], ...] | None:
        """The labels that the nodes of each pool carry; None when they are not known."""
        namespace, _, name = cluster.partition("/")
        known = self.store.find(name, namespace)
        return known.pools if known else None


_spec = msgspec.json.Decoder(SlurmClusterSpec)


def _known(view: SlurmClusterView) -> Known:
    meta = view.metadata
    try:
        pools = tuple(pool.selector.match_labels for pool in _spec.decode(view.spec).node_pools)
    except msgspec.DecodeError:  # its gateway can be asked all the same
        pools = None
    url = f"http://{meta.name}-gateway.{meta.namespace}.svc:{GATEWAY_PORT}"
    return Known(f"{meta.namespace}/{meta.name}", url, pools)
