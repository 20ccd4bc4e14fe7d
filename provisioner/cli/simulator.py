"""`tpu-provisioner simulator`: GKE over HTTP, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import Command, complete_files
from provisioner.simulators.gke.settings import SettingsError, SimulatorSettings

_DEFAULTS = SimulatorSettings()


@click.command(
    cls=Command,
    examples=(
        "{prog} simulator",
        "{prog} simulator --port=0 --create-seconds=30 --kubeconfig=FILE",
    ),
)
@click.option("--port", type=int, default=8085, show_default=True, help="port to listen on; 0: a free port")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--kubeconfig", type=Path, metavar="FILE", shell_complete=complete_files, help="register Nodes in this cluster"
)
@click.option("--project", help="serve only this project (default: any)")
@click.option("--location", help="serve only this zone or region (default: any)")
@click.option("--cluster", help="serve only this cluster (default: any)")
@click.option(
    "--create-seconds",
    type=float,
    default=_DEFAULTS.create_seconds,
    show_default=True,
    help="time that the create of a pool takes",
)
@click.option(
    "--delete-seconds",
    type=float,
    default=_DEFAULTS.delete_seconds,
    show_default=True,
    help="time that the delete of a pool takes",
)
@click.option(
    "--operations-quota", type=int, help="maximum number of concurrent operations in a cluster (default: no limit)"
)
def command(
    *,
    port: int,
    host: str,
    kubeconfig: Path | None,
    project: str | None,
    location: str | None,
    cluster: str | None,
    create_seconds: float,
    delete_seconds: float,
    operations_quota: int | None,
) -> int:
    """Run only the simulated GKE, until SIGINT or SIGTERM. docs/simulator.md describes it."""
    from provisioner.simulators.gke import app  # noqa: PLC0415 - a server: not for the help

    try:
        settings = SimulatorSettings(
            project=project,
            location=location,
            cluster=cluster,
            create_seconds=create_seconds,
            delete_seconds=delete_seconds,
            operations_quota=operations_quota,
        )
    except SettingsError as error:
        sys.stderr.write(f"simulator: {error}\n")
        return ExitCode.USAGE
    return app.serve(settings, kubeconfig=kubeconfig, host=host, port=port)
