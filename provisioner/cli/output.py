"""Writes the output of commands: texts, tables, and values for programs. Defines the exit codes of commands."""

import io
import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any

import click


class ExitCode(IntEnum):
    """Exit code of a command; docs/commands.md has its meaning for each command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_SERVED = 3
    INTERRUPTED = 130


def prepare() -> None:
    """Make standard output escape characters that it cannot encode. A closed output (`>&-`) becomes /dev/null."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - pathlib takes 10 ms to import
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def finish() -> None:
    """Flush standard output at the end of a command. A closed pipe is not an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_the_rest()


def refuse(message: str) -> int:
    """Print an error message to standard error; return exit code 1."""
    sys.stderr.write(f"tpu-provisioner: {message}\n")
    return ExitCode.ERROR


def show(text: str) -> None:
    """Print a text, without colours if these are disabled or there is no terminal. A closed pipe is not an error."""
    context = click.get_current_context(silent=True)
    plain = not sys.stdout.isatty() or (context is not None and context.color is False)
    try:
        # click.echo would write UTF-8 even to an ASCII terminal.
        sys.stdout.write(f"{click.unstyle(text) if plain else text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop_the_rest()


def write(value: Any, form: str) -> None:
    """Print a value (dataclasses, lists, mappings) for programs, as JSON or YAML."""
    import msgspec  # noqa: PLC0415 - tables do not need it

    builtins = msgspec.to_builtins(value)
    if form == "json":
        show(msgspec.json.format(msgspec.json.encode(builtins), indent=2).decode())
        return
    import yaml  # noqa: PLC0415 - slow to import

    show(yaml.safe_dump(builtins, sort_keys=False, allow_unicode=True, width=120).rstrip("\n"))


def drop_the_rest() -> None:
    """Discard all further output after a BrokenPipeError; otherwise the interpreter reports it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(text: str) -> str:
    """Return a text on one line without control characters, so that texts of users cannot control the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


#: Maximum number of lines of text below a row of a table.
_LINES_OF_WORDS = 4
_INDENT = "    "
_NARROWEST = 20


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None) -> list[str]:
    """Return the rows as lines, cut to `width`. Columns whose index, from 0, is in `right` are aligned to the right."""
    if not rows:
        return []
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(size) if place in right else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return [line if width is None or len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def aligned_with_words(rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """Return the rows as lines of a table. If a line exceeds `width`, the last columns are wrapped below their rows."""
    kept = len(rows[0]) if rows else 0
    while kept > 1 and width is not None and any(len(line) > width for line in aligned([row[:kept] for row in rows])):
        kept -= 1
    table = []
    for line, row in zip(aligned([row[:kept] for row in rows], width=width), rows, strict=True):
        table.append(line)
        # Each wrapped cell follows the heading of its column, except for the last cell, which is a sentence.
        named = zip(rows[0][kept:-1], row[kept:-1], strict=True)
        below = [*(f"{head.lower()} {cell}" for head, cell in named if cell != "-"), *row[max(kept, len(row) - 1) :]]
        if any(below) and row is not rows[0]:
            table += wrapped(f"{_INDENT}{plain('; '.join(filter(None, below)))}", width, limit=_LINES_OF_WORDS)
    return table


def wrapped(line: str, width: int | None, *, indent: str = _INDENT, limit: int | None = None) -> list[str]:
    """Return a line wrapped to `width`, with at most `limit` lines. All lines after the first begin with `indent`."""
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(
        line, max(width, _NARROWEST), subsequent_indent=indent, max_lines=limit, placeholder="…", break_on_hyphens=False
    )


def terminal_width() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal: lines are then not cut."""
    if not sys.stdout.isatty():
        return None
    import shutil  # noqa: PLC0415 - it imports archives and compression

    return shutil.get_terminal_size().columns
