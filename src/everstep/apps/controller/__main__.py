"""``python -m everstep.apps.controller``: wires the engine to Kubernetes, Slurm, the machines' provider and people."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import structlog

from everstep.adapters.kube.caches import Caches
from everstep.adapters.kube.cluster import KubeCluster
from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.events import Recorder
from everstep.adapters.kube.fleet_incidents import KubeFleetIncidents
from everstep.adapters.kube.lease import KubeLeaderLease
from everstep.adapters.kube.remediations import KubeRemediations
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.notify.announcer import Announcer
from everstep.adapters.provider.machine_api import MachineApi
from everstep.adapters.slurm.client import GatewayScheduler
from everstep.apps.controller.settings import Settings, read_settings
from everstep.apps.controller.slurm_clusters import SlurmClusters
from everstep.apps.probes import serve_probes
from everstep.core.errors import EverstepError, Unreachable
from everstep.engine.controller import Controller
from everstep.engine.leader import Leadership
from everstep.engine.world import World
from everstep.ports import Operation, Provider

LEASE = "everstep-controller"
log = structlog.get_logger("everstep.controller")


class WallClock:
    """The real time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SinceBoot(WallClock):
    """Time that nobody can set back, and that goes on while the machine sleeps: the clock of leadership."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class NoProvider:
    """Without a provider nobody takes machines back: the heal says so and calls a person."""

    async def operation(self, operation_id: str) -> Operation | None:
        raise Unreachable("no machine provider is configured (set provider.url)")

    async def retire(self, operation_id: str, machine: str) -> None:
        raise Unreachable("no machine provider is configured (set provider.url)")


async def run(settings: Settings) -> None:
    """Until cancelled. Raises EverstepError for what a retry cannot mend."""
    ready = False
    async with contextlib.AsyncExitStack() as stack:
        if settings.probe_port:
            await serve_probes(settings.probe_port, lambda: ready)
        http = await stack.enter_async_context(connect(settings.kubeconfig))
        caches = await _watch(stack, http)
        slurm_clusters = SlurmClusters()
        watching = asyncio.create_task(slurm_clusters.follow(http))
        stack.callback(watching.cancel)
        verbs = Verbs(http)
        cluster = KubeCluster(verbs, caches, Recorder(verbs))
        scheduler = GatewayScheduler(
            slurm_clusters.endpoints, _token_of(settings.gateway_token), pools=slurm_clusters.pools
        )
        await stack.enter_async_context(scheduler)
        clock = WallClock()
        world = World(
            clock=clock,
            cluster=cluster,
            scheduler=scheduler,
            provider=await _provider(stack, settings),
            notifier=Announcer(cluster.event, settings.notify_urls),
            remediations=KubeRemediations(verbs, caches),
            fleet_incidents=KubeFleetIncidents(verbs),
        )
        leadership = Leadership(KubeLeaderLease(verbs, settings.namespace, LEASE), SinceBoot(), settings.identity)
        stack.push_async_callback(leadership.release)
        ready = True
        log.info("controller started", identity=settings.identity)
        await Controller(world, leadership, caches).run()


async def _watch(stack: contextlib.AsyncExitStack, http: httpx2.AsyncClient) -> Caches:
    """Waits for the API server as long as it takes: a controller that gives up heals nothing."""
    while True:
        caches = Caches()
        try:
            return await stack.enter_async_context(caches.running(http))
        except Unreachable as why:
            log.warning("cannot start yet", why=str(why))


async def _provider(stack: contextlib.AsyncExitStack, settings: Settings) -> Provider:
    if not settings.machine_api:
        log.warning("no machine provider is configured: faulty machines will not be handed back")
        return NoProvider()
    return await stack.enter_async_context(MachineApi(settings.machine_api, settings.machine_api_token))


def _token_of(path: Path) -> Callable[[], str]:
    def token() -> str:
        try:
            return path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise Unreachable(f"the gateway token cannot be read from {path}: {error}") from None

    return token


def _log_setup() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")


async def _until_told(settings: Settings) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await run(settings)


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM: exit code 0 then; 1 with one line on stderr for what a retry cannot mend."""
    settings = read_settings(argv)
    _log_setup()
    try:
        asyncio.run(_until_told(settings))
    except asyncio.CancelledError:
        log.info("stopped")
    except EverstepError as error:
        log.error("everstep controller stops", why=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
