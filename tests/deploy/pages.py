"""Command blocks of a page of documentation, each under a comment that says where it can be tried."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"(?m)(?:^<!-- test: (?P<where>[a-z]+) -->\n)?^```bash\n(?P<text>.*?)^```$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Commands to copy."""

    #: environment, here, background, docker, helm or cloud; empty where the page forgets to say.
    where: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    """Return a page's command blocks in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(where=match["where"] or "", text=match["text"]) for match in _BLOCK.finditer(text)]
