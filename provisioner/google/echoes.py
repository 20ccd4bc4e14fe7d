"""What users wrote, taken out of Google's words before these are read. Pure.

Google repeats names in its errors: a JobSet called `quota-exceeded`, a policy called `rate-limit-exceeded` or a label
with such a value would otherwise decide what the error means. Only the reading is of the shortened text; people see the
whole one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

#: Stands where something was taken out, so that the words around it stay apart.
GAP = "…"
#: Nothing that Google's words are known by is shorter.
_SHORTEST_VALUE = 4
#: Longer texts are read so far.
_LONGEST_TEXT = 10_000
#: Parts of a resource's path that are Google's own words.
_COLLECTIONS = frozenset(
    {
        "projects", "global", "regions", "zones", "locations", "networks", "subnetworks", "reservations",
        "reservationBlocks", "reservationSubBlocks", "keyRings", "cryptoKeys", "images", "disks", "resourcePolicies",
        "instanceTemplates", "instanceGroupManagers", "instances",
    }
)  # fmt: skip


def without(text: str, values: Iterable[str]) -> str:
    """Return a text without the values, wherever they stand as a name of their own.

    A plain word goes only where it is quoted or part of a path: it could be Google's own as well.
    """
    text = text[:_LONGEST_TEXT]
    words: set[str] = set()
    others: set[str] = set()
    for value in values:
        for part in _parts(value):
            if len(part) >= _SHORTEST_VALUE:
                (words if part.isalpha() else others).add(part)
    patterns = []
    if others:
        patterns.append(rf"(?<![\w-])(?:{_alternatives(others)})(?![\w-])")
    if words:
        patterns.append(rf"(?<=['\"`/=:])(?:{_alternatives(words)})(?![\w-])")
    for pattern in patterns:
        text = re.sub(pattern, GAP, text)
    return text


def names(text: str, name: str) -> bool:
    """Whether a text has a name as a name of its own, not as a part of another word."""
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _parts(value: str) -> Iterator[str]:
    yield value
    # Google repeats paths in other forms than they were given in.
    if "/" in value:
        yield from (part for part in value.split("/") if part not in _COLLECTIONS)
    if "@" in value:
        yield from value.split("@")


def _alternatives(texts: set[str]) -> str:
    # The longest first, so that no part of it is taken for the whole.
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
