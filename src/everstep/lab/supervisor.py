"""The one process of ours that a lab has: `python -m everstep.lab.supervisor NAME`.

It starts everything, watches everything, is the simulated hardware and the file server, and answers `everstep lab`.
Nodes and control plane do not die with it; `down` finds them without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import traceback
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from everstep.lab import cgroups, imagestore
from everstep.lab.bringup import bring_up, prepare
from everstep.lab.errors import LabError
from everstep.lab.hardware.service import Hardware, hardware
from everstep.lab.hardware.settings import HardwareSettings, MachineSettings
from everstep.lab.layout import MACHINE_API_PORT, LabLayout, LabPlan
from everstep.lab.machines import LabPower
from everstep.lab.requests import serve_requests
from everstep.lab.state import LabState, ProcessId
from everstep.lab.storage import serve_storage
from everstep.lab.switchboard import Switchboard


def hardware_settings(board: Switchboard) -> HardwareSettings:
    """Every machine of the lab, as its simulated hardware needs to know it."""
    layout, config = board.layout, board.config
    machines = tuple(
        MachineSettings(
            name=node,
            gpus=config.gpus if node in config.gpu_nodes else 0,
            run_directory=str(layout.node_run(node)),
            kubelet_directory=str(layout.kubelet(node)),
            pid_file=str(layout.node(node) / "pid"),
            pool=config.pool if node in config.gpu_nodes else None,
        )
        for node in config.all_nodes
    )
    return HardwareSettings(
        lab=layout.name,
        directory=str(layout.root),
        machines=machines,
        api_host=board.addresses.gateway,
        api_port=MACHINE_API_PORT,
        api_namespace=f"/run/netns/{layout.netns()}",
        token_file=str(layout.machine_token),
        repair_seconds=config.repair_seconds,
    )


async def supervise(board: Switchboard, plan: LabPlan) -> None:
    """Brings the lab up and looks after it until `stop` is asked. Raises what broke it."""
    async with AsyncExitStack() as stack:
        power = LabPower(board)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(serve_requests(board.layout, power.handlers()), name="requests")
        starting = group.create_task(_fail_early(board), name="crash loops")
        store = await prepare(board, [Path(archive) for archive in plan.archives], Path(plan.binaries))
        held = stack.enter_context(imagestore.hold(store))
        assert held is not None, "only deletion is exclusive, and it never waits"
        board.held = held
        machines: Hardware = await stack.enter_async_context(hardware(hardware_settings(board), power))
        board.start_boot = machines.boot
        client = await bring_up(board, store)
        power.client = client
        group.create_task(serve_storage(client, board), name="file server")
        starting.cancel()
        board.state.phase, board.state.message = "ready", ""
        board.milestone("ready")
        board.report(f"ready after {board.state.timings['ready']:.1f} s")
        await asyncio.to_thread(imagestore.prune_stores, store)
        await asyncio.Event().wait()


async def _fail_early(board: Switchboard) -> None:
    raise LabError(await board.broken.get())


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"


async def _run(layout: LabLayout, plan: LabPlan) -> None:
    state = LabState("starting", ProcessId.of(os.getpid()), time.time())
    board = Switchboard(layout, plan.config, state)
    board.save()
    try:
        await supervise(board, plan)
    except BaseException as error:
        traceback.print_exc()
        state.phase, state.message = "failed", _reason(error)
        board.problem(state.message)
        raise


def main() -> None:
    layout = LabLayout.of(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    plan = msgspec.json.decode(layout.plan_file.read_bytes(), type=LabPlan)
    # Whatever is started from here on is found by `down`, even if this process is killed in the middle of it.
    cgroups.create(f"{layout.cgroup}/supervisor")
    cgroups.join(f"{layout.cgroup}/supervisor")
    asyncio.run(_run(layout, plan))


if __name__ == "__main__":
    main()
