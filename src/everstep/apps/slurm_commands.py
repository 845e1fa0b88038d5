"""`everstep slurm`: a whole Slurm cluster by one command."""

# ruff: noqa: PLC0415 - each command imports what it needs when it runs, so that `--help` is quick
from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from everstep.apps.json_output import AsJson

app = typer.Typer(help="Slurm clusters on this Kubernetes.", no_args_is_help=True)

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the SlurmCluster.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Default: $KUBECONFIG, then ~/.kube/config.")]


@app.command()
def create(  # noqa: PLR0913, PLR0917 - one parameter an option of the command
    name: Annotated[str, typer.Argument(help="Name of the cluster.")],
    namespace: Namespace = "slurm",
    slurm: Annotated[str | None, typer.Option(help="Release of Slurm: 22.05, 24.11 (default) or 26.05.")] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="Pool of nodes (their label everstep.io/pool). Default: main.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(help="NAME:FILE or NAME:UID:FILE; the file holds public SSH keys. Repeatable.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each node. Default: what the nodes offer.")] = None,
    storage_class: Annotated[
        str | None, typer.Option(help="Class of the homes' volume. Default: the cluster's default, or its only one.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Capacity of the homes. Default: 100Gi.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until every node is in Slurm and users can log in.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 300.0,
    kubeconfig: Kubeconfig = None,
    as_json: AsJson = False,
) -> None:
    """Makes a Slurm cluster, or changes the one of this name: what no option names stays as it is.

    Example: everstep slurm create research --user ada:ada.pub --wait
    """
    from everstep.apps.slurm_request import Request, create_cluster, read_user

    request = Request(
        namespace=namespace,
        name=name,
        version=slurm,
        pools=tuple(pool) if pool else None,
        users=tuple(map(read_user, user)) if user else None,
        gpus=gpus,
        storage_class=storage_class,
        size=size,
    )
    said = asyncio.run(create_cluster(kubeconfig, request, timeout if wait else None, _tell))
    _print(said.as_json() if as_json else said.as_text())


@app.command()
def status(
    name: Annotated[str, typer.Argument(help="Name of the cluster.")],
    namespace: Namespace = "slurm",
    kubeconfig: Kubeconfig = None,
    as_json: AsJson = False,
) -> None:
    """How a Slurm cluster is. Exits 1 unless it is ready.

    Example: everstep slurm status research
    """
    from everstep.apps.slurm_request import read_cluster

    said = asyncio.run(read_cluster(kubeconfig, namespace, name))
    _print(said.as_json() if as_json else said.as_text())
    if not said.ready:
        raise typer.Exit(1)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
