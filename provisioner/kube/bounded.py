"""Read what is kept of one object's texts, within bounds.

What exceeds a bound is dropped, so that no record holds more than the bounds add up to, and the first such excess is
noted for the object's owner. Reading takes time in proportion to the object, whatever is in it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from provisioner.model import bounds


class BoundedReader:
    """Reads texts until `most_characters` are kept; `problem` is the first excess in words, empty for none.

    A reader `within` another one reads a part of its object, and counts for both.
    """

    def __init__(self, what: str, *, most_characters: int, within: BoundedReader | None = None) -> None:
        self.problem = ""
        self.what = what
        self._left = self.most_characters = most_characters
        self._within = within

    def refuse(self, problem: str) -> None:
        """Note what exceeds a bound."""
        self.problem = self.problem or problem

    def text(self, what: str, raw: object, *, most: int = bounds.LABEL_KEY) -> str:
        """Read one text; one that is too long is cut, and whatever is no text is empty."""
        if not isinstance(raw, str):
            return ""
        if len(raw) > most:
            self.refuse(bounds.too_long(what, raw, most))
            return bounds.cut(raw)
        full = self.count(len(raw))
        if full is None:
            return shared(raw)
        self.refuse(
            f"labels, selectors, tolerations, affinity and annotations of {full.what} have more than "
            f"{full.most_characters:,} characters, and no more are read; use fewer"
        )
        return ""

    def count(self, characters: int) -> BoundedReader | None:
        """Count what is kept; return the reader whose bound it exceeds, None for none."""
        self._left -= characters
        if self._left < 0:
            return self
        return self._within.count(characters) if self._within is not None else None

    def labels(self, what: str, raw: object, *, keep: Collection[str]) -> dict[str, str]:
        """Read a map of texts; of one that is too large only the keys to `keep`."""
        if not isinstance(raw, dict):
            return {}
        if len(raw) > bounds.MAP_ENTRIES:
            self.refuse(f"{what} {bounds.too_many('entries', len(raw), bounds.MAP_ENTRIES)}")
            raw = {key: raw[key] for key in keep if key in raw}
        return {
            self.text(f"a key of {what}", key): self.text(f"{what} {bounds.cut(key)}", value, most=bounds.LABEL_VALUE)
            for key, value in raw.items()
            if isinstance(key, str) and isinstance(value, str)
        }

    def annotations(self, raw: object, *, keep: Collection[str]) -> dict[str, str]:
        """Read those annotations that mean something here."""
        if not isinstance(raw, dict):
            return {}
        return {
            key: self.text(f"annotation {key}", raw[key], most=bounds.ANNOTATION)
            for key in keep
            if isinstance(raw.get(key), str)
        }

    def entries(self, what: str, raw: object, most: int) -> list[dict[str, Any]]:
        """Return the objects in a list; none of one that is too long."""
        if not isinstance(raw, list):
            return []
        if len(raw) > most:
            self.refuse(f"{what} {bounds.too_many('entries', len(raw), most)}")
            return []
        return [entry for entry in raw if isinstance(entry, dict)]


def shared(text: str) -> str:
    """Return one and the same string for equal texts: thousands of pods carry the same few.

    Not sys.intern, which in some releases of Python never frees what it was given. Long texts are hardly shared, and
    would fill the memory.
    """
    return _shared(text) if len(text) <= bounds.LABEL_KEY else text


@functools.lru_cache(maxsize=8192)
def _shared(text: str) -> str:
    return text
