"""Partial responses of Google's services: the parameter `fields` and the header X-Goog-FieldMask.

Grammar: names parted by commas; `a/b` or `a.b` goes into a field; `a(b,c)` selects below it; `*` is everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# A tree of names; an empty tree selects the whole value.
Mask = dict[str, Any]

_TOKEN = re.compile(r"\s*([A-Za-z0-9_*$-]+|[,/.()])\s*")


class MaskError(ValueError):
    """A text is no mask."""


def paths(text: str) -> list[tuple[str, ...]]:
    """Return every path from the root to a selected field. Raises MaskError."""
    return _Parser(text).paths()


def tree(found: Iterable[tuple[str, ...]]) -> Mask:
    """Return the mask that selects these paths; an empty one selects everything."""
    mask: Mask = {}
    for path in found:
        _insert(mask, path)
    return {} if "*" in mask else mask


def apply(mask: Mask, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the mask selects of the body."""
    if not mask or "*" in mask:
        return dict(body)
    return {name: _select(mask[name], value) for name, value in body.items() if name in mask}


def _select(mask: Mask, value: Any) -> Any:
    if not mask:
        return value
    if isinstance(value, list):
        return [_select(mask, item) for item in value]
    return apply(mask, value) if isinstance(value, Mapping) else value


def _insert(mask: Mask, path: tuple[str, ...]) -> None:
    current = mask
    for index, name in enumerate(path):
        if name in current and not current[name]:
            return  # an earlier path selects all of it
        current = current.setdefault(name, {})
        if index == len(path) - 1:
            current.clear()


class _Parser:
    """A recursive descent over the mask's tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s+", "", text):
            raise MaskError(text)
        self._at = 0

    def paths(self) -> list[tuple[str, ...]]:
        """Return every path from the root to a selected field."""
        paths = self._list(())
        if self._at != len(self._tokens):
            raise MaskError(self._text)
        return paths

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _list(self, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
        paths = self._item(prefix)
        while self._peek() == ",":
            self._at += 1
            paths += self._item(prefix)
        return paths

    def _item(self, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
        name = self._peek()
        if not name or name in ",/.()":
            raise MaskError(self._text)
        self._at += 1
        path = (*prefix, name)
        if self._peek() in ("/", "."):
            self._at += 1
            return self._item(path)
        if self._peek() != "(":
            return [path]
        self._at += 1
        paths = self._list(path)
        if self._peek() != ")":
            raise MaskError(self._text)
        self._at += 1
        return paths
