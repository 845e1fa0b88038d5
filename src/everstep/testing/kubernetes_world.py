"""A Kubernetes cluster in the hands of a contract test: the ports under test, and hands to put objects behind them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from everstep.core.cluster_state import NodeView
from everstep.core.health import NodeReport
from everstep.ports import Cluster, LeaderLease, Remediations

WITHIN = 10.0  # seconds for a write to be seen by a read


class KubernetesWorld(Protocol):
    """A cluster in the hands of a test. Everything that a test makes has a name that starts with ``prefix``."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def remediations(self) -> Remediations: ...

    @property
    def prefix(self) -> str: ...

    def lease(self, name: str) -> LeaderLease:
        """One more process that wants to hold the Lease ``name``."""
        ...

    async def pause(self, seconds: float) -> None: ...

    async def add_node(self, name: str, labels: Mapping[str, str], taints: tuple[str, ...] = ()) -> None: ...

    async def add_pod(self, node: str, name: str) -> None: ...

    async def report(self, report: NodeReport) -> None:
        """What the node's agent would write, and a heartbeat now."""
        ...


async def eventually(world: KubernetesWorld, ask: Callable[[], Awaitable[object]], what: str) -> None:
    """Reads may lag behind writes; waits until ``ask`` gives something true."""
    give_up = time.monotonic() + WITHIN
    while not await ask():
        assert time.monotonic() < give_up, f"never came true: {what}"
        await world.pause(0.02)


async def node_of(world: KubernetesWorld, name: str) -> NodeView:
    node = await world.cluster.node(name)
    assert node is not None, f"no node {name}"
    return node
