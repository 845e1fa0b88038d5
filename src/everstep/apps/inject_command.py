"""`everstep inject`: breaks the simulated hardware of a lab, where real hardware would break."""

# ruff: noqa: PLC0415 - imports what it needs when it runs, so that `--help` is quick
from __future__ import annotations

import time
from typing import Annotated

import typer


def inject(
    node: Annotated[str, typer.Argument(help="A GPU node of the lab, such as gpu-1.")],
    xid: Annotated[
        int | None, typer.Option(help="XID that the GPU's driver prints: 79 is a GPU that fell off the bus.")
    ] = None,
    gpu: Annotated[int, typer.Option(help="Index of the GPU on the node.")] = 0,
    power: Annotated[bool, typer.Option("--power", help="The whole machine loses its power instead.")] = False,
    lab: Annotated[
        str | None,
        typer.Option(
            "--lab", "--name", help="Which lab; may be left out when there is only one.", envvar="EVERSTEP_LAB"
        ),
    ] = None,
) -> None:
    """Makes a GPU of a lab node fail, or cuts the node's power: `everstep inject gpu-1 --xid 79`."""
    if power == (xid is not None):
        raise typer.BadParameter("name one fault: --xid CODE or --power")
    from everstep.lab.cluster import Lab

    with Lab.find(lab).hardware() as hardware:
        fault = hardware.cut_power(node) if xid is None else hardware.inject(node, xid, gpu)
    at = time.strftime("%H:%M:%S", time.localtime(fault.at))
    for line in fault.records or [f"{node} has no power any more"]:
        typer.echo(f"{at} {node}: {line}")
