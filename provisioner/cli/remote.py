"""Where the controller is that a command asks: the options that say so, and what it answers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from provisioner import constants
from provisioner.cli.exits import ExitCode
from provisioner.cli.frame import kubeconfig_option

if TYPE_CHECKING:
    from provisioner.partitions.board import Document as PartitionsDocument
    from provisioner.slices.board import Document

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BOARD = "/api/v1/board"
_SETTINGS = "/api/v1/settings"


class RemoteError(Exception):
    """The controller cannot be asked, in words for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where the controller is."""

    #: The address of its probes, such as http://127.0.0.1:8081; empty: it is found by the kubeconfig.
    server: str = ""
    kubeconfig: str | None = None
    namespace: str = constants.DEFAULT_NAMESPACE
    port: int = 8081

    def document(self) -> Document:
        """Return what the controller shows now; raise RemoteError."""
        # `plan` does without, and must start at once.
        import msgspec  # noqa: PLC0415

        from provisioner.slices.board import Document  # noqa: PLC0415

        raw = self._get(_BOARD)
        try:
            return msgspec.convert(raw, Document, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteError(f"the controller's answer is not what this release understands: {error}") from error

    def partitions(self) -> PartitionsDocument | None:
        """Return what the controller of IPU partitions shows now; None where there is none; raise RemoteError."""
        # As above.
        import msgspec  # noqa: PLC0415

        from provisioner.cli.asking import ask_partitions  # noqa: PLC0415
        from provisioner.partitions.board import PATH  # noqa: PLC0415
        from provisioner.partitions.board import Document as PartitionsDocument  # noqa: PLC0415

        raw = ask_partitions(self, PATH)
        if raw is None:
            return None
        try:
            return msgspec.convert(raw, PartitionsDocument, strict=False)
        except msgspec.ValidationError as error:
            raise RemoteError(
                f"what the controller of partitions answers is not what this release understands: {error}"
            ) from error

    def settings(self) -> dict[str, str]:
        """Return the settings of the controller, by variable; raise RemoteError."""
        raw = self._get(_SETTINGS)
        found = raw.get("settings") if isinstance(raw, dict) else None
        if not isinstance(found, dict) or not found:
            raise RemoteError("the controller tells no settings yet: it has not decided anything, or it does not lead")
        return {str(name): str(value) for name, value in found.items()}

    def _get(self, path: str) -> Any:
        # As above: HTTP takes a tenth of the time of `plan` to import.
        from provisioner.cli.asking import ask  # noqa: PLC0415

        return ask(self, path)


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
        try:
            return command(*arguments, remote=remote, **options)
        except RemoteError as error:
            sys.stderr.write(f"tpu-provisioner: {error}\n")
            return ExitCode.ERROR
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED

    return wrapped  # type: ignore[return-value]


def view_problem(document: Document) -> str:
    """Say why a document has no view; empty where it has one."""
    if document.view is not None:
        return ""
    if document.problems:
        return "nothing has been decided yet: " + "; ".join(document.problems)
    if not document.leading:
        whom = (
            f"pod {document.leader}" if document.leader else f"the process that holds the Lease {constants.LEASE_NAME}"
        )
        return f"{document.about.identity} does not lead; ask {whom}"
    return "nothing has been decided yet: the controller has just started"
