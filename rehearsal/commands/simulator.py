"""`tpu-rehearsal simulator`: serves a simulated GKE over HTTP on this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from provisioner.cli.frame import command_with
from rehearsal.simulators.gke.settings import SimulatorSettings
from rehearsal.simulators.http.settings import SettingsError

_DEFAULTS = SimulatorSettings()
_Function = TypeVar("_Function", bound=Callable[..., Any])


def simulated_gke(*, create_seconds: float, delete_seconds: float) -> Callable[[_Function], _Function]:
    """Add the options of a simulated GKE to a command, which gets them as settings in `gke`."""

    def decorate(command: _Function) -> _Function:
        @click.option(
            "--create-seconds",
            type=float,
            default=create_seconds,
            show_default=True,
            help="time that GKE takes to create a pool",
        )
        @click.option(
            "--delete-seconds",
            type=float,
            default=delete_seconds,
            show_default=True,
            help="time that GKE takes to delete a pool",
        )
        @click.option(
            "--operations-quota",
            type=int,
            help="maximum number of concurrent operations in a cluster (default: no limit)",
        )
        @functools.wraps(command)
        def wrapped(
            *arguments: Any,
            create_seconds: float,
            delete_seconds: float,
            operations_quota: int | None,
            **options: Any,
        ) -> Any:
            try:
                gke = SimulatorSettings(
                    create_seconds=create_seconds, delete_seconds=delete_seconds, operations_quota=operations_quota
                )
            except SettingsError as error:
                raise click.UsageError(str(error)) from error
            return command(*arguments, gke=gke, **options)

        return wrapped  # type: ignore[return-value]

    return decorate


@command_with(
    "{prog} simulator",
    "{prog} simulator --port=0 --create-seconds=30 --kubeconfig=FILE",
)
@click.option("--port", type=int, default=8085, show_default=True, help="port to listen on; 0: a free port")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="register Nodes in this cluster",
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
    """Run only the simulated GKE, until SIGINT or SIGTERM. docs/develop/simulator.md describes it."""
    from rehearsal.simulators.gke import app  # noqa: PLC0415 - a server: not for the help

    settings = replace(gke, project=project, location=location, cluster=cluster)
    return app.serve(settings, kubeconfig=kubeconfig, host=host, port=port)
