"""The command line: `everstep`. Every command's own module is loaded only when it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from everstep.apps import check_command, demo_command, faults_commands, inject_command, lab_commands, slurm_commands

app = typer.Typer(
    name="everstep",
    help="Self-healing GPU training: a GPU dies, and the training job goes on without anybody waking up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(lab_commands.app, name="lab")
app.add_typer(slurm_commands.app, name="slurm")
app.add_typer(faults_commands.app, name="faults")
app.command("check")(check_command.check)
app.command("inject")(inject_command.inject)
app.command("demo")(demo_command.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"everstep {version('everstep')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script: an error that people can act on is one line, never a traceback."""
    from everstep.core.errors import EverstepError  # noqa: PLC0415 - `--help` must not wait for imports
    from everstep.lab.errors import LabError  # noqa: PLC0415

    try:
        app()
    except (LabError, EverstepError) as error:
        print(f"everstep: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
