"""Snapshots of every Slurm cluster side by side, such that one that hangs does not hold up the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from everstep.core.errors import EverstepError
from everstep.core.scheduler_state import SchedulerLook, SchedulerSnapshot, SilentCluster

# Seconds. ``scontrol show node`` of 5,000 nodes takes 0.1 s; a busy slurmctld may take a few.
PATIENCE = 4.0
MOST_PATIENCE = 9.0  # below what the engine gives the whole look
ASK_AGAIN = 1.0


class Roundup:
    """Asks all clusters at once, and waits for each as long as it is known to need.

    A cluster that lets us wait too long is asked again beside the looks; until it has answered, looks say at once that
    it is silent.

    Args:
        ask: one fresh snapshot of (cluster, base URL).
        pools: the labels that the nodes of each pool of a cluster carry; None when they are not known.
    """

    def __init__(
        self,
        ask: Callable[[str, str], Awaitable[SchedulerSnapshot]],
        pools: Callable[[str], tuple[Mapping[str, str], ...] | None],
    ) -> None:
        self._ask, self._pools = ask, pools
        self._nodes: dict[str, frozenset[str]] = {}
        self._patience: dict[str, float] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    async def look(self, endpoints: Iterable[tuple[str, str]]) -> SchedulerLook:
        """One fresh snapshot of each that answers in time."""
        asked = list(endpoints)
        self._forget(cluster for cluster in list(self._probes) if cluster not in dict(asked))
        found = await asyncio.gather(*(self._one(cluster, url) for cluster, url in asked))
        return SchedulerLook(
            tuple(each for each in found if isinstance(each, SchedulerSnapshot)),
            tuple(each for each in found if isinstance(each, SilentCluster)),
        )

    async def close(self) -> None:
        probes = list(self._probes.values())
        self._forget(list(self._probes))
        await asyncio.gather(*probes, return_exceptions=True)

    async def _one(self, cluster: str, url: str) -> SchedulerSnapshot | SilentCluster:
        patience = self._patience.get(cluster, PATIENCE)
        late = f"Slurm cluster {cluster} does not answer within {patience:.0f} s"
        if cluster in self._probes:
            return self._silent(cluster, late)
        try:
            async with asyncio.timeout(patience):
                snapshot = await self._ask(cluster, url)
        except TimeoutError:
            self._probes.setdefault(cluster, asyncio.create_task(self._probe(cluster, url)))
            return self._silent(cluster, late)
        except EverstepError as error:
            return self._silent(cluster, str(error))
        self._nodes[cluster] = frozenset(node.name for node in snapshot.nodes)
        return snapshot

    def _silent(self, cluster: str, why: str) -> SilentCluster:
        return SilentCluster(cluster, why, self._nodes.get(cluster, frozenset()), self._pools(cluster))

    async def _probe(self, cluster: str, url: str) -> None:
        """Until it says something, if only that it cannot; then looks wait for it again, twice as long as it took."""
        try:
            while True:
                began = time.monotonic()
                answered = await self._answers(cluster, url)
                took = time.monotonic() - began
                if answered:
                    self._patience[cluster] = min(MOST_PATIENCE, max(PATIENCE, 2 * took))
                if answered or took < PATIENCE:
                    return
                await asyncio.sleep(ASK_AGAIN)
        finally:
            self._probes.pop(cluster, None)

    async def _answers(self, cluster: str, url: str) -> bool:
        try:
            await self._ask(cluster, url)
        except EverstepError:
            return False
        return True

    def _forget(self, clusters: Iterable[str]) -> None:
        for cluster in clusters:
            self._probes[cluster].cancel()
