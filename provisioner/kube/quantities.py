"""Read the two notations of the Kubernetes API that JSON has no type for: quantities and timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:([eE][+-]?[0-9]{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?"
)
_SCALES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
#: The API server caps quantities at an int64; above it, a text is no quantity.
_LARGEST = Decimal(2**63 - 1)

_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_quantity(raw: object) -> Decimal | None:
    """Return the value of a quantity ("1500m", "2Gi", "1e3", "4", 4), or None for anything else or below zero."""
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        return None
    text = repr(raw) if isinstance(raw, float) else str(raw) if _printable(raw) else ""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    digits, exponent, suffix = match.groups()
    value = Decimal(digits + (exponent or ""))
    if suffix:
        value *= _SCALES[suffix]
    return value if 0 <= value <= _LARGEST else None


def _printable(raw: str | int) -> bool:
    """Whether a number can be a quantity at all; Python refuses to print integers of thousands of digits."""
    return isinstance(raw, str) or abs(raw) <= _LARGEST


def ceil(value: Decimal) -> int:
    """Return the smallest integer that is not below the value."""
    return int(value.to_integral_value(rounding=ROUND_CEILING))


def parse_timestamp(raw: object) -> datetime | None:
    """Return the moment of an RFC 3339 text in UTC, cut to microseconds; None for anything else."""
    if not isinstance(raw, str):
        return None
    match = _TIMESTAMP.fullmatch(raw)
    if match is None:
        return None
    base, fraction, zone = match.groups()
    micros = (fraction or "0")[:6].ljust(6, "0")
    offset = "+00:00" if zone in "Zz" else zone
    try:
        return datetime.fromisoformat(f"{base.upper()}.{micros}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def format_micro_time(moment: datetime) -> str:
    """Return the API's MicroTime notation."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_time(moment: datetime) -> str:
    """Return the API's Time notation, which has whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
