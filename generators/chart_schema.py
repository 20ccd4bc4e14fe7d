"""Generates JSON schemas of the chart's `settings` from the forms of the options.

The controller accepts all values that the schema accepts, with three exceptions: repeated names in a list,
combinations of settings, and values of which the schema checks only that they are text. The schema is stricter in rare
forms: a duration has each unit once, words are in lower case, and values that would be clamped are rejected. The
patterns are valid in every dialect: no look-around, no named groups, no repetition above 1,000.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.model import bounds, choices
from provisioner.model.capacity import CapacityKind
from provisioner.settings import Option, forms, node_fields, node_forms, nodegroups, options
from provisioner.tpu.catalogue import ACCELERATORS, GENERATION_LABEL

Property = dict[str, Any]
_TEXT_OR_NUMBER = ["string", "integer"]
_TRUTH = ("true", "false", "1", "0", "t", "f", "T", "F", "TRUE", "FALSE", "True", "False")


def property_of(option: Option) -> Property:
    """Return the schema of an option's value. Raises LookupError if this module does not know the option's form."""
    made: Property = {"description": option.description}
    if option.default:
        made["default"] = option.default
    return made | (_EXCEPTIONS.get(option.variable) or _form(option))


def _form(option: Option) -> Property:
    known = _FORMS.get(option.read)
    if known is not None:
        return known
    # The reader was created by a function of settings/forms.py, with a pattern, bounds or choices as arguments.
    maker = option.read.__qualname__.partition(".")[0]
    made_with = inspect.getclosurevars(option.read).nonlocals if inspect.isfunction(option.read) else {}
    match maker:
        case forms.whole_number.__name__:
            minimum, maximum = made_with["minimum"], made_with["maximum"]
            return {
                "type": _TEXT_OR_NUMBER,
                "pattern": f"^{whole(minimum, maximum)}?$",
                "minimum": minimum,
                "maximum": maximum,
            }
        case forms.number_up_to.__name__:
            # The schema rejects larger numbers, which the controller replaces by the maximum with a warning.
            maximum = made_with["maximum"]
            return {"type": _TEXT_OR_NUMBER, "pattern": f"^{whole(1, maximum)}?$", "minimum": 1, "maximum": maximum}
        case forms.power_of_two.__name__:
            numbers = [1 << power for power in range(made_with["maximum"].bit_length())]
            text = {"type": "string", "pattern": f"^(?:{'|'.join(map(str, numbers))})?$"}
            return {"anyOf": [text, {"enum": numbers}]}
        case forms.duration_from.__name__ if made_with["least_seconds"] % 60 == 0:
            return _text(_minutes(made_with["least_seconds"] // 60))
        case forms.duration_from.__name__ if made_with["least_seconds"] < 60:
            return _text(rf"{_minutes(1)}|{whole(made_with['least_seconds'], 999_999_999)}{_FRACTION}s")
        case forms.choice.__name__:
            return {"enum": [*made_with["values"], ""]}
        case forms.matching.__name__:
            return _text(f"{_item(made_with)}?")
        case forms.list_of.__name__ | forms.allowed.__name__:
            listed = _text(_list(_item(made_with)))
            return listed if made_with.get("max_items") is None else _at_most(made_with["max_items"], listed)
        case node_forms.named.__name__:
            return _ANY
        case forms.amounts.__name__:
            # Labels of accelerators are matched by _ACCELERATOR, because their check accepts more than the pattern.
            name = _ACCELERATOR if made_with["check"] is forms.check_accelerator else _item(made_with)
            return _text(_list(rf"(?:{name}|\*)\s*=\s*{whole(0, forms.MOST)}"))
    raise LookupError(
        f"{option.variable} is read by {option.read.__qualname__}, whose form generators/chart_schema.py lacks"
    )


def _item(made_with: Mapping[str, Any]) -> str:
    pattern: re.Pattern[str] = made_with["pattern"]
    return f"(?:{pattern.pattern})"


def _list(item: str) -> str:
    return rf"[\s,]*(?:{item}(?:\s*,[\s,]*{item})*[\s,]*)?"


def _text(body: str) -> Property:
    return {"type": "string", "pattern": f"^(?:{body})$"}


def _at_most(count: int, property_: Property) -> Property:
    """Limit the number of items of a list with commas. Empty items count, as in the controller."""
    return property_ | {"allOf": [{"pattern": f"^[^,]*(?:,[^,]*){{0,{count - 1}}}$"}]}


def whole(least: int, most: int) -> str:
    """Return a pattern of the whole numbers from `least` to `most`, without leading zeros."""
    parts = []
    start = least
    while start <= most:
        # Number of digits at the end that may have any value: from 120 to 199, one digit (1[2-9][0-9]).
        zeros = 0
        while start % 10 ** (zeros + 1) == 0 and start > 0 and start + 10 ** (zeros + 1) - 1 <= most:
            zeros += 1
        unit = 10**zeros
        last = min(9 - start // unit % 10, (most - start + 1) // unit - 1)
        head, digit = divmod(start // unit, 10)
        digits = f"[{digit}-{digit + last}]" if last else str(digit)
        parts.append(f"{head or ''}{digits}{f'[0-9]{{{zeros}}}' if zeros else ''}")
        start += (last + 1) * unit
    return f"(?:{'|'.join(parts)})"


#: Patterns of durations with each unit at most once, largest unit first, and below Go's maximum of 292 years.
_FRACTION = r"(?:\.[0-9]{0,9})?"
_DURATION = (
    r"(?:0|"
    rf"(?:[0-9]{{1,6}}{_FRACTION}h)(?:[0-9]{{1,7}}{_FRACTION}m)?(?:[0-9]{{1,9}}{_FRACTION}s)?(?:[0-9]{{1,9}}ms)?|"
    rf"(?:[0-9]{{1,7}}{_FRACTION}m)(?:[0-9]{{1,9}}{_FRACTION}s)?(?:[0-9]{{1,9}}ms)?|"
    rf"(?:[0-9]{{1,9}}{_FRACTION}s)(?:[0-9]{{1,9}}ms)?|(?:[0-9]{{1,9}}ms))?"
)
_RUN = (
    rf"(?:0s?|{whole(forms.SHORTEST_RUN_SECONDS, forms.LONGEST_RUN_SECONDS)}s"
    rf"|{whole(forms.SHORTEST_RUN_SECONDS // 60, forms.LONGEST_RUN_SECONDS // 60)}m"
    rf"|{whole(1, forms.LONGEST_RUN_SECONDS // 3600)}h"
    rf"|{whole(1, forms.LONGEST_RUN_SECONDS // 3600 - 1)}h{whole(0, 59)}m)?"
)


def _minutes(least: int) -> str:
    """Return a pattern of durations of at least `least` minutes."""
    seconds = rf"(?:[0-9]{{1,9}}{_FRACTION}s)?"
    hours = rf"[1-9][0-9]{{0,5}}{_FRACTION}h(?:[0-9]{{1,7}}{_FRACTION}m)?{seconds}"
    return rf"(?:{hours}|{whole(least, 999_999)}{_FRACTION}m{seconds})?"


def _duration(pattern: str) -> Property:
    # The only valid number is 0, because every other duration needs a unit.
    return {"anyOf": [{"type": "string", "pattern": f"^{pattern}$"}, {"const": 0}]}


_NAME = choices._NAME.pattern  # noqa: SLF001 - the schema uses the controller's patterns
_ZONE = choices.ZONE.pattern
#: Pattern of a reservation. It also matches the path in Google's API, as if "projects" were the project.
_RESERVATION = rf"reservation/(?:{_NAME}|(?:{choices.PROJECT.pattern})/{_NAME}(?:/{_NAME}){{0,2}})"
_KINDS = "on-demand|spot|flex-start"
_CHOICE = rf"(?:{_KINDS}|{_RESERVATION})(?:\s*@\s*{_ZONE})?"
#: Project of a network, which cannot be domain-scoped (example.com:project), because a colon ends the network.
_OWN_PROJECT = choices.PROJECT.pattern.removeprefix("([a-z0-9.-]+:)?")
_VPC = forms._NETWORK.pattern.replace(choices.PROJECT.pattern, _OWN_PROJECT)  # noqa: SLF001 - as above
_NETWORK = rf"{_VPC}\s*:\s*{forms._SUBNETWORK.pattern}"  # noqa: SLF001 - as above
_PORT = rf"(?::{whole(1, forms.HIGHEST_PORT)})?"
_HOST = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*"
_API_SERVER = f"{nodegroups._HOST}{_PORT}"  # noqa: SLF001 - as above
_ACCELERATOR = "|".join((*ACCELERATORS, GENERATION_LABEL.pattern))
_PRICE = (
    rf"(?:(?:{_ACCELERATOR}|\*)(?:/(?:{'|'.join(kind.value for kind in CapacityKind)}))?"
    rf"\s*=\s*{forms.PRICE.pattern}|currency\s*=\s*[A-Z]{{3}})"
)
#: Schema of any text. The controller checks the text at its start, and suggests the nearest valid name.
_ANY: Property = {"type": "string"}
_FORMS: Mapping[Callable[[str], Any], Property] = {
    # A plain text has no pattern, because only Google knows the valid names.
    str: _ANY,
    **dict.fromkeys((node_forms.ADMIN_LABELS, node_forms.ADMIN_TAINTS), _ANY),
    **dict.fromkeys((node_forms.resource_labels, node_fields.allowed_settings), _ANY),
    forms.go_bool: {"enum": [True, False, *_TRUTH, ""]},
    forms.go_duration_seconds: _duration(_DURATION),
    forms.parse_networks: _at_most(bounds.NETWORKS, _text(_list(_NETWORK))),
    forms.provider: {"enum": [forms.GKE, forms.GCE, ""]},
    # Booleans are included, because YAML reads on and off without quotes as booleans.
    forms.auto_upgrade: {"enum": ["auto", "on", "off", True, False, *_TRUTH, ""]},
    forms.placement: {"enum": ["none", "compact", ""]},
    nodegroups._address: _text(f"(?:{_API_SERVER})?"),  # noqa: SLF001 - as above
    nodegroups._image: _text(f"(?:{nodegroups._IMAGE.pattern})?"),  # noqa: SLF001 - as above
    forms.endpoint: _text(rf"(?:http://(?:localhost|127\.0\.0\.1){_PORT}|https://{_HOST}{_PORT})?"),
    forms.label: _text(rf"(?:(?:{forms.LABEL_KEY.pattern})={forms.LABEL_VALUE.pattern})?"),
    choices.parse_zones: _at_most(bounds.ZONES, _text(_list(_ZONE))),
    forms.parse_prices: _text(_list(_PRICE)),
    options.parse_images: _text(_list(rf"(?:{_ACCELERATOR}|\*)\s*=\s*{options.IMAGE.pattern}")),
    choices.parse_choices: _at_most(bounds.CHOICES, _text(_list(_CHOICE))),
}
#: Schemas of options that the controller checks in addition to their form.
_EXCEPTIONS: Mapping[str, Property] = {
    "MAX_RUN_DURATION": _duration(_RUN),
    "GCP_NODE_MAX_RUN_DURATION": _text(rf"(?:{whole(10, 172_800)}m|{whole(1, 2880)}h)?"),
    # The pattern of the form is not used, because it depends on Unicode white space, which dialects define differently.
    "GCP_NODE_SERVICE_ACCOUNT": _text(f"(?:{forms.SERVICE_ACCOUNT.pattern})?"),
}
