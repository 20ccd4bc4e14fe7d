"""The options that say which controller a command asks; `asking` asks it, with libraries that `plan` does without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from provisioner import constants
from provisioner.cli.frame import kubeconfig_option
from provisioner.model.wording import UserError

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RemoteError(UserError):
    """The controller cannot be asked, in words for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where the controller is."""

    #: The address of its probes, such as http://127.0.0.1:8081; empty: it is found by the kubeconfig.
    server: str = ""
    kubeconfig: str | None = None
    namespace: str = constants.DEFAULT_NAMESPACE
    port: int = 8081


def remote_options(command: _Function) -> _Function:
    """Add the options of commands that ask a controller; they get a `remote`."""

    @click.option(
        "--server",
        metavar="URL",
        default="",
        help="address of the controller's probes, such as http://127.0.0.1:8081 (default: of the leading pod, found by "
        "the kubeconfig)",
    )
    @click.option(
        "--controller-namespace",
        metavar="NAME",
        default=constants.DEFAULT_NAMESPACE,
        show_default=True,
        help="namespace in which the controller runs",
    )
    @click.option(
        "--controller-port", type=int, default=8081, show_default=True, help="port of the controller's probes"
    )
    @kubeconfig_option
    @functools.wraps(command)
    def wrapped(
        *arguments: Any,
        server: str,
        controller_namespace: str,
        controller_port: int,
        kubeconfig: str | None,
        **options: Any,
    ) -> Any:
        remote = Remote(server=server, kubeconfig=kubeconfig, namespace=controller_namespace, port=controller_port)
        return command(*arguments, remote=remote, **options)

    return wrapped  # type: ignore[return-value]
