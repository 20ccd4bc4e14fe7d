"""The command line. Each command imports what it needs only when it is chosen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import PurePath

import provisioner

#: Under this name the program is `run`: manifests of the Go provisioner set `command: [/manager]`, and flags alone.
_NAME_OF_GO = "manager"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    given = _given() if arguments is None else list(arguments)
    if given[:1] == ["run"]:
        # Its flags are those of a Go program, in Go's forms; argparse is no help with the single dashes.
        from provisioner.cli import run  # noqa: PLC0415

        return run.main(given[1:])
    parser = argparse.ArgumentParser(
        prog="tpu-provisioner",
        description="Just-in-time TPU node pools for JobSets on Google Kubernetes Engine.",
    )
    parser.add_argument("--version", action="version", version=f"tpu-provisioner {provisioner.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run the controller (settings come from the environment)")
    check = commands.add_parser("check", help="check whether run would work here, and say what to do; changes nothing")
    drain = commands.add_parser("drain", help="list the node pools that are left, or wait until none is left")
    demo = commands.add_parser("demo", help="run a JobSet on a local control plane with a simulated GKE")
    simulator = commands.add_parser("simulator", help="run only the simulated GKE")
    topologies = commands.add_parser("topologies", help="list the slices that exist, and what each consists of")
    chosen = given[:1]
    if chosen == ["check"]:
        from provisioner.cli import check as check_command  # noqa: PLC0415

        check_command.add_arguments(check)
        return check_command.run(parser.parse_args(given))
    if chosen == ["drain"]:
        from provisioner.cli import drain as drain_command  # noqa: PLC0415

        drain_command.add_arguments(drain)
        return drain_command.run(parser.parse_args(given))
    if chosen == ["demo"]:
        from provisioner.cli import demo as demo_command  # noqa: PLC0415

        demo_command.add_arguments(demo)
        return demo_command.run(parser.parse_args(given))
    if chosen == ["simulator"]:
        from provisioner.simulators.gke import app  # noqa: PLC0415

        app.cli_arguments(simulator)
        return app.run_from_args(parser.parse_args(given))
    if chosen == ["topologies"]:
        from provisioner.cli import topologies as topologies_command  # noqa: PLC0415

        topologies_command.add_arguments(topologies)
        return topologies_command.run(parser.parse_args(given))
    parser.parse_args(given)
    return 2


def _given() -> list[str]:
    program, *arguments = sys.argv
    return ["run", *arguments] if PurePath(program).name == _NAME_OF_GO else arguments
