"""The command line `tpu-rehearsal`. It does not run in clusters, and the image does not contain it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

import provisioner
import rehearsal
from provisioner.cli import output
from provisioner.cli.frame import Frame
from provisioner.cli.main import choose

PROGRAM = "tpu-rehearsal"
#: Module and summary of each command, in the order of `--help`.
COMMANDS = {
    "demo": ("demo", "run a JobSet on a local control plane with a simulated GKE"),
    "demo-gce": ("demo_gce", "run a JobSet on a TPUNodeGroup, with a simulated Compute Engine"),
    "demo-ipu": ("demo_ipu", "run pods with IPUs on a local control plane with a simulated V-IPU server"),
    "simulator": ("simulator", "run only the simulated GKE"),
    "simulator-gce": ("simulator_gce", "run only the simulated Compute Engine, with machines that join a cluster"),
    "build": ("build", "build the programs of the local control plane, and print their paths"),
    "up": ("up", "run only the local control plane"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Raises SystemExit with code 2 if the command line is wrong."""
    output.prepare()
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        return choose(make_frame, given, program=PROGRAM, complete_var="_TPU_REHEARSAL_COMPLETE")
    finally:
        output.finish()


def make_frame() -> click.Group:
    """Return the group of all commands."""
    examples = ("{prog} demo my-jobset.yaml", "{prog} simulator --port=0")
    frame = Frame("rehearsal.commands", COMMANDS, name=PROGRAM, help=rehearsal.__doc__, examples=examples)
    return click.version_option(provisioner.__version__, message=f"{PROGRAM} %(version)s")(frame)
