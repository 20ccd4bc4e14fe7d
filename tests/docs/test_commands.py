"""Commands that the documentation shows are commands: they parse, and what they name exists.

What install.md and upgrade.md show is run, too (`tests/deploy/test_install_page.py`, `test_upgrade.py`).
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
_EACH = [(each, words) for each in _SHOWN for simple in shell.commands(each.text) for words in shell.programs(simple)]
#: Whatever else the pages use.
_OTHER_PROGRAMS = frozenset(
    {"cat", "cd", "curl", "docker", "export", "gcloud", "gh", "git", "grep", "helm", "kustomize", "pytest", "source",
     "time", "true", "xargs", "vipu"}
)  # fmt: skip
_MAKEFILES = "\n".join((shell.ROOT / name).read_text("utf-8") for name in ("Makefile", "generators/targets.mk"))
_TARGETS = frozenset(re.findall(r"(?m)^([a-z][a-z-]*):", _MAKEFILES))
_VARIABLES = frozenset(re.findall(r"\$[({]?([A-Z_]+)", _MAKEFILES))

#: The verbs of kubectl that the pages use.
_VERBS = frozenset(
    {"annotate", "apply", "auth", "config", "cordon", "create", "debug", "delete", "describe", "exec", "explain", "get",
     "label", "logs", "patch", "port-forward", "proxy", "rollout", "scale", "set", "taint", "top", "uncordon", "wait"}
)  # fmt: skip


_OURS = {"tpu-provisioner": make_frame, "tpu-rehearsal": make_rehearsal_frame}


def _of(program: str) -> list[object]:
    return [
        pytest.param(words, id=f"{each.place} {' '.join(words)}"[:120])
        for each, words in _EACH
        if PurePath(words[0]).name == program
    ]


def test_each_block_is_shell() -> None:
    """Bash reads all of them, and runs none."""
    blocks = [each for each in _SHOWN if each.fenced]
    functions = "\n".join(f"block{number}() {{\n{each.text}\n}}" for number, each in enumerate(blocks))

    read = subprocess.run(["bash", "-n"], input=functions, check=False, capture_output=True, text=True)

    assert read.stderr == ""


def test_each_program_is_known() -> None:
    """A misspelled one is not."""
    known = _OTHER_PROGRAMS | {*_OURS, "make", "kubectl", "python", "python3"}
    unknown = [(each.place, words[0]) for each, words in _EACH if PurePath(words[0]).name not in known]
    assert unknown == []


@pytest.mark.parametrize("words", [words for program in _OURS for words in _of(program)])
def test_our_own_commands_parse(words: list[str]) -> None:
    """By the parser that the program itself uses."""
    _check_ours(words)


@pytest.mark.parametrize("words", [*_of("python"), *_of("python3")])
def test_modules_exist(words: list[str]) -> None:
    """`python -m` names one that there is."""
    if "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None


@pytest.mark.parametrize("words", _of("make"))
def test_targets_of_make_exist(words: list[str]) -> None:
    """And the variables that are given to them are read."""
    _check_make(words)


@pytest.mark.parametrize("words", _of("kubectl"))
def test_verbs_of_kubectl_exist(words: list[str]) -> None:
    """Those of its plugin `tpu` are our own commands."""
    _check_kubectl(words)


@pytest.mark.parametrize(
    "line",
    [
        "tpu-provisioner drian",
        "tpu-rehearsal demmo",
        "tpu-provisioner drain --wiat",
        "tpu-provisioner run --leader-elekt",
        "make tset",
        "make simulate SEDES=1",
        "kubectl gett pods",
        "kubectl --namespace=x exec deployment/y -- tpu-provisioner chekc",
        "kubectl tpu chekc",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Otherwise the tests above would pass whatever the pages show."""
    with pytest.raises((AssertionError, click.UsageError, SystemExit)):
        _check(line)


def _check(line: str) -> None:
    checks = {**dict.fromkeys(_OURS, _check_ours), "make": _check_make, "kubectl": _check_kubectl}
    for simple in shell.commands(line):
        for words in shell.programs(simple):
            checks[words[0]](words)


def _check_ours(words: list[str]) -> None:
    """Parse a command line and do nothing; raise click.UsageError or SystemExit where it is wrong."""
    arguments = shell.plain(words[1:])
    frame = _OURS.get(PurePath(words[0]).name, make_frame)()
    with click.Context(frame, info_name=words[0]) as context, contextlib.suppress(click.exceptions.Exit):
        name, command, rest = frame.resolve_command(context, arguments)
        assert command is not None
        # Its name alone only mentions a command.
        with contextlib.suppress(*[] if rest else [click.MissingParameter]):
            command.make_context(name, rest, parent=context)


def _check_make(words: list[str]) -> None:
    for word in shell.plain(words[1:]):
        name, sign, _ = word.partition("=")
        assert name in (_VARIABLES if sign else _TARGETS), word


def _check_kubectl(words: list[str]) -> None:
    if words[1:2] == ["tpu"]:
        _check_ours(words[1:])
        return
    assert _VERBS & {*words[1:]}, words
