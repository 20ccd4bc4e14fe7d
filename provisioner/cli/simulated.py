"""The options of commands that run a simulated GKE."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from provisioner.simulators.gke.settings import SimulatorSettings
from provisioner.simulators.http.settings import SettingsError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def simulated_gke(*, create_seconds: float, delete_seconds: float) -> Callable[[_Function], _Function]:
    """Add the options that say how long GKE takes, with these defaults; the command gets them as `gke`."""

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
