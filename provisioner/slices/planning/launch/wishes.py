"""What the owner of a slice asks for beside its shape: annotations of the pod, else of the JobSet, else settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from provisioner import constants
from provisioner.model import bounds, choices
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import Settings, forms, go_bool, go_duration_seconds
from provisioner.slices.demand import Slice

_T = TypeVar("_T")


class UnmeetableError(ValueError):
    """No node pool can serve the slice as it is; the message says why and what to change."""


def capacity_of(slice_: Slice, settings: Settings) -> tuple[CapacityChoice, ...]:
    """Return the choices of capacity, best first; empty where nobody has made any."""
    return _asked(slice_, constants.CAPACITY, choices.parse_choices, ()) or settings.capacity


def selected_zone(slice_: Slice) -> Zone | None:
    """Return the zone that the pod selects, by whichever label; None for none."""
    selector = slice_.requirements.node_selector
    return next((Zone(selector[key]) for key in constants.ZONE_LABELS if selector.get(key)), None)


def zones_of(slice_: Slice, settings: Settings) -> tuple[Zone, ...]:
    """Return the zones to try, best first; a zone that the pod selects is the only one."""
    selected = selected_zone(slice_)
    if selected is not None:
        return (selected,)
    return _asked(slice_, constants.ZONES, choices.parse_zones, ()) or settings.zones or (settings.zone,)


def wants_one_zone(slice_: Slice, settings: Settings) -> bool:
    """Whether all pools of its JobSet are to be in one zone."""
    return _flag(slice_, constants.SAME_ZONE, default=settings.same_zone)


def wants_all_or_nothing(slice_: Slice, settings: Settings) -> bool:
    """Whether the slices of its JobSet are to start together."""
    return _flag(slice_, constants.ALL_OR_NOTHING, default=settings.all_or_nothing)


def max_run_seconds_of(slice_: Slice, settings: Settings) -> int:
    """Return after how long Google may take flex-start nodes away; 0 for its default."""
    selected = slice_.requirements.node_selector.get(constants.MAX_RUN_SECONDS)
    if selected is not None:
        if not (selected.isascii() and selected.isdigit() and len(selected) <= bounds.LABEL_VALUE):
            text = bounds.quoted(selected)
            raise UnmeetableError(f"nodeSelector {constants.MAX_RUN_SECONDS}={text} is no number of seconds")
        seconds = float(selected)
    else:
        seconds = _asked(slice_, constants.MAX_RUN_DURATION, go_duration_seconds, settings.max_run_seconds)
    if seconds and not forms.SHORTEST_RUN_SECONDS <= seconds <= forms.LONGEST_RUN_SECONDS:
        raise UnmeetableError(
            f"a max run duration of {seconds:.0f} s is not from 10 minutes to 7 days; set one that is"
        )
    return int(seconds)


def check(slice_: Slice, settings: Settings) -> None:
    """Raise UnmeetableError where an annotation cannot be read."""
    for key in (constants.SAME_ZONE, constants.ALL_OR_NOTHING):
        _asked(slice_, key, go_bool, default=False)
    max_run_seconds_of(slice_, settings)


def annotation_of(slice_: Slice, key: str) -> str:
    """Return an annotation of the pod, else of the JobSet, else nothing."""
    return slice_.requirements.annotations.get(key) or slice_.workload.annotations.get(key, "")


def _asked(slice_: Slice, key: str, read: Callable[[str], _T], default: _T) -> _T:
    if not (slice_.requirements.annotations or slice_.workload.annotations):
        return default
    text = annotation_of(slice_, key)
    if not text.strip():
        return default
    try:
        return read(text.strip())
    except ValueError as error:
        raise UnmeetableError(f"annotation {key}={bounds.quoted(text)} {error}") from error


def _flag(slice_: Slice, key: str, *, default: bool) -> bool:
    try:
        return _asked(slice_, key, go_bool, default)
    except UnmeetableError:
        # `check` tells of it, before anything is bought.
        return default
