"""What commands print, whoever reads it."""

from __future__ import annotations

import io
import os
import sys


def never_refuse_a_letter() -> None:
    """Let standard output escape what its encoding lacks: what commands print has the words of others in it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_the_rest() -> None:
    """Print nowhere from now on, after a BrokenPipeError: whoever read along (head, less) has seen enough.

    Else the interpreter would complain when it flushes at the end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(text: str) -> str:
    """Return a text on one line and without control characters: users' words must not steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
