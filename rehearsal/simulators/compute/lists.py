"""Lists as Compute Engine gives them: pages, filters, orders; and the part of an answer that a client asks for.

Reference of every list: at most 500 a page, names in alphabetical order or the newest first, filters with = != and : of
AIP 160 or with eq and ne, of which the values are regular expressions. Comparisons by size, OR, and parentheses inside
parentheses are not played. Partial answers: "Partial response", parameter `fields`.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rehearsal.simulators.compute import errors

_MOST = 500
_TERM = re.compile(r"\s*([A-Za-z][\w.-]*)\s*(!=|=|:|\beq\b|\bne\b)\s*(\"[^\"]*\"|'[^']*'|[^\s()\"']+)\s*")
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_/*$-]+|[(),]")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Item = TypeVar("_Item", bound=_Named)


def page_of(
    items: Sequence[_Item], query: Mapping[str, str], render: Callable[[_Item], dict[str, Any]], *, key: str = "items"
) -> dict[str, Any]:
    """Return the page of a list that is asked for, with the token of the next; only what has to be is rendered."""
    size, start = _size(query.get("maxResults", str(_MOST))), _start(query.get("pageToken", ""))
    if query.get("filter") or query.get("orderBy"):
        chosen = [item for item in items if _may_match(item.name, query.get("filter", ""))]
        bodies = [body for body in map(render, chosen) if matches(body, query.get("filter", ""))]
        total, page = len(bodies), ordered(bodies, query.get("orderBy", ""))[start : start + size]
    else:
        chosen = sorted(items, key=lambda item: item.name)[start : start + size]
        total, page = len(items), [render(item) for item in chosen]
    shown = {key: page} if page else {}
    if start + size < total:
        return {**shown, "nextPageToken": base64.urlsafe_b64encode(str(start + size).encode()).decode()}
    return shown


def ordered(items: Sequence[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    """Return bodies in the order that is asked for."""
    if order in ("", "name", "name asc"):
        return sorted(items, key=lambda item: str(item["name"]))
    if order == "creationTimestamp desc":
        return sorted(items, key=lambda item: str(item.get("creationTimestamp") or item["insertTime"]), reverse=True)
    raise errors.invalid("orderBy", order, "Only name and creationTimestamp desc are supported.")


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST:
        raise errors.invalid("maxResults", text, f"Must be from 0 to {_MOST}.")
    return int(text) or _MOST


def _start(token: str) -> int:
    try:
        return int(base64.b64decode(token, altchars=b"-_", validate=True).decode() or "0")
    except ValueError as error:
        raise errors.invalid("pageToken", token, "Not a token of a list.") from error


def _may_match(name: str, text: str) -> bool:
    """Whether something of this name may pass a filter: to render thousands for a few of them takes long."""
    return all(_holds({"name": name}, *term) for term in _terms(text) if term[0] == "name")


def matches(item: Mapping[str, Any], text: str) -> bool:
    """Tell whether a body passes a filter."""
    return all(_holds(item, *term) for term in _terms(text))


@functools.lru_cache(maxsize=256)
def _terms(text: str) -> tuple[tuple[str, str, str], ...]:
    terms = []
    for part in re.split(r"\)\s*(?:AND\s*)?\(|\s+AND\s+", text.strip().removeprefix("(").removesuffix(")")):
        match = _TERM.fullmatch(part)
        if match is None and part.strip():
            raise errors.invalid("filter", text, "Invalid list filter expression.")
        if match is not None:
            terms.append((match[1], match[2], match[3].strip("\"'")))
    return tuple(terms)


def _holds(item: Mapping[str, Any], field: str, operator: str, value: str) -> bool:
    found: Any = item
    for name in field.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if operator == ":" and value == "*":
        return found is not None
    shown = str(found).lower() if isinstance(found, bool) else "" if found is None else str(found)
    match operator:
        case "=":
            return shown == value
        case "!=":
            return shown != value
        case ":":
            return value.rstrip("*") in shown
        case _:
            return (re.fullmatch(value, shown) is not None) == (operator == "eq")


def partial(body: dict[str, Any], fields: str) -> dict[str, Any]:
    """Return the part of a body that `fields` names, such as items(name,status),nextPageToken."""
    if not fields or fields == "*":
        return body
    tokens = _FIELD_NAMES.findall(fields)
    if "".join(tokens) != fields.replace(" ", ""):
        raise errors.invalid("fields", fields, "Invalid field selection.")
    mask, rest = _mask(tokens)
    if rest:
        raise errors.invalid("fields", fields, "Invalid field selection.")
    found: dict[str, Any] = _part(body, mask)
    return found


_Mask = dict[str, Any]


def _mask(tokens: Sequence[str]) -> tuple[_Mask, list[str]]:
    mask: _Mask = {}
    left, inner = list(tokens), mask
    while left and left[0] != ")":
        part = left.pop(0)
        if part == "(":
            below, left = _mask(left)
            inner.update(below)
            left = left[1:]
        elif part != ",":
            inner = mask
            for name in part.split("/"):
                inner = inner.setdefault(name, {})
    return mask, left


def _part(body: Any, mask: _Mask) -> Any:
    if not mask or "*" in mask:
        return body
    if isinstance(body, list):
        return [_part(item, mask) for item in body]
    if isinstance(body, dict):
        return {name: _part(body[name], below) for name, below in mask.items() if name in body}
    return body
