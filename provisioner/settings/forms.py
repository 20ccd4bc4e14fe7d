"""Readers of options: functions that return the value of a text, or raise ValueError with the mistake."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from provisioner import tpu
from provisioner.model import bounds, wording
from provisioner.model.capacity import CapacityKind, Network
from provisioner.model.choices import PROJECT, comma_items
from provisioner.tpu.catalogue import GENERATION_LABEL

_T = TypeVar("_T")
LOCATION = re.compile(r"[a-z]+-[a-z]+[0-9]+(-[a-z0-9]+)?")
CLUSTER = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+|default")
SERVICE_ACCOUNT = re.compile(r"[a-z0-9][-a-z0-9]{0,62}@([a-z0-9][-a-z0-9]{0,62}\.){1,8}gserviceaccount\.com|default")
_RESOURCE = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
#: Name of a Compute Engine resource of most kinds, or a network tag.
RESOURCE_NAME = re.compile(_RESOURCE)
_NETWORK = re.compile(rf"(projects/{PROJECT.pattern}/global/networks/)?{_RESOURCE}")
_SUBNETWORK = re.compile(rf"(projects/{PROJECT.pattern}/regions/[-a-z0-9]{{1,40}}/subnetworks/)?{_RESOURCE}")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/@]{0,510}")
HTTP_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[-A-Za-z0-9.]{1,253})(:[0-9]{1,5})?")
#: Pattern of a host name, an IPv4 address, or an IPv6 address in brackets; a part of longer patterns.
HOST = r"(?:[A-Za-z0-9](?:[-.A-Za-z0-9]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])"
#: Name of an extended resource, such as rdma/hca.
RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
NAME_OR_PREFIX = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_./:@]*\*?|\*")
_GO_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Minimum of maxRunDuration, and its maximum for flex-start nodes, as in GKE's autoscaler.
SHORTEST_RUN_SECONDS = 600
LONGEST_RUN_SECONDS = 7 * 24 * 3600
#: Name that means all other names in a list such as "team-a=512, *=16".
OTHERS = "*"
#: Text that makes some options empty. An empty text means the option's default.
NONE = "none"
SCOPE_PREFIX = "https://www.googleapis.com/auth/"
SCOPE = re.compile(re.escape(SCOPE_PREFIX) + r"[a-z][a-z0-9._-]{0,100}")
#: Maximum value of limits, such as of chips or pools; no cluster has this many chips.
MOST = 10_000_000
HIGHEST_PORT = 65535
#: Maximum duration in Go: 2^63 nanoseconds, 292 years.
_MAX_SECONDS = 2**63 * 1e-9


class SecretValueError(ValueError):
    """The value is invalid, and must not be shown because it may contain a password."""


def go_duration_seconds(text: str) -> float:
    """Return the seconds of a duration in Go's form, such as "10s", "1m30s" or "0". Negative durations are invalid."""
    if text in ("0", "+0"):
        return 0.0
    body = text.removeprefix("+")
    parts = _GO_DURATION.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise wording.ProblemError("is not a duration", 'use the format of Go: "30s", "1m30s", "2h"')
    seconds = float(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    if seconds >= _MAX_SECONDS:
        raise ValueError("is longer than any duration in Go, 292 years")
    return seconds


def duration_from(least_seconds: int, reason: str, max_seconds: float = inf) -> Callable[[str], float]:
    """Return a reader of durations with bounds. `reason` is the error message for a duration outside the bounds."""

    def read(text: str) -> float:
        seconds = go_duration_seconds(text)
        if not least_seconds <= seconds <= max_seconds:
            raise ValueError(reason)
        return seconds

    return read


def go_bool(text: str) -> bool:
    """Read a Boolean as Go's strconv.ParseBool does."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError("is neither true nor false")


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read "vpc1:subnet1, vpc2:subnet2". Raises ValueError with the mistake."""
    networks = []
    for part in comma_items(text, noun="networks", limit=bounds.NETWORKS):
        network, separator, subnetwork = (piece.strip() for piece in part.partition(":"))
        if not separator or not network or not subnetwork:
            raise ValueError(f'has {bounds.quoted(part)}, which is not of the form "vpc:subnet"')
        for noun, pattern, name in (("network", _NETWORK, network), ("subnetwork", _SUBNETWORK, subnetwork)):
            if not pattern.fullmatch(name):
                raise ValueError(f"has {bounds.quoted(part)}, where {bounds.quoted(name)} is not the name of a {noun}")
        networks.append(Network(network=network, subnetwork=subnetwork))
    return tuple(networks)


def matching(pattern: re.Pattern[str], meaning: str) -> Callable[[str], str]:
    """Return a reader of texts that match a pattern."""

    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"is not {meaning}")
        return text

    return read


