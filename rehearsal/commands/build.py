"""`tpu-rehearsal build`: the programs of the local control plane."""

from __future__ import annotations

import click

from provisioner.cli.frame import Command
from provisioner.cli.output import ExitCode
from rehearsal.localcluster import KUBERAY, KUEUE, LWS, LocalClusterError, resolve_binaries


@click.command(cls=Command, examples=("{prog} build", "{prog} build --lws"))
@click.option("--lws", is_flag=True, help="include the LeaderWorkerSet controller")
@click.option("--kueue", is_flag=True, help="include Kueue, which takes ten minutes more")
@click.option("--kuberay", is_flag=True, help="include KubeRay")
def command(*, lws: bool, kueue: bool, kuberay: bool) -> int:
    """Build the missing programs of the local control plane, and print their paths.

    The first build takes about ten minutes.
    """
    try:
        choices = ((LWS, lws), (KUEUE, kueue), (KUBERAY, kuberay))
        optional = [operator.name for operator, wanted in choices if wanted]
        binaries = resolve_binaries(optional=optional, progress=progress)
    except LocalClusterError as error:
        progress(f"error: {error}")
        return ExitCode.ERROR
    for name, path in binaries.programs.items():
        click.echo(f"{name} {path}")
    return ExitCode.OK


def progress(text: str, /) -> None:
    """Print progress on standard error: standard output contains only the paths, for scripts."""
    click.echo(text, err=True)
