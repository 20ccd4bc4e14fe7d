"""What a chip costs an hour, by accelerator and capacity type, as the administrator writes it.

    tpu-v6e-slice/spot=1.35, tpu-v6e-slice=2.7, */reservation=1.9, *=3, currency=USD

The closest entry counts: accelerator and capacity type, the accelerator alone, any accelerator with the capacity type,
anything. The currency is shown beside amounts; nothing else depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provisioner import tpu
from provisioner.model.capacity import CapacityKind
from provisioner.settings.forms import OTHERS, by_name

#: Of a price: so many millionths of the currency are one.
MILLIONTHS = 1_000_000
ACCELERATOR = re.compile(r"[a-z][-a-z0-9]{0,62}")
PRICE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_CURRENCY = re.compile(r"(?:^|,)\s*currency\s*=\s*([A-Z]{3})\s*(?=,|$)")
_NAME = re.compile(rf"({ACCELERATOR.pattern}|\*)(/.*)?")
_FORM = (
    '"ACCELERATOR=PRICE" or "ACCELERATOR/CAPACITY=PRICE", such as "tpu-v6e-slice/spot=1.35" ("*" is every other '
    "accelerator)"
)
_KINDS = tuple(kind.value for kind in CapacityKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a chip for an hour, in millionths of the currency."""

    #: Accelerator label, capacity type, price; `*` stands for any accelerator, an empty type for any.
    entries: tuple[tuple[str, str, int], ...] = ()
    #: Such as USD; empty where no entry says it.
    currency: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries)

    def per_hour(self, accelerator: str, capacity: CapacityKind, chips: int) -> float | None:
        """Return what chips cost an hour, in the currency; None where no entry names them."""
        by_name = {(name, kind): price for name, kind, price in self.entries}
        closest = ((accelerator, capacity.value), (accelerator, ""), (OTHERS, capacity.value), (OTHERS, ""))
        return next((by_name[key] * chips / MILLIONTHS for key in closest if key in by_name), None)


def cost_in_words(per_hour: float, currency: str) -> str:
    """Return what an hour costs, such as "10.80 USD an hour"."""
    return f"{per_hour:,.2f}{f' {currency}' if currency else ''} an hour"


def check_accelerator(name: str) -> None:
    """Raise ValueError, with the nearest names, where there is no such accelerator."""
    try:
        tpu.find_accelerator(name)
    except tpu.ShapeError as error:
        raise ValueError(f"cannot be used: {error}") from error


def parse_prices(text: str) -> Prices:
    """Read a comma list of prices; raise ValueError with what is wrong."""
    currency = _CURRENCY.search(text)
    found = by_name(_CURRENCY.sub("", text, count=1), _FORM, _NAME, _millionths, _check)
    entries = tuple((*_parts(name), price) for name, price in found)
    return Prices(entries=entries, currency=currency[1] if currency is not None else "")


def _parts(name: str) -> tuple[str, str]:
    accelerator, _, capacity = name.partition("/")
    return accelerator, capacity


def _check(name: str) -> None:
    accelerator, capacity = _parts(name)
    if name == "currency":
        raise ValueError("needs one currency code of three capital letters, such as currency=USD")
    if accelerator != OTHERS:
        check_accelerator(accelerator)
    if "/" in name and capacity not in _KINDS:
        raise ValueError(f"has {name!r}, where {capacity!r} is not a capacity type: {', '.join(_KINDS)}")


def _millionths(text: str) -> int:
    if not PRICE.fullmatch(text):
        raise ValueError("is not a price from 0 to 999999 with at most six decimals, such as 1.35")
    whole, _, decimals = text.partition(".")
    return int(whole) * MILLIONTHS + int(decimals.ljust(6, "0"))
