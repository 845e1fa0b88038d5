"""``python -m everstep.apps.slurm_operator``: makes a running Slurm of each SlurmCluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from everstep.adapters.kube.connection import connect, own_namespace
from everstep.adapters.kube.lease import KubeLeaderLease
from everstep.adapters.kube.store import Key
from everstep.adapters.kube.verbs import Verbs
from everstep.apps.probes import serve_probes
from everstep.apps.slurm_operator.desired import Settings
from everstep.apps.slurm_operator.reconcile import Reconciler
from everstep.apps.slurm_operator.watched import Watched
from everstep.core.errors import EverstepError, RetryLater
from everstep.engine.leader import Leadership
from everstep.engine.queue import WorkQueue

log = structlog.get_logger("everstep.slurm_operator")
LEASE = "everstep-slurm-operator"
RESYNC_SECONDS = 300.0
_WORKERS = 2


class WallClock:
    """The real time."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(prog="everstep slurm-operator", description="Runs a Slurm for each SlurmCluster.")
    parser.add_argument("--slurm-image", default=env.get("EVERSTEP_SLURM_IMAGE", "docker.io/everstep/slurm"))
    parser.add_argument("--namespace", default=own_namespace(), help="of Everstep itself (default: %(default)s)")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument("--probe-port", type=int, default=int(env.get("EVERSTEP_PROBE_PORT", "0")), help="0: none")
    parser.add_argument("--cluster-domain", default=_cluster_domain(Path("/etc/resolv.conf")))
    return parser.parse_args(argv)


def _cluster_domain(resolv_conf: Path) -> str:
    """The DNS domain of the cluster, as the kubelet wrote it for this pod."""
    with contextlib.suppress(OSError):
        for line in resolv_conf.read_text().splitlines():
            for word in line.split()[1:] if line.startswith("search") else []:
                if word.startswith("svc."):
                    return word.removeprefix("svc.")
    return "cluster.local"


async def run(arguments: argparse.Namespace) -> None:
    """Until cancelled."""
    clock = WallClock()
    queue = WorkQueue(clock)
    ready = False
    settings = Settings(
        slurm_image=arguments.slurm_image,
        gateway_callers=(f"system:serviceaccount:{arguments.namespace}:everstep-controller",),
        cluster_domain=arguments.cluster_domain,
    )
    async with contextlib.AsyncExitStack() as stack:
        if arguments.probe_port:
            await serve_probes(arguments.probe_port, lambda: ready)
        http = await stack.enter_async_context(connect(arguments.kubeconfig))
        verbs = Verbs(http)
        identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{os.getpid()}"
        leadership = Leadership(KubeLeaderLease(verbs, arguments.namespace, LEASE), clock, identity)
        stack.push_async_callback(leadership.release)
        watched = Watched(lambda key: queue.add("/".join(key)))
        reconciler = Reconciler(verbs, watched, settings, lambda: datetime.now(UTC))
        async with asyncio.TaskGroup() as tasks:
            for each in (*watched.follows(http), leadership.run(), _resync(watched, queue, reconciler)):
                tasks.create_task(each)
            await watched.synced()
            tasks.create_task(_sweep(queue, reconciler))
            ready = True
            log.info("slurm operator started", identity=identity)
            for _ in range(_WORKERS):
                tasks.create_task(_work(queue, reconciler, leadership))


async def _work(queue: WorkQueue, reconciler: Reconciler, leadership: Leadership) -> None:
    while True:
        name = await queue.get()
        namespace, _, cluster = name.partition("/")
        try:
            if not leadership.leading:
                queue.add_after(name, 0.5)
                continue
            again = await reconciler.reconcile((namespace, cluster))
            queue.succeeded(name)
            if again is not None:
                queue.add_after(name, again)
        except EverstepError as why:
            log.warning("will try again", cluster=name, why=str(why), seconds=queue.failed(name))
        except Exception:
            log.exception("a pass failed", cluster=name)
            queue.failed(name)
        finally:
            queue.done(name)


async def _sweep(queue: WorkQueue, reconciler: Reconciler) -> None:
    while True:
        try:
            for key in await reconciler.abandoned():
                queue.add("/".join(key))
            return
        except RetryLater as why:
            log.warning("cannot look for rights of deleted clusters yet", why=str(why))
            await asyncio.sleep(5)
        except EverstepError as why:
            log.warning("rights of clusters that were deleted meanwhile stay", why=str(why))
            return


async def _resync(watched: Watched, queue: WorkQueue, reconciler: Reconciler) -> None:
    """What somebody changed by hand is put back, even if no watch tells of it."""
    while True:
        await asyncio.sleep(RESYNC_SECONDS)
        reconciler.forget()
        with contextlib.suppress(EverstepError):
            keys: list[Key] = [key for key, _ in watched.clusters.items()]
            for key in keys:
                queue.add("/".join(key))


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM: exit code 0 then; 1 with one line on stderr for what a retry cannot mend."""
    arguments = _arguments(argv)
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

    async def until_told() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await run(arguments)

    code = 0
    try:
        asyncio.run(until_told())
    except* asyncio.CancelledError:
        log.info("stopped")
    except* EverstepError as group:
        log.error("everstep slurm operator stops", why=str(group.exceptions[0]))
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
