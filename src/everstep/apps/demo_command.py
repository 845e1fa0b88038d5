"""``everstep demo``: a GPU dies under a training job on a real cluster, and the job finishes all the same."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

LEGS = {
    "detect_s": "from the line in the kernel log to detected",
    "healthy_node_s": "from the fault to a validated replacement in service",
    "resumed_s": "from the fault to the next training step",
    "overhead_s": "of it are Everstep's own and the start of the job's processes: without save, load and Slurm's wait",
}


class Console:
    """Shows progress on the terminal: seconds since the start on the left, seconds since the fault for the steps."""

    def __init__(self, quiet: bool) -> None:
        from everstep.lab.terminal import console  # noqa: PLC0415 - only this command draws

        self._out = console(stderr=True, quiet=quiet)
        self._start = time.monotonic()

    def phase(self, text: str) -> None:
        self._out.print(f"[dim]{time.monotonic() - self._start:6.1f} s[/]  {_plain(text)}")

    def step(self, after: float, name: str, reason: str) -> None:
        self._out.print(f"[bold green]{after:+6.2f} s[/]  [bold]{name:<14}[/] {_plain(reason)}")

    def claim(self, proven: bool, name: str, says: str) -> None:
        mark = "[green]yes[/]" if proven else "[bold red]NO [/]"
        self._out.print(f"  {mark}  [bold]{name:<17}[/] {_plain(says)}")

    def line(self, text: str = "") -> None:
        self._out.print(text)


def _plain(text: str) -> str:
    from rich.markup import escape  # noqa: PLC0415

    return escape(text)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _tidily_ended() -> Iterator[None]:
    """A closed terminal and a job's time limit end what runs inside as tidily as Ctrl-C does."""
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def demo(
    fault: Annotated[str, typer.Option(help="xid:CODE, or power (the machine just dies).")] = "xid:79",
    slurm: Annotated[str, typer.Option(help="Slurm release: 22.05, 24.11 or 26.05.")] = "24.11",
    report: Annotated[Path, typer.Option(help="Folder for report.json, report.html and timeline.png.")] = Path(
        "report"
    ),
    framework: Annotated[str, typer.Option(help="numpy, or torch: PyTorch DDP, 5.4 GB from PyPI, once.")] = "numpy",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up afterwards.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json on stdout, and nothing else.")] = False,
    name: Annotated[str, typer.Option(help="Name of the lab.")] = "demo",
) -> None:
    """Prove a heal, from nothing: cluster up, job submitted over SSH, fault injected, job resumed on healthy nodes.

    Exits 0 only when every claim is proven.

    Example: everstep demo --fault xid:79 --slurm 24.11 --report report
    """
    from everstep.lab.demo.frameworks import framework_of  # noqa: PLC0415
    from everstep.lab.demo.proof import prove  # noqa: PLC0415 - the lab's parts load only when it runs
    from everstep.lab.demo.report import write_report  # noqa: PLC0415
    from everstep.lab.demo.stage import DemoOptions, run_demo  # noqa: PLC0415
    from everstep.lab.errors import LabError  # noqa: PLC0415
    from everstep.lab.hardware.xids import effect_of  # noqa: PLC0415
    from everstep.lab.layout import LabConfig  # noqa: PLC0415
    from everstep.lab.setup import images_for, plan_lab  # noqa: PLC0415

    kind, _, code = fault.partition(":")
    if not (kind == "xid" and code.isdecimal()) and fault != "power":
        raise typer.BadParameter(
            f"{fault!r} is no fault that the demo can cause: use xid:CODE, for example xid:79, or power"
        )
    show = Console(quiet=as_json)
    try:
        # What cannot be shown is said before anything starts.
        images_for(LabConfig(name=name, slurm=slurm))
        if kind == "xid":
            effect_of(int(code))
        options = DemoOptions(fault=kind, code=code or "off", slurm=slurm, name=name)
        with _tidily_ended():
            options, prepare = framework_of(framework, options)
            evidence = run_demo(options, plan_lab, show, keep, prepare)
    except LabError as error:
        typer.echo(f"everstep demo: {error}", err=True)
        raise typer.Exit(2) from None
    claims = prove(evidence)
    written = write_report(evidence, claims, report)
    if as_json:
        typer.echo(json.dumps(written, indent=2))
    show.line()
    for claim in claims:
        show.claim(claim.proven, claim.name, claim.says)
    show.line()
    for leg, meaning in LEGS.items():
        value = written["durations"][leg]
        show.line(f"  {'unknown' if value is None else f'{value:.2f} s':>8}  {meaning}")
    show.line(f"\n  report: {report / 'report.html'}")
    if keep:
        show.line(f"  the lab is still up: everstep lab status --name {name}; everstep lab down --name {name}")
    failed = next((claim for claim in claims if not claim.proven), None)
    if failed:
        typer.echo(f"everstep demo: not proven: {failed.says}", err=True)
        raise typer.Exit(1)
    show.line("  [bold green]proven[/]")
