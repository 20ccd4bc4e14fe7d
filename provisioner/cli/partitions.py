"""`tpu-provisioner partitions`: runs the controller of IPU partitions in the foreground; has one subcommand, `get`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.frame import Frame, file_option, kubeconfig_option, observation_options

if TYPE_CHECKING:
    from provisioner.partitions.vipu.cli import VipuCommand
    from provisioner.settings.partitions import PartitionSettings

COMMANDS = {"get": ("partitions_get", "wait for a pod's partition: the init container")}


@click.group(
    cls=Frame,
    package="provisioner.cli",
    entries=COMMANDS,
    examples=("{prog} partitions", "{prog} partitions --leader-elect --kubeconfig=FILE"),
    invoke_without_command=True,
)
@click.option(
    "--api-bind-address",
    default=":8080",
    show_default=True,
    help='address of the REST API in plain HTTP, which init containers ask; "0" disables it',
)
@click.option(
    "--tls-bind-address",
    default=":8443",
    show_default=True,
    help='address of the REST API over TLS, where there is a certificate; "0" disables it',
)
@file_option("--tls-cert-file", "its certificate; read again when it changes (default: no TLS)")
@file_option("--tls-key-file", "the key of the certificate")
@observation_options(metrics=":8082")
@click.option("--leader-elect", is_flag=True, help="elect one leader among several replicas, by a Lease")
@kubeconfig_option
@click.pass_context
def command(
    context: click.Context,
    api_bind_address: str,
    tls_bind_address: str,
    tls_cert_file: str | None,
    tls_key_file: str | None,
    metrics_bind_address: str,
    health_probe_bind_address: str,
    leader_elect: bool,  # noqa: FBT001 - click hands over by name
    kubeconfig: str | None,
) -> int:
    """Run the controller of IPU partitions.

    Each pod with the annotation graphcore.ai/ipus gets a partition with that many IPUs from a V-IPU
    server before it runs, and gives it back when it ends.

    Other settings come from the environment; see docs/settings.md.
    """
    if context.invoked_subcommand is not None:
        return 0
    if (tls_cert_file is None) != (tls_key_file is None):
        raise click.UsageError("--tls-cert-file and --tls-key-file need each other")
    # These modules are imported here, because subcommands do not need them.
    import structlog  # noqa: PLC0415

    from provisioner import settings  # noqa: PLC0415
    from provisioner.admission.files import Files  # noqa: PLC0415
    from provisioner.kube.api import connect  # noqa: PLC0415
    from provisioner.partitions import app  # noqa: PLC0415
    from provisioner.runtime import logs  # noqa: PLC0415
    from provisioner.settings.partitions import PartitionSettings  # noqa: PLC0415

    effective = settings.read(PartitionSettings, os.environ)
    connected = connect(kubeconfig)
    logs.configure(effective.log_level)
    structlog.get_logger(__name__).info("settings.read", **settings.readable(effective))
    clients = _clients(effective)
    certificate = None
    if tls_cert_file is not None and tls_key_file is not None:
        certificate = Files(certificate=Path(tls_cert_file), key=Path(tls_key_file))
    addresses = app.Addresses(
        api=api_bind_address,
        api_tls=tls_bind_address,
        metrics=metrics_bind_address,
        probes=health_probe_bind_address,
        leader_elect=leader_elect,
        certificate=certificate,
    )

    def exit_process(code: int) -> None:
        # If the Lease was lost, another replica may already lead, so running `vipu` commands are killed first.
        try:
            _close(clients.values())
        finally:
            os._exit(code)

    try:
        return app.run(effective, addresses, connected, clients, exit_process=exit_process)
    finally:
        _close(clients.values())


def _close(clients: Iterable[VipuCommand]) -> None:
    for vipu_command in clients:
        vipu_command.close()


def _clients(effective: PartitionSettings) -> dict[str, VipuCommand]:
    from provisioner.partitions.vipu.cli import VipuCommand  # noqa: PLC0415

    return {
        server.address: VipuCommand(
            host=server.host,
            port=server.port,
            command=effective.command,
            credentials=_credentials(effective.credentials, server.host, server.port),
            create_seconds=effective.create_seconds,
        )
        for server in effective.servers
    }


def _credentials(folder: str, host: str, port: int) -> Path | None:
    if not folder:
        return None
    server_folder = Path(folder) / f"{host}_{port}"
    return server_folder if server_folder.is_dir() else Path(folder)
