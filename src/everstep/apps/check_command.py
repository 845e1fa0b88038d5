"""`everstep check`: is this node fit for work?"""

# ruff: noqa: PLC0415 - imports what it needs when it runs, so that `--help` is quick
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from everstep.apps.check.performing import Report

_COLOURS = {"fit": "green", "unfit": "red", "unknown": "yellow"}


def check(
    as_json: Annotated[bool, typer.Option("--json", help="The report as one JSON object.")] = False,
    source: Annotated[list[str] | None, typer.Option(help="Only this source; may be repeated.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for the whole run; a source that hangs is unknown.")] = 20.0,
    window: Annotated[
        float | None, typer.Option(help="Seconds of the kernel log that count; the whole boot without it.")
    ] = None,
    kmsg: Annotated[
        str,
        typer.Option(help="Kernel log: a device, a file, or journal; found out without it.", envvar="EVERSTEP_KMSG"),
    ] = "",
    simulated_gpus: Annotated[
        Path | None, typer.Option(help="The file of a lab; without it GPUs are read through NVML.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(help="The site's own fault table.", envvar="EVERSTEP_SITE_FAULTS")
    ] = None,
) -> None:
    """Ask every local source of this node once: is it fit for work?

    Exit code 0: fit. 1: unfit, a fault accuses the node. 3: unknown, a source could not be asked; that is never fit.

    Example: `everstep lab exec gpu-1 -- everstep check`, or in the agent's pod
    `kubectl -n everstep-system exec POD -- everstep check --json`.
    """
    import json
    from dataclasses import replace

    from everstep.apps.check.__main__ import outcome
    from everstep.apps.check.performing import from_environment, perform

    def show(report: Report) -> None:
        if as_json:
            typer.echo(json.dumps(report.as_json(), ensure_ascii=False))
        else:
            _print_table(report)

    given = from_environment()
    simulated = replace(given.gpus, reader="simulated", simulated=simulated_gpus)
    request = replace(
        given,
        node=replace(given.node, kernel_log=kmsg),
        gpus=simulated if simulated_gpus else given.gpus,
        site_faults=site,
        sources=tuple(source or ()),
        window=window,
        deadline=deadline,
    )
    raise typer.Exit(outcome(lambda: perform(request), show))


def _print_table(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from everstep.lab.terminal import console

    table = Table("source", "fitness", "why")
    for item in report.sources:
        table.add_row(item.source, Text(item.fitness, _COLOURS[item.fitness]), Text(item.reason))
    out = console()
    out.print(table)
    out.print(Text(f"{report.node.fitness}: {report.node.reason}", _COLOURS[report.node.fitness]))
