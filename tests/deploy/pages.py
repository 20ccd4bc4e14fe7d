"""Reads the command blocks of a documentation page. A comment above a block names the installations that need it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?m)^(?P<indent> *)(?:<!-- test: (?P<where>[a-z0-9]+) -->\n(?P=indent))?```bash\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of commands that readers copy."""

    #: Word in the comment above it: `all`, an installation such as `helm`, or a variant; empty without a comment.
    where: str
    text: str
    heading: str


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(where=match["where"] or "", text=textwrap.dedent(match["text"]), heading=_heading(text[: match.start()]))
        for match in _BLOCK.finditer(text)
    ]


def _heading(before: str) -> str:
    headings = re.findall(r"(?m)^##+ (.*)$", re.sub(r"(?ms)^ *```.*?^ *```$", "", before))
    return headings[-1] if headings else ""
