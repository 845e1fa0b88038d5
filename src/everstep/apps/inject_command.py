"""`everstep inject`: breaks the simulated hardware of a lab, where real hardware would break."""

# ruff: noqa: PLC0415 - imports what it needs when it runs, so that `--help` is quick
from __future__ import annotations

import time
from typing import Annotated

import typer

from everstep.apps.json_output import AsJson, print_json


def inject(
    node: Annotated[str, typer.Argument(help="A GPU node of the lab, such as gpu-1.")],
    xid: Annotated[
        int | None, typer.Option(help="XID that the GPU's driver prints: 79 is a GPU that fell off the bus.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="What no log line tells, only the driver when it is asked: lost, wants-reset, wants-reboot, unlisted, "
            "remap-pending, remap-failed, sram-errors, too-hot, power-brake, no-fabric, inforom-damaged, narrow-link, "
            "broken-query, hang (no question comes back), no-driver; well ends them."
        ),
    ] = None,
    gpu: Annotated[int, typer.Option(help="Index of the GPU on the node.")] = 0,
    power: Annotated[bool, typer.Option("--power", help="The whole machine loses its power instead.")] = False,
    lab: Annotated[
        str | None,
        typer.Option(
            "--lab", "--name", help="Which lab; may be left out when there is only one.", envvar="EVERSTEP_LAB"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes a GPU of a lab node fail, or cuts the node's power.

    Example: everstep inject gpu-1 --xid 79

    Example: everstep inject gpu-1 --gpu 0 --state remap-failed
    """
    if [power, xid is not None, state is not None].count(True) != 1:
        raise typer.BadParameter("name one fault: --xid CODE, --state NAME or --power")
    from everstep.lab.cluster import Lab

    with Lab.find(lab).hardware() as hardware:
        if xid is not None:
            fault = hardware.inject(node, xid, gpu)
        elif state is not None:
            fault = hardware.set_state(node, state, gpu)
        else:
            fault = hardware.cut_power(node)
    if as_json:
        print_json({"node": node, "gpu": None if power else gpu, "at": fault.at, "records": fault.records})
        return
    at = time.strftime("%H:%M:%S", time.localtime(fault.at))
    said = "no power any more" if power else f"GPU {gpu} shows the state {state!r} to whoever asks the driver"
    for line in fault.records or [said]:
        typer.echo(f"{at} {node}: {line}")