def list_of(pattern: re.Pattern[str], meaning: str, max_items: int | None = None) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of at most `max_items` comma-separated texts that match a pattern."""

    def read(text: str) -> tuple[str, ...]:
        items = comma_items(text, noun="entries", limit=max_items)
        for item in items:
            if not pattern.fullmatch(item):
                raise ValueError(f"has {bounds.quoted(item)}, which is not {meaning}")
        return items

    return read


def nearest(name: str, names: Iterable[str], cutoff: float = 0.0) -> str:
    """Return the one of `names` most similar to `name`; empty if no similarity (0 to 1) is at least `cutoff`."""
    import difflib  # noqa: PLC0415 - many commands do not need it

    return next(iter(difflib.get_close_matches(name[: bounds.LABEL_KEY], names, n=1, cutoff=cutoff)), "")


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a reader of integers from `minimum` to `maximum`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not minimum <= int(text) <= maximum:
            raise ValueError(f"is not a whole number from {minimum} to {maximum}")
        return int(text)

    return read


def power_of_two(maximum: int) -> Callable[[str], int]:
    """Return a reader of powers of two from 1 to `maximum`."""

    def read(text: str) -> int:
        number = whole_number(1, maximum)(text)
        if number & (number - 1):
            raise ValueError("is not a power of two")
        return number

    return read


def number_up_to(maximum: int) -> Callable[[str], int]:
    """Return a reader of integers from 1. A number above `maximum` is read as `maximum`."""

    def read(text: str) -> int:
        return maximum if is_more_than(text, maximum) else whole_number(1, maximum)(text)

    return read


def is_more_than(text: str, maximum: int) -> bool:
    """Whether a text is an integer greater than `maximum`, with any number of digits."""
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    return len(digits) > len(str(maximum)) or (bool(digits) and int(digits) > maximum)


def choice(*values: str) -> Callable[[str], str]:
    """Return a reader that accepts one of `values` in any case, and returns it in lower case."""

    def read(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"is not one of {', '.join(values)}")
        return text.lower()

    return read


#: Providers of capacity: GKE's node pools, or TPUNodeGroups in clusters on Compute Engine without GKE.
GKE, GCE = "gke", "gce"
SUBNETWORK = re.compile(r"[A-Za-z0-9:/._~-]{1,500}")
provider = choice(GKE, GCE)


_ENDPOINT = re.compile(
    r"(?P<scheme>https?)://(\[(?P<v6>[0-9a-f:.]+)\]|(?P<host>[a-z0-9]([-a-z0-9.]*[a-z0-9])?))(:(?P<port>[0-9]{1,5}))?/?",
    re.IGNORECASE,
)


def endpoint(text: str) -> str:
    """Read scheme, host and optional port. Raises SecretValueError, or ValueError for http to another machine."""
    if not text:
        return ""
    match = _ENDPOINT.fullmatch(text)
    if match is None or int(match["port"] or 0) > HIGHEST_PORT:
        raise SecretValueError(
            "is not an address of only scheme, host and port, such as http://127.0.0.1:8085 (the value is not shown, "
            "because it may contain a password); remove user information, path, query and fragment"
        )
    if match["scheme"].lower() == "http" and not is_loopback(match["v6"] or match["host"]):
        raise ValueError(
            "sends everything over the network in clear text; use https, or http to an address of this machine such as "
            "http://127.0.0.1:8085"
        )
    return text.rstrip("/")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can only be this machine."""
    if host.lower() == "localhost":
        return True
    import ipaddress  # noqa: PLC0415 - many commands do not need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def label(text: str) -> tuple[str, str] | None:
    """Read a label as key and value; None if empty."""
    if not text:
        return None
    key, separator, value = text.partition("=")
    if not separator or not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
        raise ValueError('is not a label of the form "key=value"')
    return key, value


def auto_upgrade(text: str) -> bool | None:
    """Read on, off, or a Boolean of Go. Return None for auto."""
    if text == "auto":
        return None
    if text in ("on", "off"):
        return text == "on"
    try:
        # YAML reads unquoted on and off as Booleans, so a manifest may contain true or false.
        return go_bool(text)
    except ValueError:
        raise ValueError("is not one of auto, on, off") from None


def placement(text: str) -> bool:
    """Read "none" or "compact"; return whether single-host pools get a placement policy."""
    return choice("none", "compact")(text) == "compact"


def region_of(location: str) -> str:
    """Return the region of a zone or region: "us-central1-ai1a" -> "us-central1"."""
    return "-".join(location.split("-")[:2])


