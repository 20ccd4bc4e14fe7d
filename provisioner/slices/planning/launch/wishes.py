"""What a slice gets of what its annotations ask for: where they ask for nothing, what the settings say."""

from __future__ import annotations

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.settings import Settings, forms
from provisioner.slices.demand import Slice
from provisioner.slices.supplier import ImpossibleError, UnmeetableError


def capacity_of(slice_: Slice, settings: Settings) -> tuple[CapacityChoice, ...]:
    """Return the choices of capacity, best first; empty where nobody has made any."""
    _refuse_unreadable(slice_, constants.CAPACITY)
    return slice_.wishes.capacity or settings.capacity


def selected_zone(slice_: Slice) -> Zone | None:
    """Return the zone that the pod selects, by whichever label; None for none."""
    selector = slice_.requirements.node_selector
    for key in constants.ZONE_LABELS:
        if selector.get(key):
            return Zone(selector[key])
    return None


def zones_of(slice_: Slice, settings: Settings) -> tuple[Zone, ...]:
    """Return the zones to try, best first; a zone that the pod selects is the only one."""
    selected = selected_zone(slice_)
    if selected is not None:
        return (selected,)
    _refuse_unreadable(slice_, constants.ZONES)
    return slice_.wishes.zones or settings.zones or (settings.zone,)


def wants_one_zone(slice_: Slice, settings: Settings) -> bool:
    """Whether all pools of its workload are to be in one zone."""
    wish = slice_.wishes.same_zone
    return settings.same_zone if wish is None else wish


def wants_all_or_nothing(slice_: Slice, settings: Settings) -> bool:
    """Whether the slices of its workload are to start together."""
    wish = slice_.wishes.all_or_nothing
    return settings.all_or_nothing if wish is None else wish


def max_run_seconds_of(slice_: Slice, settings: Settings) -> int:
    """Return after how long Google may take flex-start nodes away; 0 for its default."""
    selected = slice_.requirements.node_selector.get(constants.MAX_RUN_SECONDS)
    if selected is not None:
        if not (selected.isascii() and selected.isdigit() and len(selected) <= bounds.LABEL_VALUE):
            text = bounds.quoted(selected)
            raise ImpossibleError(f"nodeSelector {constants.MAX_RUN_SECONDS}={text} is not a number of seconds")
        seconds = float(selected)
    else:
        _refuse_unreadable(slice_, constants.MAX_RUN_DURATION)
        wish = slice_.wishes.max_run_seconds
        seconds = settings.max_run_seconds if wish is None else wish
    if seconds and not forms.SHORTEST_RUN_SECONDS <= seconds <= forms.LONGEST_RUN_SECONDS:
        # Of other nodes than ours it may be longer.
        raise UnmeetableError(
            f"a max run duration of {seconds:.0f} s is not from 10 minutes to 7 days; set one within these limits"
        )
    return int(seconds)


def check(slice_: Slice, settings: Settings) -> None:
    """Raise UnmeetableError where an annotation cannot be read."""
    _refuse_unreadable(slice_, constants.SAME_ZONE)
    _refuse_unreadable(slice_, constants.ALL_OR_NOTHING)
    max_run_seconds_of(slice_, settings)


def _refuse_unreadable(slice_: Slice, key: str) -> None:
    problem = slice_.wishes.problem_of(key) if slice_.wishes.problems else ""
    if problem:
        raise ImpossibleError(problem)
