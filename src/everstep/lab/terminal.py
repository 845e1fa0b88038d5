"""Where commands print tables and long lines."""

from __future__ import annotations

import os

from rich.console import Console

WIDE = 2000  # columns for a pipe or a file: wider than any row, so that nothing is wrapped or cut


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console as wide as the terminal; for a program that reads along, one line a row. ``COLUMNS`` overrules both."""
    terminal = Console(stderr=stderr, quiet=quiet, highlight=False)
    if terminal.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return terminal
    return Console(stderr=stderr, quiet=quiet, highlight=False, width=WIDE)
