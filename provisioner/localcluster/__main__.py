"""The local cluster by hand: `python -m provisioner.localcluster build` and `... up`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from provisioner.localcluster.binaries import resolve_binaries
from provisioner.localcluster.cluster import start
from provisioner.localcluster.errors import LocalClusterError
from provisioner.localcluster.operators import LWS

_CHECK_SECONDS = 1.0


def _tell(text: str, /) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _build(*, lws: bool) -> int:
    binaries = resolve_binaries(optional=[LWS.name] if lws else [], progress=_tell)
    for name, path in binaries.programs.items():
        sys.stdout.write(f"{name} {path}\n")
    return 0


def _up(directory: Path | None, *, jobset: bool, lws: bool) -> int:
    # An end by a service manager is to be as orderly as one by Ctrl-C, at any moment of the start.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with start(directory, progress=_tell, jobset=jobset, lws=lws) as cluster:
            sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
            sys.stdout.flush()
            _tell(
                f"kubectl: {cluster.binaries['kubectl']}; logs: {cluster.directory / 'logs'}; Ctrl-C stops the cluster"
            )
            while True:
                time.sleep(_CHECK_SECONDS)
                cluster.check()
    except KeyboardInterrupt:
        _tell("the local cluster has ended")
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m provisioner.localcluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build or find all programs and print their paths")
    build.add_argument("--lws", action="store_true", help="include the LeaderWorkerSet controller")
    up = commands.add_parser("up", help="start a cluster, print its KUBECONFIG, run until Ctrl-C")
    up.add_argument(
        "--directory", type=Path, help="a new or empty folder for the cluster's files (default: a temporary one)"
    )
    up.add_argument("--no-jobset", action="store_true", help="do not run the JobSet controller")
    up.add_argument("--lws", action="store_true", help="also run the LeaderWorkerSet controller")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            return _build(lws=options.lws)
        return _up(options.directory, jobset=not options.no_jobset, lws=options.lws)
    except LocalClusterError as error:
        _tell(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
