"""`tpu-provisioner simulator`: GKE over HTTP, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from provisioner.cli.frame import Command, complete_files
from provisioner.cli.simulated import simulated_gke
from provisioner.simulators.gke.settings import SimulatorSettings

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
@simulated_gke(create_seconds=_DEFAULTS.create_seconds, delete_seconds=_DEFAULTS.delete_seconds)
def command(
    *,
    port: int,
    host: str,
    kubeconfig: Path | None,
    project: str | None,
    location: str | None,
    cluster: str | None,
    gke: SimulatorSettings,
) -> int:
    """Run only the simulated GKE, until SIGINT or SIGTERM. docs/simulator.md describes it."""
    from provisioner.simulators.gke import app  # noqa: PLC0415 - a server: not for the help

    settings = replace(gke, project=project, location=location, cluster=cluster)
    return app.serve(settings, kubeconfig=kubeconfig, host=host, port=port)
