"""``python -m everstep.apps.agent``: the node agent."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.adapters.gpu.catalog_files import catalog_with
from everstep.adapters.kube.connection import connect
from everstep.adapters.kube.own_node import OwnNode, Said
from everstep.adapters.kube.verbs import Verbs
from everstep.adapters.node.jobs import JobsOfProcesses
from everstep.apps.agent.backoff import Backoff
from everstep.apps.agent.kernel_log import KernelLogTask
from everstep.apps.agent.local_sources import add_source_flags, line_source, source_options, state_sources
from everstep.apps.agent.publisher import Heartbeat, Publisher
from everstep.apps.agent.questions import about, about_gpus
from everstep.apps.agent.state import State
from everstep.apps.agent.supervision import StateTask
from everstep.apps.gpu_settings import add_gpu_arguments, gpu_settings
from everstep.apps.probes import serve_probes
from everstep.core.diagnosis import GPUS, Diagnosis, resumed
from everstep.core.errors import EverstepError, RetryLater
from everstep.core.fault_catalog import Catalog
from everstep.core.kernel_lines.stream import RecordStream
from everstep.ports import GpuReader, LineSource, StateSource

FIRST_LOOK_BACK = 600_000_000  # microseconds: what the first agent of a node still counts, from before its own start

log = logging.getLogger(__name__)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="everstep agent", description="Watches one GPU node and says how it is.")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="name of this node (default: $NODE_NAME)")
    parser.add_argument(
        "--kmsg",
        default="",
        metavar="PATH",
        help="kernel log; journal: systemd's (default: /dev/kmsg where it can be read, else the journal)",
    )
    add_gpu_arguments(parser)
    add_source_flags(parser)
    parser.add_argument(
        "--allow-injected", action="store_true", help="count lines that programs wrote to the kernel log"
    )
    parser.add_argument(
        "--site-faults",
        type=Path,
        default=os.environ.get("EVERSTEP_SITE_FAULTS") or None,
        help="the site's own fault table, on top of the shipped one (default: $EVERSTEP_SITE_FAULTS)",
    )
    parser.add_argument("--lease-namespace", default="everstep-node-lease", help="default: %(default)s")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    parser.add_argument("--probe-port", type=int, default=0, help="port of /healthz and /readyz; 0: none")
    arguments = parser.parse_args(argv)
    if not arguments.node:
        parser.error("the node's name is missing: give --node or set NODE_NAME")
    return arguments


async def _start(own: OwnNode, arguments: argparse.Namespace) -> tuple[Said | None, str]:
    """What was said before, and this boot's id. Waits for the API server: without it records would count twice."""
    boot = gpu_settings(arguments).boot()
    backoff = Backoff()
    while True:
        try:
            return await own.stored(), boot.boot_id()
        except RetryLater as why:
            log.warning("cannot start yet: %s", why)
            await backoff.wait()


@dataclass(frozen=True, slots=True)
class Sources:
    """What this node has to be asked."""

    log: LineSource
    gpus: GpuReader
    states: Sequence[StateSource]
    jobs: JobsOfProcesses

    @property
    def names(self) -> tuple[str, ...]:
        return (self.log.name, GPUS, *(source.name for source in self.states))


def _sources(arguments: argparse.Namespace, stored: Diagnosis | None, boot_id: str) -> Sources:
    options = source_options(arguments, arguments.kmsg)
    reader, driver = gpu_settings(arguments).sources()
    known = [fault for fault in stored.faults if fault.boot_id == boot_id] if stored else []
    return Sources(
        line_source(options, boot_id),
        reader,
        (*driver, *state_sources(options, known)),
        JobsOfProcesses(options.host_root / "proc"),
    )


async def _run(arguments: argparse.Namespace, catalog: Catalog) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop, asyncio.current_task())
    async with connect(arguments.kubeconfig) as http, asyncio.TaskGroup() as tasks:
        own = OwnNode(Verbs(http), arguments.node, arguments.lease_namespace)
        ready = False
        if arguments.probe_port:
            await serve_probes(arguments.probe_port, lambda: ready)
        said, boot_id = await _start(own, arguments)
        stored = said.diagnosis if said else None
        sources = _sources(arguments, stored, boot_id)
        state = State(resumed(stored, boot_id, sources.names), catalog, time.time)
        not_before = 0 if said else time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - FIRST_LOOK_BACK
        stream = RecordStream(allow_injected=arguments.allow_injected, not_before=not_before)
        await _ask_all(state, sources, stream, tasks)
        if said is not None:
            state.inherit(said.inherited)
        publisher = Publisher(state, own, said)
        tasks.create_task(state.keep_time())
        tasks.create_task(publisher.run())
        await publisher.published.wait()
        tasks.create_task(Heartbeat(own, lambda: publisher.current).run())
        ready = True


async def _ask_all(state: State, sources: Sources, stream: RecordStream, tasks: asyncio.TaskGroup) -> None:
    """Starts every source and waits until each was asked once: nothing is said of the node before."""
    gpus = StateTask(state, about_gpus(state, sources.gpus))
    tasks.create_task(gpus.run())
    await gpus.tried.wait()  # first, so that the first faults already carry the serial of their GPU
    states = [StateTask(state, about(state, source)) for source in sources.states]
    log_task = KernelLogTask(state, sources.log, stream, sources.jobs)
    for run in (log_task.run, *(task.run for task in states)):
        tasks.create_task(run())
    for tried in (log_task.tried, *(task.tried for task in states)):
        await tried.wait()


def _stop(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM. Exit code 0 after SIGTERM; 1 with one line on stderr for what a retry cannot mend."""
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request is not worth its cost
    code = 0
    try:
        asyncio.run(_run(arguments, catalog_with(arguments.site_faults)))
    except* asyncio.CancelledError:
        log.info("stopped")
    except* EverstepError as group:
        log.error("everstep agent stops: %s", group.exceptions[0])
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
