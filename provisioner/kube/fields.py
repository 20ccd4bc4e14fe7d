"""Reads fields of raw JSON. Values of a wrong type count as absent, except in `deletion_deadline`."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from provisioner.model import bounds

UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)
_LARGEST_INDEX_DIGITS = 9
#: Maximum of int32, the type of counts in the API of Kubernetes.
_LARGEST_COUNT = 2**31 - 1
#: Maximum bits of an integer in a message, because Python cannot print integers of thousands of digits.
_MAX_BITS = 1024


class BoundedReader:
    """Reads texts and limits the sum of their characters. The reader `within` also counts and limits them."""

    def __init__(self, title: str, *, max_characters: int, within: BoundedReader | None = None) -> None:
        self.problem: tuple[str, ...] = ()
        self.title = title
        self._left = self.max_characters = max_characters
        self._within = within

    def refuse(self, *problem: str) -> None:
        """Set `problem`, the clauses about an exceeded limit, unless it is set already."""
        self.problem = self.problem or problem

    def text(self, part: str, raw: object, *, limit: int = bounds.LABEL_KEY) -> str:
        """Return a text; empty for other types. Set `problem`, and cut or drop the text, if it exceeds a limit."""
        if not isinstance(raw, str):
            return ""
        if len(raw) > limit:
            self.refuse(*bounds.too_long(part, raw, limit))
            return bounds.cut(raw)
        full = self.count(len(raw))
        if full is None:
            return shared(raw)
        self.refuse(
            f"labels, selectors, tolerations, affinity and annotations of {full.title} have more than "
            f"{full.max_characters:,} characters, and no more are read",
            "use fewer",
        )
        return ""

    def count(self, characters: int) -> BoundedReader | None:
        """Add a number of characters; return the reader whose limit is now exceeded, None if no limit is exceeded."""
        self._left -= characters
        if self._left < 0:
            return self
        return self._within.count(characters) if self._within is not None else None

    def labels(self, part: str, raw: object, *, keep: Collection[str]) -> dict[str, str]:
        """Return the entries of a map that are texts; only keys in `keep` if it has more than MAP_ENTRIES entries."""
        if not isinstance(raw, dict):
            return {}
        if len(raw) > bounds.MAP_ENTRIES:
            self.refuse(*bounds.too_many("entries", len(raw), bounds.MAP_ENTRIES, part))
            raw = {key: raw[key] for key in keep if key in raw}
        return {
            self.text(f"a key of {part}", key): self.text(f"{part} {bounds.cut(key)}", value, limit=bounds.LABEL_VALUE)
            for key, value in raw.items()
            if isinstance(key, str) and isinstance(value, str)
        }

    def annotations(self, raw: object, *, keep: Iterable[str]) -> dict[str, str]:
        """Return the annotations whose keys are in `keep`."""
        texts = ((key, mapping(raw).get(key)) for key in keep)
        return {
            key: self.text(f"annotation {key}", value, limit=bounds.ANNOTATION)
            for key, value in texts
            if isinstance(value, str)
        }

    def entries(self, part: str, raw: object, limit: int) -> list[dict[str, Any]]:
        """Return the objects in a list; empty for other types, or if the list has more than `limit` entries."""
        if not isinstance(raw, list):
            return []
        if len(raw) > limit:
            self.refuse(*bounds.too_many("entries", len(raw), limit, part))
            return []
        return [entry for entry in raw if isinstance(entry, dict)]


def shared(text: str) -> str:
    """Return one object for equal short texts, so that thousands of pods share it. Bounded, unlike sys.intern."""
    return _shared(text) if len(text) <= bounds.LABEL_KEY else text


@functools.lru_cache(maxsize=8192)
def _shared(text: str) -> str:
    return text


class MalformedObject(ValueError):  # noqa: N818 - the name says that the object is malformed
    """A field of an object is missing or invalid. The message contains the mistake and, if known, the object's name."""


