"""`everstep lab`: a whole real cluster on this machine, with simulated GPUs."""

# ruff: noqa: PLC0415, S606 - each command imports what it needs, so that `--help` is quick
from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from everstep.apps.json_output import AsJson, print_json

if TYPE_CHECKING:
    from everstep.lab.cluster import Lab

app = typer.Typer(help="A whole real Kubernetes on this machine, with simulated GPUs.", no_args_is_help=True)

_NAME = typer.Option("--name", help="Which lab; may be left out when there is only one.", envvar="EVERSTEP_LAB")
Name = Annotated[str | None, _NAME]
Node = Annotated[str, typer.Argument(help="A node, such as gpu-1.")]


def _find(name: str | None) -> Lab:
    from everstep.lab.cluster import Lab

    return Lab.find(name)


@app.command()
def setup(as_json: AsJson = False) -> None:
    """Builds what a lab is made of: packages, Kubernetes, images. Does only what is missing.

    Example: everstep lab setup
    """
    from everstep.lab.setup import ensure_all

    binaries, images = ensure_all()
    if as_json:
        print_json({"binaries": str(binaries), "images": {name: str(path) for name, path in images.items()}})


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="GPU nodes in service.")] = 2,
    spares: Annotated[int, typer.Option(help="Warm spares.")] = 1,
    gpus: Annotated[int, typer.Option(help="Simulated GPUs on each node.")] = 2,
    slurm: Annotated[str, typer.Option(help="Slurm release that the nodes hold: 22.05, 24.11 or 26.05.")] = "24.11",
    name: Annotated[str, typer.Option(help="Name of the lab.")] = "lab",
    platform: Annotated[bool, typer.Option(help="Install Everstep's chart on it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Brings a lab up: control plane, nodes, DNS, shared storage, and Everstep.

    Example: everstep lab up --nodes 4 --spares 1 --name mine
    """
    from everstep.lab.cluster import Lab
    from everstep.lab.layout import LabConfig
    from everstep.lab.setup import plan_lab
    from everstep.lab.terminal import console

    out = console(stderr=True)
    config = LabConfig(name=name, nodes=nodes, spares=spares, gpus=gpus, slurm=slurm, platform=platform)
    config.check()
    plan = plan_lab(config)
    with out.status(f"starting lab {name}") as status:
        lab = Lab.up(plan, lambda text: status.update(f"starting lab {name}: {text}"))
    seconds = lab.state.timings["ready"]
    if as_json:
        said = {"name": name, "nodes": config.all_nodes, "kubeconfig": str(lab.kubeconfig), "ready_s": seconds}
        print_json(said)
        return
    out.print(f"lab {name} is up after {seconds:.1f} s: {', '.join(config.all_nodes)}")
    out.print(f'  eval "$(everstep lab env --name {name})"   then kubectl and helm mean this lab')


@app.command()
def down(
    name: Name = None,
    every: Annotated[bool, typer.Option("--all", help="All labs of this machine's user.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ends a lab and leaves nothing of it. Works whatever became of it.

    Example: everstep lab down --all
    """
    from everstep.lab.cluster import remove
    from everstep.lab.layout import existing_labs

    names = existing_labs() if every else [name or _find(None).layout.name]
    known = existing_labs()
    for one in names:
        remove(one)
        if not as_json:
            was = f"lab {one} is gone" if one in known else f"there was no lab {one}; nothing of it is left"
            typer.echo(was, err=True)
    if as_json:
        print_json([{"name": one, "existed": one in known} for one in names])


@app.command()
def status(name: Name = None, as_json: AsJson = False) -> None:
    """What runs, what does not, and what went wrong. Exits 1 unless all of it is well.

    Example: everstep lab status --json
    """
    from everstep.lab.status import print_status

    lab = _find(name)
    if as_json:
        print_json(lab.state)
    if not print_status(lab, quiet=as_json):
        raise typer.Exit(1)


@app.command()
def machines(name: Name = None, as_json: AsJson = False) -> None:
    """The machines under the nodes and their GPUs.

    Example: everstep lab machines
    """
    from everstep.lab.status import print_machines

    lab = _find(name)
    if as_json:
        with lab.hardware() as hardware:
            print_json(hardware.status())
    else:
        print_machines(lab)


@app.command()
def env(name: Name = None, as_json: AsJson = False) -> None:
    """Prints what a shell evaluates so that kubectl and helm mean this lab.

    Example: eval "$(everstep lab env)"
    """
    lab = _find(name)
    if as_json:
        print_json(lab.environment)
        return
    for key, value in lab.environment.items():
        path = f"{shlex.quote(lab.plan.binaries)}:$PATH" if key == "PATH" else shlex.quote(value)
        typer.echo(f"export {key}={path}")


@app.command()
def logs(
    node: Annotated[str, typer.Argument(help="A node, `ctl` (control plane) or `lab` itself.")] = "lab",
    daemon: Annotated[str | None, typer.Argument(help="One daemon of it, such as kubelet.")] = None,
    name: Name = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the names of the files, as one JSON list.")] = False,
) -> None:
    """Shows logs of a node's daemons, of the control plane, or of the lab itself.

    Example: everstep lab logs gpu-1 kubelet -f
    """
    from everstep.lab.status import log_files

    files = [str(path) for path in log_files(_find(name).layout, node, daemon)]
    if as_json:
        print_json(files)
        return
    os.execvp("tail", ["tail", "-n", "200", *(["-F"] if follow else []), *files])


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def exec(context: typer.Context, node: Node, name: Name = None) -> None:
    """Runs a program inside a node; a shell without one. What it prints and how it exits is the program's.

    Example: everstep lab exec gpu-1 -- everstep check --json
    """
    from everstep.lab.nodes import NODE_ENVIRONMENT

    lab = _find(name)
    argv = lab.inside(node, *(context.args or ["bash"]))
    own_programs = os.path.dirname(sys.executable)
    os.environ.update(NODE_ENVIRONMENT, PATH=f"{lab.environment['PATH']}:{own_programs}")
    os.execvp(argv[0], argv)


@app.command("power-off")
def power_off(node: Node, name: Name = None, as_json: AsJson = False) -> None:
    """Cuts a node's power: every process on it is gone at once.

    Example: everstep lab power-off gpu-1
    """
    lab = _find(name)
    lab.power_off(node)
    _say(lab, node, "has no power", as_json)


@app.command("power-on")
def power_on(
    node: Node,
    name: Name = None,
    wait: Annotated[bool, typer.Option(help="Until the node is Ready.")] = True,
    as_json: AsJson = False,
) -> None:
    """Boots a node.

    Example: everstep lab power-on gpu-1
    """
    lab = _find(name)
    lab.power_on(node, wait=wait)
    _say(lab, node, "is Ready" if wait else "boots", as_json)


@app.command()
def cut(node: Node, name: Name = None, as_json: AsJson = False) -> None:
    """Pulls a node's network cable.

    Example: everstep lab cut gpu-1
    """
    lab = _find(name)
    lab.cut(node)
    _say(lab, node, "has no network", as_json)


@app.command()
def restore(node: Node, name: Name = None, as_json: AsJson = False) -> None:
    """Puts a node's network cable back.

    Example: everstep lab restore gpu-1
    """
    lab = _find(name)
    lab.restore(node)
    _say(lab, node, "has its network again", as_json)


@app.command("list")
def list_labs(as_json: AsJson = False) -> None:
    """The labs there are.

    Example: everstep lab list
    """
    from everstep.lab.layout import LabLayout, existing_labs
    from everstep.lab.state import read_state

    states = {one: read_state(LabLayout.of(one)) for one in existing_labs()}
    phases = {one: state.phase if state else "starting" for one, state in states.items()}
    if as_json:
        print_json([{"name": name, "phase": phase} for name, phase in phases.items()])
        return
    for name, phase in phases.items():
        typer.echo(f"{name}\t{phase}")


def _say(lab: Lab, node: str, text: str, as_json: bool) -> None:
    now = lab.state.nodes[node]
    if as_json:
        print_json({"node": node, "power": now.power, "network": now.cable, "boots": now.boots})
    else:
        typer.echo(f"{node} {text}", err=True)
