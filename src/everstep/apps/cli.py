"""The command line: `everstep`. Every command's own module is loaded only when it runs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any

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

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # UsageError, which Typer exports in no other way


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
    """Entry point of the console script: an error that people can act on is one line, never a traceback or a box."""
    from everstep.core.errors import EverstepError  # noqa: PLC0415 - `--help` must not wait for imports
    from everstep.lab.errors import LabError  # noqa: PLC0415

    try:
        sys.exit(app(standalone_mode=False))
    except (LabError, EverstepError) as error:
        print(f"everstep: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except _USAGE_ERROR as error:
        if said := _misused(error):
            print(f"everstep: {said}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _misused(error: Any) -> str:
    said = " ".join(error.format_message().split()).removeprefix("Invalid value: ").rstrip(".")
    command = error.ctx.command_path if error.ctx else "everstep"
    if not said:  # a group of commands without a command has shown its help
        return ""
    return f"{said[:1].lower()}{said[1:]}{'' if said.endswith('?') else ';'} `{command} --help` says more"


if __name__ == "__main__":
    main()
