"""`tpu-rehearsal up`: runs only the local control plane."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

from provisioner.cli.frame import command_with
from provisioner.cli.output import ExitCode
from rehearsal.commands.progress import ProgressLine
from rehearsal.localcluster import LocalClusterError, start

_CHECK_SECONDS = 1.0


@command_with("{prog} up", "{prog} up --directory=./cluster --lws")
@click.option("--directory", type=Path, help="a new or empty folder for the cluster's files (default: temporary)")
@click.option("--jobset/--no-jobset", default=True, show_default=True, help="run the JobSet controller")
@click.option("--lws", is_flag=True, help="run the LeaderWorkerSet controller")
@click.option("--kueue", is_flag=True, help="run Kueue")
@click.option("--kuberay", is_flag=True, help="run KubeRay")
def command(*, directory: Path | None, jobset: bool, lws: bool, kueue: bool, kuberay: bool) -> int:
    """Start a Kubernetes control plane on this machine, print its KUBECONFIG, and run it until Ctrl-C."""
    # Handle SIGTERM like Ctrl-C, so that a service manager can stop the cluster in order at any point of the start.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Progress goes to standard error, because scripts evaluate the line on standard output.
    progress = ProgressLine(sys.stderr).show
    try:
        with start(directory, progress=progress, jobset=jobset, lws=lws, kueue=kueue, kuberay=kuberay) as cluster:
            click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
            logs = cluster.directory / "logs"
            progress(f"kubectl: {cluster.binaries['kubectl']}; logs: {logs}; Ctrl-C stops the cluster")
            while True:
                time.sleep(_CHECK_SECONDS)
                cluster.check()
    except KeyboardInterrupt:
        progress("the local cluster has ended")
        return ExitCode.OK
    except LocalClusterError as error:
        progress(f"error: {error}")
        return ExitCode.ERROR
