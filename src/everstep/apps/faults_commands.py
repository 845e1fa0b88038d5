"""`everstep faults`: read kernel lines, list the catalogue, and ask what a code means."""

# ruff: noqa: PLC0415 - each command imports what it needs when it runs, so that `--help` is quick
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from everstep.apps.json_output import AsJson, print_json

app = typer.Typer(help="What a line of a kernel log says of the hardware, and what to do.", no_args_is_help=True)

Site = Annotated[
    Path | None,
    typer.Option(help="The site's own fault table, on top of the shipped one.", envvar="EVERSTEP_SITE_FAULTS"),
]


@app.command("parse")
def parse(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for every line, faults or not.")] = False,
    allow_injected: Annotated[
        bool, typer.Option(help="Also believe /dev/kmsg records that programs wrote, not the kernel.")
    ] = False,
    site: Site = None,
) -> None:
    """Read lines of a kernel log from standard input, in any form that loggers give them.

    Example: dmesg | everstep faults parse
    """
    from everstep.adapters.gpu.catalog_files import catalog_with
    from everstep.apps.faults_text import described, read, sentence

    catalog = catalog_with(site)
    lines = faults = 0
    for found in read(sys.stdin.buffer, allow_injected):
        lines += 1
        faults += found is not None
        if as_json:
            _print(json.dumps(described(catalog, found), ensure_ascii=False))
        elif found is not None:
            _print(sentence(catalog, found))
    if not as_json:
        _print(f"{faults} of {lines} lines report a fault.")


@app.command("list")
def list_rows(
    kind: Annotated[str | None, typer.Option(help="Only one kind: xid, sxid, amd, ib, pcie or host.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what the site's table adds or changes.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The reference page of the documentation.")] = False,
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """List the fault catalogue: code, class, severity, first action, meaning.

    Example: everstep faults list --kind sxid
    """
    from everstep.adapters.gpu.catalog_files import catalog_with
    from everstep.apps.faults_text import row
    from everstep.core.errors import InvalidInput
    from everstep.core.fault_catalog import KINDS, SHIPPED
    from everstep.core.fault_page import changed_rows, render

    catalog = catalog_with(site)
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"{kind!r} is none of {', '.join(KINDS)}")
    if markdown:
        print(render(catalog), end="")  # noqa: T201
    elif as_json:
        rows = (entry for entry in catalog.entries.values() if kind in (None, entry.kind))
        print_json([entry for entry in rows if not changed or entry.origin != SHIPPED])
    elif changed:
        _print("\n".join(changed_rows(catalog)) or "The site changes nothing: give its table with --site FILE.")
    else:
        for entry in catalog.entries.values():
            if kind in (None, entry.kind):
                _print(row(catalog, entry))


@app.command("explain")
def explain(
    code: Annotated[str, typer.Argument(help="A code: 79, xid:79, sxid:12028, gpu_lost, ib:link_down.")],
    site: Site = None,
    as_json: AsJson = False,
) -> None:
    """Say what a code means, who is to blame, and what to do first.

    Example: everstep faults explain 79
    """
    from everstep.adapters.gpu.catalog_files import catalog_with
    from everstep.apps.faults_text import rows_of
    from everstep.core.fault_advice import advice

    catalog = catalog_with(site)
    groups = rows_of(catalog, code)
    if as_json:
        print_json([{"advice": advice(catalog, group), "rows": group} for group in groups])
    else:
        _print("\n".join(advice(catalog, group) for group in groups), end="")


def _print(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)  # noqa: T201 - a reader at the other end of a pipe wants it now
