"""Partial responses of Google's services: the parameter `fields` and the header X-Goog-FieldMask.

A mask is a list of paths separated by commas; `a/b` or `a.b` selects a nested field. Parentheses and `*`, which no
client here sends, are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# A tree of names; an empty tree selects the whole value.
Mask = dict[str, Any]

_PATH = re.compile(r"\w+(?:[/.]\w+)*")


class MaskError(ValueError):
    """A text is not a valid mask."""


def paths(text: str) -> list[tuple[str, ...]]:
    """Return every path from the root to a selected field. Raises MaskError."""
    found = text.split(",")
    if any(_PATH.fullmatch(path) is None for path in found):
        raise MaskError(text)
    return [tuple(re.split("[/.]", path)) for path in found]


def tree(found: Iterable[tuple[str, ...]]) -> Mask:
    """Return the mask that selects these paths; an empty mask selects everything."""
    mask: Mask = {}
    for path in found:
        _insert(mask, path)
    return mask


def apply(mask: Mask, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the body that the mask selects."""
    if not mask:
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
            return  # an earlier path selects the whole value
        current = current.setdefault(name, {})
        if index == len(path) - 1:
            current.clear()
