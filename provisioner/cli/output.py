"""What commands print, whoever reads it."""

from __future__ import annotations

import io
import os
import sys

from provisioner.cli.exits import ExitCode


def prepare() -> None:
    """Let standard output take whatever is printed.

    What its encoding lacks is escaped, for what commands print has the words of others in it. Where it is closed, as by
    `>&-`, it is as if it were /dev/null.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - pathlib takes 10 ms to import
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def finish() -> None:
    """Print what is still to be printed, at the end of every command; that nobody reads it any more is no error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_the_rest()


def refuse(message: str) -> int:
    """Say why a command does not start; return its exit code."""
    sys.stderr.write(f"tpu-provisioner: {message}\n")
    return ExitCode.ERROR


def drop_the_rest() -> None:
    """Print nowhere from now on, after a BrokenPipeError: whoever read along (head, less) has seen enough.

    Else the interpreter would complain when it flushes at the end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(text: str) -> str:
    """Return a text on one line and without control characters: users' words must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
