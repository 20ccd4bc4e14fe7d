"""`tpu-rehearsal build`: builds the programs of the local control plane."""

from __future__ import annotations

import sys

import click

from provisioner.cli.frame import command_with
from provisioner.cli.output import ExitCode
from rehearsal.commands.progress import ProgressLine
from rehearsal.localcluster import KUBERAY, KUEUE, LWS, LocalClusterError, resolve_binaries


@command_with("{prog} build", "{prog} build --lws")
@click.option("--lws", is_flag=True, help="include the LeaderWorkerSet controller")
@click.option("--kueue", is_flag=True, help="include Kueue, which takes ten minutes more")
@click.option("--kuberay", is_flag=True, help="include KubeRay")
def command(*, lws: bool, kueue: bool, kuberay: bool) -> int:
    """Build the missing programs of the local control plane, and print their paths.

    The first build takes about ten minutes.
    """
    # Progress goes to standard error, because scripts read the paths from standard output.
    line = ProgressLine(sys.stderr)
    try:
        choices = ((LWS, lws), (KUEUE, kueue), (KUBERAY, kuberay))
        optional = [operator.name for operator, wanted in choices if wanted]
        binaries = resolve_binaries(optional=optional, progress=line.show)
    except LocalClusterError as error:
        line.show(f"error: {error}")
        return ExitCode.ERROR
    finally:
        line.close()
    for name, path in binaries.programs.items():
        click.echo(f"{name} {path}")
    return ExitCode.OK
