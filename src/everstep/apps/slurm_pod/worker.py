"""slurmd on one node: the record that Slurm keeps of the node is put right before and after it registers.

Three traps, all met on real clusters: a node that returns with other GPUs keeps its old record; a record may keep the
address of a pod that is gone; and a drain that we set when the last pod stopped must end with the next one's start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from pathlib import Path

from everstep.adapters.slurm.cli import SlurmCommands
from everstep.adapters.slurm.operations import SlurmOperations
from everstep.adapters.slurm.reads import SlurmReads
from everstep.adapters.slurm.tokens import TokenSource
from everstep.apps.slurm_pod import keys, layout
from everstep.apps.slurm_pod.controller import in_background
from everstep.apps.slurm_pod.layout import WorkerPod
from everstep.apps.slurm_pod.slurmd import Slurmd
from everstep.core.errors import EverstepError, NotFound, RetryLater
from everstep.core.slurm_conf import CONTROLLER_PORT
from everstep.core.slurm_text import parse_nodes
from everstep.core.slurm_worker import STOPPING, record_differs, registered_since

log = logging.getLogger(__name__)
_PAUSE = 0.2  # seconds between questions while waiting for something that takes a second or two


def slurm() -> SlurmCommands:
    """Slurm's command line with a token of root's: neither munge nor slurmd is needed for it."""
    return SlurmCommands(layout.CONFIG / "client.conf", TokenSource(layout.KEYS / "jwt.key", "root").token)


def run() -> None:
    """Starts slurmd, once the controller answers, and ends with it."""
    pod = WorkerPod.from_environment()
    with contextlib.suppress(PermissionError):
        socket.sethostname(pod.node)  # researchers see the node's name in their prompts and logs
    keys.wait_for_munge()
    Path("/var/spool/slurmd").mkdir(parents=True, exist_ok=True)
    asyncio.run(_before(pod))
    started = time.time()
    in_background(lambda: asyncio.run(_after(pod, started)))
    server = f"{pod.controller}:{CONTROLLER_PORT}"
    argv = ["slurmd", "-D", "-Z", "-N", pod.node, "--conf-server", server, "--conf", pod.conf]
    sys.exit(asyncio.run(Slurmd(argv, lambda: _controller_listens(pod.controller)).run()))


async def _before(pod: WorkerPod) -> None:
    await _controller_listens(pod.controller)
    commands = slurm()
    while True:
        try:
            await _mend_record(pod, commands)
            return
        except RetryLater as why:
            log.warning("cannot look at this node's record yet: %s", why)
            await asyncio.sleep(_PAUSE)


async def _controller_listens(host: str) -> None:
    """Slurm's own clients would each spend 9 seconds on a controller that is not there yet."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, CONTROLLER_PORT)
        except OSError:
            await asyncio.sleep(_PAUSE)
        else:
            writer.close()
            return


async def _mend_record(pod: WorkerPod, commands: SlurmCommands) -> None:
    try:
        text = await commands.run("scontrol", "-a", "show", "node", pod.node, "-d", "-o")
    except NotFound:
        return  # the first time that this node registers
    if record_differs(text, pod.conf):
        try:
            await SlurmOperations(commands, SlurmReads(commands)).forget(pod.node)
            log.info("the node has changed: its old record was deleted")
        except EverstepError as why:
            log.warning("the node has changed, but its old record stays: %s", why)
    elif any(node.address != pod.address for node in parse_nodes(text)):
        await _set_address(pod, commands)


async def _set_address(pod: WorkerPod, commands: SlurmCommands) -> None:
    await commands.run("scontrol", "update", f"nodename={pod.node}", f"nodeaddr={pod.address}")
    log.info("Slurm was told this node's new address %s", pod.address)


async def _after(pod: WorkerPod, started: float) -> None:
    commands = slurm()
    operations = SlurmOperations(commands, SlurmReads(commands))
    while True:
        try:
            text = await commands.run("scontrol", "-a", "show", "node", pod.node, "-d", "-o")
            (node,) = parse_nodes(text)
            if node.address != pod.address:
                await _set_address(pod, commands)
            elif registered_since(text, started):
                if "DRAIN" in node.states and node.reason.startswith(STOPPING):
                    await operations.resume(pod.node, STOPPING)
                    log.info("back in service: the drain was set when the last pod stopped")
                layout.REGISTERED.touch()
                return
        except (EverstepError, ValueError) as why:
            if not isinstance(why, NotFound):
                log.warning("cannot look at this node's record: %s", why)
        await asyncio.sleep(_PAUSE if time.time() < started + 20 else 2.0)
