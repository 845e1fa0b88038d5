"""A lab on the terminal: what runs, what does not, what went wrong."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from everstep.lab import networks
from everstep.lab.cluster import Lab
from everstep.lab.errors import LabError
from everstep.lab.hardware.gpus import GpuReading
from everstep.lab.layout import CONTROL, LabLayout
from everstep.lab.state import LabState, NodeState
from everstep.lab.terminal import console


def troubles(lab: Lab) -> list[str]:
    """Everything that is not as it should be now (what was mended since is not one); empty when all is well."""
    state = lab.state
    found = []
    if not state.supervisor.alive:
        found.append("the supervisor is dead: no GPUs, no machine API, no new volumes; end it with `everstep lab down`")
    if state.phase != "ready":
        found.append(f"the lab is {state.phase}" + (f": {state.message}" if state.message else ""))
    for name in [CONTROL, *lab.config.all_nodes]:
        found += _node_troubles(name, state.nodes.get(name))
    if CONTROL not in {name.removeprefix(f"ev-{lab.layout.name}-") for name in networks.namespaces_of(lab.layout.name)}:
        found.append(f"the network namespace {lab.layout.netns()} is gone")
    return found


def _node_troubles(name: str, node: NodeState | None) -> list[str]:
    if node is None:
        return [f"{name} was never started"]
    if node.power == "off":
        return [f"{name} is off"]
    if node.holder is None or not node.holder.alive:
        return [f"{name} is dead although its power is on"]
    dead = [f"{name}: {daemon} does not run" for daemon, its in node.daemons.items() if not its.running]
    return dead + ([f"{name}: its network is cut"] if node.cable == "cut" else [])


def print_status(lab: Lab, *, quiet: bool = False) -> bool:
    """Prints the lab; returns whether all is well. `quiet` prints nothing."""
    found = troubles(lab)
    if not quiet:
        out = console()
        out.print(_summary(lab, lab.state))
        out.print(_table(lab.state))
        for trouble in found:
            out.print(f"[red]now[/]   {trouble}")
        for problem in lab.state.problems[-10:]:
            out.print(f"[yellow]once[/]  {problem}")
    return not found


def _summary(lab: Lab, state: LabState) -> str:
    ready = state.timings.get("ready")
    took = f", up after {ready:.1f} s" if ready else ""
    api = lab.addresses.api if state.index is not None else "not started"
    return f"lab [bold]{lab.layout.name}[/] is {state.phase}{took}; directory {lab.layout.root}; API {api}"


def _table(state: LabState) -> Table:
    table = Table("node", "power", "network", "boots", "daemons (unexpected ends)")
    for name, node in state.nodes.items():
        daemons = ", ".join(
            f"{daemon}{'' if its.running else ' [red]dead[/]'}{f' ({its.exits})' if its.exits else ''}"
            for daemon, its in node.daemons.items()
        )
        table.add_row(name, node.power, node.cable, str(node.boots), daemons)
    return table


def print_machines(lab: Lab) -> None:
    """Prints the machines and their GPUs as the simulated hardware has them."""
    table = Table("machine", "state", "pool", "GPU", "serial", "busy", "memory", "power", "temp", "action")
    with lab.hardware() as hardware:
        for machine in hardware.status():
            whose = (machine.name, machine.state, machine.pool or "")
            for gpu in machine.gpus:
                table.add_row(*whose, *_gpu_cells(gpu))
            if not machine.gpus:
                table.add_row(*whose)
    console().print(table)


def _gpu_cells(gpu: GpuReading) -> list[str]:
    memory, power = f"{gpu.memory_used_mib} MiB", f"{gpu.power_watts:.0f} W"
    action = " ".join(["lost" if gpu.lost else gpu.recovery_action, *gpu.states])
    return [
        str(gpu.index),
        gpu.serial,
        f"{gpu.utilization_percent} %",
        memory,
        power,
        f"{gpu.temperature_c} °C",
        action,
    ]


def log_files(layout: LabLayout, node: str, daemon: str | None = None) -> list[Path]:
    """The logs of a node's daemons, of `ctl`, or of `lab` itself. Raises LabError if there are none."""
    if node == "lab":
        files = [layout.events_file, layout.supervisor_log]
    else:
        folder = (layout.control if node == CONTROL else layout.node(node)) / "log"
        files = sorted(folder.glob(f"{daemon or '*'}.log"))
    files = [path for path in files if path.exists()]
    if not files:
        raise LabError(f"no logs of {node}{f' {daemon}' if daemon else ''} in lab {layout.name}")
    return files
