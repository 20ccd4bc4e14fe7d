"""`tpu-provisioner completion`: prints scripts with which shells complete commands and options."""

import os
import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from provisioner.cli import output
from provisioner.cli.frame import command_with

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_PROGRAM = "tpu-provisioner"
_VARIABLE = "_TPU_PROVISIONER_COMPLETE"
#: Last line of the output for kubectl (Cobra's protocol): whether the shell also completes file names.
_NO_FILES, _FILES = ":4", ":0"


@command_with(
    "source <({prog} completion bash)    # in ~/.bashrc",
    "source <({prog} completion zsh)     # in ~/.zshrc, after compinit",
    "{prog} completion fish | source     # in ~/.config/fish/config.fish",
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def command(shell: str) -> int:
    """Print the script that completes commands, options and files of tpu-provisioner in a shell.

    `kubectl tpu` needs no script: kubectl completes it where kubectl itself is completed.
    """
    root = click.get_current_context().find_root().command
    complete = _SHELLS[shell](root, {}, _PROGRAM, _VARIABLE)
    # BashComplete.source() is not called, because it would start bash to get its version.
    click.echo(ShellComplete.source(complete))
    return 0


def complete_for_kubectl() -> int:
    """Print completions for kubectl, which starts `kubectl_complete-tpu` with the words that follow `kubectl tpu`."""
    from provisioner.cli.main import make_frame  # noqa: PLC0415 - it imports this module

    *words, incomplete = sys.argv[1:] or [""]
    items = ShellComplete(make_frame(), {}, _PROGRAM, _VARIABLE).get_completions(words, incomplete)
    plain = [item for item in items if item.type == "plain"]
    for item in plain:
        sys.stdout.write(f"{item.value}\t{item.help}\n" if item.help else f"{item.value}\n")
    sys.stdout.write(f"{_FILES if len(plain) < len(items) else _NO_FILES}\n")
    output.finish()
    return os.EX_OK
