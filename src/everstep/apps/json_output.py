"""``--json``: what a command has to say, for machines."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON on standard output, for machines.")]


def print_json(value: Any) -> None:
    """Prints anything that msgspec can encode, on one line."""
    import msgspec  # noqa: PLC0415 - `--help` must not wait for imports

    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()