def by_name(
    text: str,
    form: str,
    pattern: re.Pattern[str],
    value: Callable[[str], _T],
    check: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[str, _T], ...]:
    """Read "a=1, b=2, *=3" as values by name. `form` describes an item in errors; `check` raises for unknown names."""
    values: dict[str, _T] = {}
    for item in comma_items(text):
        name, separator, written = (piece.strip() for piece in item.partition("="))
        if not separator or not (name == OTHERS or pattern.fullmatch(name)):
            raise ValueError(f"has {item!r}, which is not {form}")
        if name in values:
            raise ValueError(f"names {name!r} twice")
        if name != OTHERS:
            check(name)
        try:
            values[name] = value(written)
        except ValueError as error:
            raise ValueError(f"has {item!r}, where {written!r} {error}") from error
    return tuple(values.items())


def amounts(
    pattern: re.Pattern[str], meaning: str, check: Callable[[str], None] = lambda _: None
) -> Callable[[str], tuple[tuple[str, int], ...]]:
    """Return a reader of integers by name, such as "team-a=512, *=16"."""
    form = f'{meaning} (or "*" for all others), "=" and a number'
    return lambda text: by_name(text, form, pattern, whole_number(0, MOST), check)


def allowed(pattern: re.Pattern[str], meaning: str) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of comma-separated allowed items; "none" allows nothing."""
    return lambda text: () if text == NONE else list_of(pattern, meaning)(text)


MILLIONTHS = 1_000_000
ACCELERATOR = re.compile(r"[a-z][-a-z0-9]{0,62}")
PRICE = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_CURRENCY = re.compile(r"(?:^|,)\s*currency\s*=\s*([A-Z]{3})\s*(?=,|$)")
_NAME = re.compile(rf"({ACCELERATOR.pattern}|\*)(/.*)?")
_FORM = (
    '"ACCELERATOR=PRICE" or "ACCELERATOR/CAPACITY=PRICE", such as "tpu-v6e-slice/spot=1.35" ("*" is every other '
    "accelerator)"
)
_CAPACITY_TYPES = tuple(kind.value for kind in CapacityKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a chip per hour, in millionths of one currency.

    In "tpu-v6e-slice/spot=1.35, tpu-v6e-slice=2.7, */reservation=1.9, *=3, currency=USD" the most specific entry
    counts, in this order: accelerator and capacity type, only the accelerator, only the capacity type, neither.
    """

    #: Accelerator label, capacity type and price. `*` means any accelerator, an empty capacity type means any type.
    entries: tuple[tuple[str, str, int], ...] = ()
    currency: str = ""

    def __bool__(self) -> bool:
        return bool(self.entries)

    def per_hour(self, accelerator: str, capacity: CapacityKind, chips: int) -> float | None:
        """Return the price of `chips` chips for one hour, in units of the currency; None if no entry matches."""
        by_name = {(name, kind): price for name, kind, price in self.entries}
        closest = ((accelerator, capacity.value), (accelerator, ""), (OTHERS, capacity.value), (OTHERS, ""))
        return next((by_name[key] * chips / MILLIONTHS for key in closest if key in by_name), None)


def cost_in_words(per_hour: float, currency: str) -> str:
    """Return a price per hour as text, such as "10.80 USD an hour"."""
    return f"{per_hour:,.2f}{f' {currency}' if currency else ''} an hour"


def check_accelerator(name: str) -> None:
    """Raise ValueError, with the valid names, if no accelerator can have this name."""
    if GENERATION_LABEL.fullmatch(name):
        # MachineConfigs of the cluster may list newer generations than the catalogue.
        return
    try:
        tpu.find_accelerator(name)
    except tpu.ShapeError as error:
        raise ValueError(f"cannot be used: {error}") from error


def parse_prices(text: str) -> Prices:
    """Read a comma-separated list of prices. Raises ValueError with the mistake."""
    currency = _CURRENCY.search(text)
    prices = by_name(_CURRENCY.sub("", text, count=1), _FORM, _NAME, _millionths, _check)
    entries = tuple((*_parts(name), price) for name, price in prices)
    return Prices(entries=entries, currency=currency[1] if currency is not None else "")


def _parts(name: str) -> tuple[str, str]:
    accelerator, _, capacity = name.partition("/")
    return accelerator, capacity


def _check(name: str) -> None:
    accelerator, capacity = _parts(name)
    if name == "currency":
        raise ValueError("has currency twice, or not as three capital letters, such as currency=USD")
    if accelerator != OTHERS:
        check_accelerator(accelerator)
    if "/" in name and capacity not in _CAPACITY_TYPES:
        raise ValueError(f"has {name!r}, where {capacity!r} is not a capacity type: {', '.join(_CAPACITY_TYPES)}")


def _millionths(text: str) -> int:
    if not PRICE.fullmatch(text):
        raise ValueError("is not a price from 0 to 999999 with at most six decimals, such as 1.35")
    whole, _, decimals = text.partition(".")
    return int(whole) * MILLIONTHS + int(decimals.ljust(6, "0"))
