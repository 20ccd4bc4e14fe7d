"""Tables for people: aligned columns, cut to the width of the terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Sequence

from provisioner.cli.output import plain

#: Words beneath a row have so much room: the cause stands at the beginning, what to do about it behind that.
_LINES_OF_WORDS = 4
_INDENT = "    "
_NARROWEST = 20


def aligned(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None) -> list[str]:
    """Return the rows as lines with two blanks between columns; lines longer than `width` are cut.

    The columns of `right`, from 0, have numbers, which end where their column ends.
    """
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
    """Return the rows as lines, of which the last column has words.

    Where they do not all fit into `width`, they stand beneath their rows, wrapped: cut, they would hide what they say.
    """
    lines = aligned(rows)
    if width is None or all(len(line) <= width for line in lines):
        return lines
    found = []
    for line, row in zip(aligned([row[:-1] for row in rows], width=width), rows, strict=True):
        found.append(line)
        # The heading of the column stands above no column any more.
        if row is not rows[0]:
            found += _wrapped(plain(row[-1]), width)
    return found


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(
        words,
        max(width, _NARROWEST),
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        max_lines=_LINES_OF_WORDS,
        placeholder="…",
        break_on_hyphens=False,
    )


def terminal_width() -> int | None:
    """Return the width of the terminal; None where output goes elsewhere, and nothing has to be cut."""
    if not sys.stdout.isatty():
        return None
    import shutil  # noqa: PLC0415 - it brings archives and compression

    return shutil.get_terminal_size().columns