def identity(kind: str, metadata: dict[str, Any]) -> tuple[str, str, str]:
    """Return namespace, name and UID of an object. Raises MalformedObject if one of them is missing."""
    namespace, own_name, uid = (name(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not (namespace and own_name and uid):
        raise MalformedObject(
            f"{kind} {namespace or '?'}/{own_name or '?'} with uid {uid or '?'}: namespace, name or uid is missing"
        )
    return namespace, own_name, uid


def deletion_deadline(title: str, metadata: dict[str, Any]) -> datetime | None:
    """Return deletionTimestamp, None if absent. Raises MalformedObject if the value is not a time."""
    raw = metadata.get("deletionTimestamp")
    if raw is None:
        return None
    deadline = parse_timestamp(raw)
    if deadline is None:
        raise MalformedObject(f"{title}: deletionTimestamp {shown(raw)} is not an RFC 3339 time")
    return deadline


def index(digits: str) -> int | None:
    """Return the number in a text of one to nine digits; None for any other text."""
    if digits.isascii() and digits.isdigit() and len(digits) <= _LARGEST_INDEX_DIGITS:
        return int(digits)
    return None


def count(raw: object, *, default: int = 1) -> int:
    """Return a count, such as a number of pods, limited to the API's range; `default` if it is not an integer."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return default
    return min(max(raw, 0), _LARGEST_COUNT)


def priority(spec: Mapping[str, Any]) -> int:
    """Return the priority in the spec of a pod; 0 if the spec has no priority."""
    raw = spec.get("priority")
    return raw if type(raw) is int else 0


def text(raw: object) -> str:
    """Return a text of any length; empty for other types."""
    return raw if isinstance(raw, str) else ""


def name(raw: object) -> str:
    """Return a name, empty for other types. A text that is too long ends with an ellipsis, so it equals no name."""
    return shared(bounds.cut(raw, bounds.OBJECT_NAME)) if isinstance(raw, str) else ""


def base64_text(raw: object) -> str:
    """Return the decoded text of a value of a Secret; empty if the value is not UTF-8 in base64."""
    try:
        return base64.b64decode(text(raw), validate=True).decode()
    except ValueError:
        return ""


def mapping(raw: object) -> dict[str, Any]:
    """Return a JSON object, empty for other types."""
    return raw if isinstance(raw, dict) else {}


def at(raw: object, *path: str) -> dict[str, Any]:
    """Return the JSON object at a path of keys; empty if there is no JSON object at this path."""
    for key in path:
        raw = mapping(raw).get(key)
    return mapping(raw)


def mappings(raw: object) -> Sequence[dict[str, Any]]:
    """Return the objects in a list, empty for other types."""
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else ()


def conditions(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the conditions of a status by type. If a type occurs twice, the first counts."""
    return {text(condition.get("type")): condition for condition in reversed(mappings(status.get("conditions")))}


def sequence(raw: object) -> list[Any]:
    """Return a list, empty for other types."""
    return raw if isinstance(raw, list) else []


def shown(raw: object) -> str:
    """Return a value of any size as a short text for messages."""
    if isinstance(raw, (dict, list)):
        return f"a {type(raw).__name__}"
    if isinstance(raw, int) and raw.bit_length() > _MAX_BITS:
        return "a number of hundreds of digits"
    whole = repr(raw)
    return whole if len(whole) <= 60 else whole[:59] + "…"


_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?0*[0-9]{1,10})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?"
)
_SCALES = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
#: Maximum quantity. The API server accepts larger quantities, such as 10E, which are read as this maximum.
_LARGEST = Decimal(2**63 - 1)

_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_quantity(raw: object) -> Decimal | None:
    """Return the value of a quantity ("1500m", "2Gi", "1e3", 4); None if it is negative or not a quantity."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        return None
    if isinstance(raw, int):
        # An integer is not converted to text, because Python cannot print integers of thousands of digits.
        return min(Decimal(raw), _LARGEST) if raw >= 0 else None
    match = _QUANTITY.fullmatch(str(raw))
    if match is None:
        return None
    digits, exponent, suffix = match.groups()
    # The value is limited before the multiplication, because Decimal cannot multiply numbers above 10^999999.
    value = min(Decimal(digits + (exponent or "")), _LARGEST) * _SCALES[suffix or ""]
    return min(value, _LARGEST) if value >= 0 else None


def parse_timestamp(raw: object) -> datetime | None:
    """Return the time in an RFC 3339 text, in UTC and cut to microseconds; None for any other value."""
    if not isinstance(raw, str) or not _TIMESTAMP.fullmatch(raw):
        return None
    try:
        return datetime.fromisoformat(raw.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def created_at(raw: object) -> datetime | None:
    """Return the creation time of an object; None if it cannot be read."""
    return parse_timestamp(at(raw, "metadata").get("creationTimestamp"))


def format_micro_time(moment: datetime) -> str:
    """Return a time in the API's MicroTime format."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_time(moment: datetime) -> str:
    """Return a time in the API's Time format, which has whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
