"""The lab's nodes as running things: power on and off, cable in and out, and an eye on every daemon."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from everstep.lab import cgroups, networks, nodes, processes
from everstep.lab.driver import install_driver
from everstep.lab.errors import LabError
from everstep.lab.imagestore import clone_store
from everstep.lab.layout import CONTROL, Addresses, LabConfig, LabLayout
from everstep.lab.nodes import NodeParts
from everstep.lab.pki import create_certificate, write_kubeconfig
from everstep.lab.state import DaemonState, LabState, NodeState, ProcessId, append_event, write_state

_HOPELESS = 3  # unexpected ends of a daemon before the lab is up: it will not work the next time either


class Switchboard:
    """Boots and kills the namespaces of one lab and keeps `state.json` true.

    `start_boot(node)` prepares the machine for power on and returns the new boot id (the simulated hardware does it).
    """

    def __init__(self, layout: LabLayout, config: LabConfig, state: LabState) -> None:
        self.layout = layout
        self.config = config
        self.state = state
        self.addresses = Addresses(0)
        self.binaries = Path()
        self.held: int | None = None
        self.broken: asyncio.Queue[str] = asyncio.Queue()
        self.start_boot: Callable[[str], str] = lambda _node: str(uuid.uuid4())
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    # --- telling -----------------------------------------------------------------------------------------------------
    def save(self) -> None:
        write_state(self.layout, self.state)

    def report(self, text: str) -> None:
        """Adds a line to the lab's events."""
        append_event(self.layout, text)

    def problem(self, text: str) -> None:
        """The same for something that should not have happened; it also stays in `status`."""
        append_event(self.layout, text, problem=True)
        self.state.problems = [*self.state.problems[-49:], text]
        self.save()

    def milestone(self, name: str) -> None:
        self.state.timings[name] = round(time.time() - self.state.started_at, 2)
        self.save()

    # --- making ------------------------------------------------------------------------------------------------------
    def parts(self, node: str) -> NodeParts:
        """Raises LabError for a node that the lab does not have."""
        try:
            number = self.config.all_nodes.index(node)
        except ValueError:
            raise LabError(
                f"no node {node!r} in lab {self.layout.name}; it has {', '.join(self.config.all_nodes)}"
            ) from None
        return NodeParts(self.layout, self.addresses, self.binaries, node, number)

    async def prepare_node(self, node: str, store: Path) -> None:
        """Everything of a node that outlives its boots: certificate, files, images."""
        parts = self.parts(node)
        labels, taints = self.registration(node)
        await asyncio.to_thread(nodes.write_files, parts, labels, taints)
        await asyncio.to_thread(install_driver, self.layout.node_run(node))
        await asyncio.gather(
            create_certificate(
                self.layout,
                node,
                f"system:node:{node}",
                "system:nodes",
                f"DNS:{node},IP:{self.addresses.node(parts.number)}",
            ),
            asyncio.to_thread(clone_store, store, parts.root / "containerd"),
        )
        write_kubeconfig(self.layout, self.addresses, node)

    def registration(self, node: str, *, spare: bool = False) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Labels and taints that the node has when it first joins the cluster."""
        gpu = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
        if node not in self.config.gpu_nodes:
            return {"everstep.io/role": "system"}, []
        if spare or node in self.config.spare_nodes:
            return {"everstep.io/spare-for": self.config.pool}, [
                gpu,
                {"key": "everstep.io/spare", "effect": "NoSchedule"},
            ]
        return {"everstep.io/pool": self.config.pool}, [gpu]

    async def boot_control(self) -> None:
        spec = nodes.control_spec(self.layout, self.addresses, self.binaries)
        await self._boot(CONTROL, spec, self.layout.control / "log" / "init.log")

    # --- switching ---------------------------------------------------------------------------------------------------
    async def switch_on(self, node: str) -> None:
        """Boots the node; returns when its first process runs. Nothing happens if it is on."""
        parts = self.parts(node)
        async with self._lock(node):
            if self._node(node).power == "on":
                return
            await networks.disconnect_node(self.layout, node)  # a boot that failed half way may have left some
            await networks.connect_node(self.layout, self.addresses, node, parts.number)
            boot_id = self.start_boot(node)
            await self._boot(node, nodes.node_spec(parts, boot_id), parts.root / "log" / "init.log", boot_id)

    async def switch_off(self, node: str) -> None:
        """Cuts the power: when this returns no process of the node is left. Nothing happens if it is off."""
        self.parts(node)
        async with self._lock(node):
            state = self._node(node)
            state.power = "off"  # first, so that the watcher knows that this end was wanted
            if watcher := self._watchers.pop(node, None):
                watcher.cancel()
            process = self._processes.pop(node, None)
            if process and process.returncode is None:
                process.kill()
                await process.wait()
            await self._clear(node)

    async def _clear(self, node: str) -> None:
        state, group = self._node(node), f"{self.layout.cgroup}/{node}"
        await asyncio.to_thread(cgroups.kill_members, group)
        await networks.disconnect_node(self.layout, node)
        await asyncio.to_thread(cgroups.remove, group)
        (self.layout.node(node) / "pid").unlink(missing_ok=True)
        state.cable, state.holder, state.daemons = "plugged", None, {}
        self.save()

    async def plug(self, node: str, *, plugged: bool) -> None:
        """Pulls the node's cable or puts it back. Raises LabError if the node has no power."""
        self.parts(node)
        async with self._lock(node):
            if self._node(node).power == "off":
                raise LabError(f"{node} is off: power it on first")
            await networks.set_cable(self.layout, node, plugged=plugged)
            self._node(node).cable = "plugged" if plugged else "cut"
            self.save()

    # --- watching ----------------------------------------------------------------------------------------------------
    async def _boot(self, node: str, spec: dict[str, object], log: Path, boot_id: str | None = None) -> None:
        process = await nodes.boot(self.layout, node, spec, log, self.held)
        state = self._node(node)
        state.power, state.boot_id, state.boots = "on", boot_id, state.boots + 1
        state.holder = ProcessId.of(process.pid)
        self._processes[node] = process
        self.save()
        await self._record_first_process(node, process, log)
        self._watchers[node] = asyncio.create_task(self._watch(node, process, log), name=f"watch {node}")

    async def _record_first_process(self, node: str, process: asyncio.subprocess.Process, log: Path) -> None:
        for _ in range(500):
            if process.returncode is not None:
                raise LabError(f"{node} does not boot: see {log}")
            if pid := processes.first_child(process.pid):
                (log.parent.parent / "pid").write_text(f"{pid}\n")
                return
            await asyncio.sleep(0.01)
        raise LabError(f"{node} has no first process after 5 s: see {log}")

    async def _watch(self, node: str, process: asyncio.subprocess.Process, log: Path) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with suppress(json.JSONDecodeError):  # a mount program's own words are no message
                self._hear(node, json.loads(line))
        code = await process.wait()
        if self._node(node).power == "on":
            self._node(node).power = "off"
            self.problem(f"{node}: its first process ended by itself ({code}); see {log}")
            if node != CONTROL:
                await self._clear(node)

    def _hear(self, node: str, message: dict[str, object]) -> None:
        daemon = str(message["daemon"])
        state = self._node(node).daemons.setdefault(daemon, DaemonState())
        match message["event"]:
            case "started":
                state.running = True
                self.save()
            case "waiting":
                self.problem(f"{node}: {daemon} still waits for {message['on']}")
            case "exited":
                state.running, state.exits, state.last_exit = False, state.exits + 1, int(str(message["code"]))
                self.problem(f"{node}: {daemon} ended ({message['code']}) and is started again")
                if state.exits >= _HOPELESS and self.state.phase == "starting":
                    logs = f"everstep lab logs {node} {daemon} --name {self.layout.name}"
                    self.broken.put_nowait(f"{node}: {daemon} ended {state.exits} times; see `{logs}`")

    def _node(self, node: str) -> NodeState:
        return self.state.nodes.setdefault(node, NodeState())

    def _lock(self, node: str) -> asyncio.Lock:
        return self._locks.setdefault(node, asyncio.Lock())
