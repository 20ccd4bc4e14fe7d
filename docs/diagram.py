"""Draws a picture for each text of docs, such as architecture.svg from architecture.txt: `make docs`.

Each line of the text is a box, a step (a box of another colour), or an arrow between two of them:

    box NAME COLUMN ROW [WIDTH] "TITLE" "LINE" "LINE"
    step NAME COLUMN ROW [WIDTH] "TITLE" "LINE" "LINE"
    arrow FROM TO ["LABEL"]

Columns, rows and widths count cells. An arrow is straight, from the side of one box that faces the other.
"""

import shlex
from html import escape
from pathlib import Path
from typing import NamedTuple

SOURCES = tuple(sorted(Path(__file__).parent.rglob("*.txt")))
_CELL_WIDTH, _CELL_HEIGHT, _GAP = 186, 80, 60
_FILLS = {"box": "#eef4fa", "step": "#fdf3e3"}
_LINE, _MARGIN = 16, 20
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    '<defs><marker id="tip" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    '<path d="M0,0 L9,4 L0,8 z" fill="#456"/></marker></defs>'
    '<rect width="100%" height="100%" fill="#fff"/>'
)


class _Box(NamedTuple):
    left: int
    top: int
    width: int
    fill: str
    words: tuple[str, ...]

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + _CELL_HEIGHT

    @property
    def centre(self) -> tuple[int, int]:
        return self.left + self.width // 2, self.top + _CELL_HEIGHT // 2


def _box(words: list[str], fill: str) -> _Box:
    column, row, *rest = words
    cells = int(rest.pop(0)) if rest[0].isdigit() else 1
    return _Box(
        left=_MARGIN + int(column) * (_CELL_WIDTH + _GAP),
        top=_MARGIN + int(row) * (_CELL_HEIGHT + _GAP),
        width=cells * _CELL_WIDTH + (cells - 1) * _GAP,
        fill=fill,
        words=tuple(rest),
    )


def _drawn(box: _Box) -> str:
    x = box.centre[0]
    top = box.centre[1] - _LINE * (len(box.words) - 1) // 2 + 4
    weights = ("bold", *("normal" for _ in box.words[1:]))
    lines = "".join(
        f'<text x="{x}" y="{top + _LINE * number}" text-anchor="middle" font-weight="{weight}">{escape(words)}</text>'
        for number, (words, weight) in enumerate(zip(box.words, weights, strict=True))
    )
    frame = f'x="{box.left}" y="{box.top}" width="{box.width}" height="{_CELL_HEIGHT}" rx="6"'
    return f'<rect {frame} fill="{box.fill}" stroke="#456"/>{lines}'


def _ends(start: _Box, end: _Box) -> tuple[int, int, int, int]:
    if start.right <= end.left or end.right <= start.left:
        y = (max(start.top, end.top) + min(start.bottom, end.bottom)) // 2
        return (start.right, y, end.left, y) if start.right <= end.left else (start.left, y, end.right, y)
    x = (max(start.left, end.left) + min(start.right, end.right)) // 2
    return (x, start.bottom, x, end.top) if start.top < end.top else (x, start.top, x, end.bottom)


def _arrow(start: _Box, end: _Box, label: str) -> str:
    x1, y1, x2, y2 = _ends(start, end)
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#456" stroke-width="1.5" marker-end="url(#tip)"/>'
    if not label:
        return line
    side = 'text-anchor="middle"' if y1 == y2 else ""
    x, y = ((x1 + x2) // 2, y1 - 6) if y1 == y2 else (x1 + 6, (y1 + y2) // 2 + 4)
    return f'{line}<text x="{x}" y="{y}" {side} font-size="11" fill="#456">{escape(label)}</text>'


def draw(text: str) -> str:
    """Return the picture of a text."""
    boxes: dict[str, _Box] = {}
    arrows: list[str] = []
    for line in text.splitlines():
        match shlex.split(line, comments=True):
            case ["box" | "step" as kind, name, *words]:
                boxes[name] = _box(words, _FILLS[kind])
            case ["arrow", start, end, *label]:
                arrows.append(_arrow(boxes[start], boxes[end], " ".join(label)))
            case []:
                continue
            case _:
                raise ValueError(f"not a box and not an arrow: {line}")
    width = max(box.right for box in boxes.values()) + _MARGIN
    height = max(box.bottom for box in boxes.values()) + _MARGIN
    return "\n".join([_HEAD.format(width=width, height=height), *map(_drawn, boxes.values()), *arrows, "</svg>", ""])


if __name__ == "__main__":
    for source in SOURCES:
        source.with_suffix(".svg").write_text(draw(source.read_text(encoding="utf-8")), encoding="utf-8")
