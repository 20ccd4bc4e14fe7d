"""The command line: `tpu-provisioner`, and the same commands as a plugin of kubectl, `kubectl tpu`."""

import gc
import os
import sys
from collections.abc import Callable, Sequence

import click

import provisioner
from provisioner.cli import output
from provisioner.cli.frame import Frame, wants_color
from provisioner.model.wording import UserError

#: Program name that means `run`, because manifests of the Go provisioner set `command: [/manager]` and only flags.
_NAME_OF_GO = "manager"
_NAME_OF_PLUGIN = "kubectl-tpu"
_PROGRAM = "tpu-provisioner"
#: Module and summary of each command, in the order of `--help`.
COMMANDS = {
    "status": ("status", "show slices, their node pools, and why they wait"),
    "explain": ("explain", "explain why a workload, slice, pod or node pool waits, runs or is deleted"),
    "gc": ("gc", "show which node pools are deleted and when, and why the others are kept"),
    "plan": ("plan", "show offline which node pools manifests would get, and the mistakes in them"),
    "check": ("check", "check configuration and permissions, with the remedy of each problem; changes nothing"),
    "drain": ("drain", "list the node pools and TPUNodeGroups that are left, or wait until none is left"),
    "topologies": ("topologies", "list the slices that exist, and the machines of each slice"),
    "run": ("run", "run the controller (settings come from the environment)"),
    "webhook": ("webhook", "serve admission webhooks: TPU variables of pods, mistakes in workloads, selectors of Jobs"),
    "nodegroups": ("nodegroups", "run the controller of TPUNodeGroups, for Compute Engine without GKE"),
    "partitions": ("partitions", "run the controller of partitions of Graphcore IPUs, for pods with an annotation"),
    "completion": ("completion", "print the script that completes commands in bash, zsh or fish"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (sys.argv if None); return its exit code. Raises SystemExit on a wrong command."""
    output.prepare()
    is_process = arguments is None
    program = os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib takes 10 ms to import
    given = list(sys.argv[1:] if arguments is None else arguments)
    if is_process and program == _NAME_OF_GO:
        given = ["run", *given]
    shown = "kubectl tpu" if program == _NAME_OF_PLUGIN else _PROGRAM
    try:
        return choose(make_frame, given, program=shown, complete_var="_TPU_PROVISIONER_COMPLETE")
    finally:
        output.finish()
        if is_process:
            # Exclude all objects from the garbage collection at exit, which would take time.
            gc.freeze()


def make_frame() -> click.Group:
    """Return the group of all commands."""
    examples = (
        "{prog} COMMAND --help",
        "{prog} plan -f jobset.yaml",
        "{prog} topologies tpu-v6e-slice",
        "{prog} check",
    )
    frame = Frame("provisioner.cli", COMMANDS, name=_PROGRAM, help=provisioner.__doc__, examples=examples)
    return click.version_option(provisioner.__version__, message=f"{_PROGRAM} %(version)s")(frame)


def choose(frame: Callable[[], click.Group], given: list[str], *, program: str, complete_var: str) -> int:
    """Run the command that `given` names; return its exit code. Raises SystemExit if `given` is wrong."""
    try:
        # Completion scripts always set `complete_var`; click might derive another one from `prog_name`.
        ended = frame().main(
            given, prog_name=program, complete_var=complete_var, standalone_mode=False, color=wants_color()
        )
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except UserError as error:
        return output.refuse(str(error))
    except click.Abort:
        return output.ExitCode.INTERRUPTED
    return ended if isinstance(ended, int) else output.ExitCode.OK
