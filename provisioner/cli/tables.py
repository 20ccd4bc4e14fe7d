"""Tables for people: aligned columns, cut to the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from provisioner.cli.output import plain


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


def terminal_width() -> int | None:
    """Return the width of the terminal; None where output goes elsewhere, and nothing has to be cut."""
    if not sys.stdout.isatty():
        return None
    import shutil  # noqa: PLC0415 - it brings archives and compression

    return shutil.get_terminal_size().columns
