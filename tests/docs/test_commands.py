"""Tests that the commands in the documentation are valid: they parse, and their targets exist.

`tests/deploy/test_install_page.py` and `test_upgrade.py` also run the commands in install.md and upgrade.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
from pathlib import PurePath

import click
import pytest

from provisioner.cli.main import make_frame
from rehearsal.commands.main import make_frame as make_rehearsal_frame
from tests.docs import shell

_SHOWN = shell.shown()
_ALL = [(block, words) for block in _SHOWN for simple in shell.commands(block.text) for words in shell.programs(simple)]
_MAKEFILES = "\n".join((shell.ROOT / name).read_text("utf-8") for name in ("Makefile", "generators/targets.mk"))
_TARGETS = frozenset(re.findall(r"(?m)^([a-z][a-z-]*):", _MAKEFILES))
_VARIABLES = frozenset(re.findall(r"\$[({]?([A-Z_]+)", _MAKEFILES))
_OURS = {"tpu-provisioner": make_frame, "tpu-rehearsal": make_rehearsal_frame}


def test_each_block_is_valid_shell() -> None:
    blocks = [block for block in _SHOWN if block.fenced]
    functions = "\n".join(f"block{number}() {{\n{block.text}\n}}" for number, block in enumerate(blocks))

    read = subprocess.run(["bash", "-n"], input=functions, check=False, capture_output=True, text=True)

    assert read.stderr == ""


def _check_ours(words: list[str]) -> None:
    """Parse a command line without running it. Raises click.UsageError or SystemExit if it is invalid."""
    arguments = shell.plain(words[1:])
    frame = _OURS.get(PurePath(words[0]).name, make_frame)()
    with click.Context(frame, info_name=words[0]) as context, contextlib.suppress(click.exceptions.Exit):
        name, command, rest = frame.resolve_command(context, arguments)
        assert command is not None
        # A command without arguments may be only a mention of its name, so missing parameters are no error.
        with contextlib.suppress(*[] if rest else [click.MissingParameter]):
            command.make_context(name, rest, parent=context)


def _check_make(words: list[str]) -> None:
    for word in shell.plain(words[1:]):
        name, sign, _ = word.partition("=")
        assert name in (_VARIABLES if sign else _TARGETS), word


def _check_kubectl(words: list[str]) -> None:
    # Commands of kubectl are not checked, except `kubectl tpu`, which has the provisioner's commands.
    if words[1:2] == ["tpu"]:
        _check_ours(words[1:])


def _check_python(words: list[str]) -> None:
    if "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None


_CHECKS = {
    **dict.fromkeys(_OURS, _check_ours),
    **dict.fromkeys(("python", "python3"), _check_python),
    "make": _check_make,
    "kubectl": _check_kubectl,
}


def _check(words: list[str]) -> None:
    _CHECKS.get(PurePath(words[0]).name, lambda _: None)(words)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{block.place} {' '.join(words)}"[:120]) for block, words in _ALL]
)
def test_targets_of_commands_exist(words: list[str]) -> None:
    _check(words)


@pytest.mark.parametrize(
    "line",
    [
        "tpu-provisioner drian",
        "tpu-rehearsal demmo",
        "tpu-provisioner run --leader-elekt",
        "make tset",
        "make simulate SEDES=1",
        "kubectl tpu chekc",
        "python -m tests.simulaton",
    ],
)
def test_wrong_command_is_found(line: str) -> None:
    """This shows that the test of the pages can fail."""
    with pytest.raises((AssertionError, click.UsageError)):
        _check(line.split())
