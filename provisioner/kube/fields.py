"""Read single fields of raw JSON: total, whatever is in them.

A field of a wrong type counts as absent, except where a guess would be dangerous: an identity, or a time of deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from provisioner.kube.bounded import shared
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds

#: What stands for a time of creation that cannot be read.
UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)
_LARGEST_INDEX_DIGITS = 9
#: Counts are int32 in the API.
_LARGEST_COUNT = 2**31 - 1
#: Python refuses to print numbers of thousands of digits.
MOST_BITS = 1024


class MalformedObject(ValueError):  # noqa: N818 - it names what the object is
    """An object that can't be read without guessing; the text names it, the value, and what is wrong."""


def identity(kind: str, metadata: dict[str, Any]) -> tuple[str, str, str]:
    """Read namespace, name and UID; MalformedObject where one of them is missing."""
    namespace, own_name, uid = (name(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not (namespace and own_name and uid):
        raise MalformedObject(
            f"{kind} {namespace or '?'}/{own_name or '?'} with uid {uid or '?'}: namespace, name or uid is missing"
        )
    return namespace, own_name, uid


def deletion_deadline(what: str, metadata: dict[str, Any]) -> datetime | None:
    """Read deletionTimestamp, None where there is none; MalformedObject where it is not a time."""
    raw = metadata.get("deletionTimestamp")
    if raw is None:
        return None
    deadline = parse_timestamp(raw)
    if deadline is None:
        raise MalformedObject(f"{what}: deletionTimestamp {shown(raw)} is not an RFC 3339 time")
    return deadline


def index(digits: str) -> int | None:
    """Read an index of at most nine digits; None where it is not one."""
    if digits.isascii() and digits.isdigit() and len(digits) <= _LARGEST_INDEX_DIGITS:
        return int(digits)
    return None


def count(raw: object, *, default: int) -> int:
    """Read a count; one that is out of the API's range is brought into it."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return default
    return min(max(raw, 0), _LARGEST_COUNT)


def text(raw: object) -> str:
    """Read a text of any length."""
    return raw if isinstance(raw, str) else ""


def name(raw: object) -> str:
    """Read a text that Kubernetes bounds itself; a longer one is cut, so that it is no name of anything."""
    return shared(bounds.cut(raw, bounds.OBJECT_NAME)) if isinstance(raw, str) else ""


def mapping(raw: object) -> dict[str, Any]:
    """Read an object."""
    return raw if isinstance(raw, dict) else {}


def mappings(raw: object) -> Sequence[dict[str, Any]]:
    """Read the objects in a list."""
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else ()


def sequence(raw: object) -> list[Any]:
    """Read a list."""
    return raw if isinstance(raw, list) else []


def shown(raw: object) -> str:
    """Return a value of any size as a message shows it."""
    if isinstance(raw, (dict, list)):
        return f"a {type(raw).__name__}"
    if isinstance(raw, int) and raw.bit_length() > MOST_BITS:
        return "a number of hundreds of digits"
    whole = repr(raw)
    return whole if len(whole) <= 60 else whole[:59] + "…"
