"""`tpu-rehearsal simulator-gce`: serves a simulated Compute Engine over HTTP, with VMs that join a cluster."""

from __future__ import annotations

import json

import click

from provisioner.cli.frame import command_with
from provisioner.runtime import logs
from rehearsal.simulators.compute.settings import ComputeSettings
from rehearsal.simulators.http.settings import SettingsError


@command_with(
    "{prog} simulator-gce",
    "{prog} simulator-gce --port=0 --no-join --set=staging_seconds=60",
)
@click.option("--port", type=int, default=8086, show_default=True, help="port to listen on; 0: a free port")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--project", help="serve only this project (default: any)")
@click.option("--join/--no-join", default=True, show_default=True, help="VMs join clusters by their metadata")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="a setting of the simulator; repeatable")
def command(*, port: int, host: str, project: str | None, join: bool, changes: tuple[str, ...]) -> int:
    """Run only the simulated Compute Engine, until SIGINT or SIGTERM. docs/develop/simulator.md describes it.

    VALUE is JSON, or else a text.
    """
    from rehearsal.simulators.compute import app  # noqa: PLC0415 - a server: not for the help

    settings = ComputeSettings(project=project, machines_join=join)
    try:
        wanted = settings.changed(dict(_setting(change) for change in changes))
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    logs.configure()
    return app.serve(wanted, host=host, port=port)


def _setting(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
