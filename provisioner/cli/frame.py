"""Base of all commands: lazy imports, help, shared options, and errors."""

import functools
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import click

from provisioner import constants
from provisioner.model.wording import UserError

_Function = TypeVar("_Function", bound=Callable[..., Any])
FORMATS = ("json", "yaml")
#: Type of options for files. Shells complete the names; `readable=False`, because commands report unreadable files.
FILE = click.Path(readable=False)
CONTEXT: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class Command(click.Command):
    """A command with examples in its help. `{prog}` in an example is replaced by the program's name."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        options.setdefault("context_settings", {}).update(CONTEXT)
        super().__init__(*arguments, **options)
        self._examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, without wrapping them."""
        program = ctx.find_root().info_name or ""
        if self._examples:
            with formatter.section("Examples"):
                for line in self._examples:
                    formatter.write(f"  {line.format(prog=program)}\n")


def command_with(*examples: str) -> Callable[[Callable[..., Any]], Command]:
    """Return the decorator that turns a function into a command with examples."""
    return click.command(cls=Command, examples=examples)


class Frame(Command, click.Group):
    """Command group that imports only the chosen command. `entries` has the module and the summary of each command."""

    def __init__(self, package: str, entries: Mapping[str, tuple[str, str]], **options: Any) -> None:
        # Commands with only a summary: click lists, completes and suggests them without imports.
        named = {name: click.Command(name, short_help=summary) for name, (_, summary) in entries.items()}
        super().__init__(commands=named, **options)
        self._modules = {name: f"{package}.{module}" for name, (module, _) in entries.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands in the order of `entries`."""
        return list(self._modules)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the chosen command, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            # Imports leave no garbage, but the garbage collector would take 5 % of their time.
            gc.disable()
            try:
                command = import_module(self._modules[name]).command
            finally:
                gc.enable()
        return name, command, rest


def format_option(*more: str) -> Callable[[_Function], _Function]:
    """Add the option -o for FORMATS and `more` formats; the command gets `form`, None if the option is not used."""
    return click.option("-o", "--output", "form", type=click.Choice((*FORMATS, *more)), help="format of the output")


def file_option(name: str, text: str, **options: Any) -> Callable[[_Function], _Function]:
    """Add an option whose value is the name of a file. Shells complete the name."""
    return click.option(name, type=FILE, metavar="FILE", help=text, **options)


def kubeconfig_option(command: _Function) -> _Function:
    """Add the option --kubeconfig."""
    text = "kubeconfig file (default: in-cluster, else $KUBECONFIG, else ~/.kube/config)"
    return file_option("--kubeconfig", text)(command)


def observation_options(*, metrics: str) -> Callable[[_Function], _Function]:
    """Add the options for the addresses of metrics (default: the argument `metrics`) and of health checks."""
    health = click.option(
        "--health-probe-bind-address",
        default=":8081",
        show_default=True,
        help='address of /healthz and /readyz; "0" disables it',
    )
    about = 'address of /metrics; "0" disables it'
    scrapes = click.option("--metrics-bind-address", default=metrics, show_default=True, help=about)
    # The option that is added last is shown first in the help.
    return lambda command: scrapes(health(command))


def read_by(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Return the callback for an option: `read` converts the text, and a ValueError of `read` becomes a usage error."""

    def callback(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else read(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} {error}") from error

    return callback


def truth_option(name: str, text: str, **options: Any) -> Callable[[_Function], _Function]:
    """Add a boolean flag whose value is optional (`--name`, `--name=false`), like flags of Go programs."""

    def read(value: str) -> bool:
        from provisioner.settings.forms import go_bool  # noqa: PLC0415 - most commands have no such flag

        return go_bool(value)

    return click.option(
        name,
        default="false",
        is_flag=False,
        flag_value="true",
        metavar="BOOL",
        callback=read_by(read),
        help=text,
        **options,
    )


def wants_color(environment: Mapping[str, str] = os.environ) -> bool | None:
    """Return False if the environment disables colours, otherwise None: click then colours only on a terminal."""
    # https://no-color.org: any value that is not empty disables colours.
    return False if environment.get("NO_COLOR") or environment.get("TERM") == "dumb" else None


class RemoteError(UserError):
    """A controller cannot be reached, or its response cannot be used."""


class UnreachableError(RemoteError):
    """The API server or the address of `--server` does not respond, so no controller can be read."""


class NotPermittedError(RemoteError):
    """The user may not read the controller through the API server."""


class NotInstalledError(RemoteError):
    """The controller does not run in the namespace, or the address of `--server` answers 404."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Location of the controller: an address, or a namespace in a cluster."""

    #: Address of the controller's probes (http://127.0.0.1:8081); empty to use the kubeconfig.
    server: str = ""
    kubeconfig: str | None = None
    namespace: str = constants.DEFAULT_NAMESPACE
    port: int = 8081


def remote_options(command: _Function) -> _Function:
    """Add the options of a command that reads from a controller; the command gets them as `remote`."""

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
