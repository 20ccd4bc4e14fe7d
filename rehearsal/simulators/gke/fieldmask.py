"""Partial responses: the `fields` parameter and the X-Goog-FieldMask header.

Grammar: names parted by commas; `a/b` or `a.b` goes into a field; `a(b,c)` selects below it; `*` is everything. A mask
that names a field the message doesn't have is refused, as Google does, so that a client's typing mistake shows here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from rehearsal.simulators.gke import schema
from rehearsal.simulators.gke.errors import ApiError, FieldViolation

# A tree of names; an empty tree selects the whole value.
Mask = dict[str, Any]

_TOKEN = re.compile(r"\s*([A-Za-z0-9_*-]+|[,/.()])\s*")


# Clients send the same few masks again and again; nobody changes a mask that was parsed.
@functools.lru_cache(maxsize=256)
def parse(text: str, descriptor: schema.Descriptor) -> Mask:
    """Return the mask that the text spells, checked against the message; an empty one selects everything."""
    mask: Mask = {}
    for path in _Parser(text).paths():
        canonical = schema.canonical_path(descriptor, path)
        if canonical is None:
            raise _refusal("/".join(path))
        _insert(mask, canonical)
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


def _refusal(path: str) -> ApiError:
    description = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{path}'."
    return ApiError(
        "INVALID_ARGUMENT",
        "Request contains an invalid argument.",
        violations=(FieldViolation(path=path, description=description),),
    )


class _Parser:
    """A recursive descent over the mask's tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s+", "", text):
            raise _refusal(text)
        self._at = 0

    def paths(self) -> list[tuple[str, ...]]:
        """Return every path from the root to a selected field."""
        paths = self._list(())
        if self._at != len(self._tokens):
            raise _refusal(self._text)
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
            raise _refusal(self._text)
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
            raise _refusal(self._text)
        self._at += 1
        return paths
