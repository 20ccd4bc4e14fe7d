"""Lists the choices of capacity of a slice, each with its zone, best first.

With GCP_FORCE_ON_DEMAND, the kind is always on-demand. Otherwise node selectors of the pod have precedence over
annotations, and annotations over settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, Zone
from provisioner.model.choices import NO_QUEUED, CapacityChoice, reservation_path
from provisioner.settings import Settings, forms
from provisioner.settings.forms import region_of
from provisioner.slices.demand import Slice, allowlists
from provisioner.slices.supplier import ImpossibleError, UnmeetableError

_ON_DEMAND = CapacityChoice(kind=CapacityKind.ON_DEMAND)
_PINS = (
    (constants.SPOT, "true", CapacityKind.SPOT),
    (constants.PROVISIONING, "spot", CapacityKind.SPOT),
    (constants.FLEX_START, "true", CapacityKind.FLEX_START),
    (constants.PROVISIONING, "flex-start", CapacityKind.FLEX_START),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices of capacity that may be tried for one slice."""

    #: Possible choices, best first, each with its zone. At least one.
    open: tuple[CapacityChoice, ...]
    #: Clauses about other listed choices that may not be tried, except for choices in zones that are not selected.
    rejected: tuple[str, ...] = ()


def choices_of(slice_: Slice, settings: Settings) -> Choices:
    """Return the choices of a slice. Raises UnmeetableError if none is possible, or if the request is invalid."""
    if unreadable := next(iter(slice_.preferences.problems.values()), ()):
        raise ImpossibleError(*unreadable)
    if slice_.requirements.node_selector.get(constants.QUEUED) == "true":
        raise UnmeetableError(f"the pod selects {constants.QUEUED}=true, and {NO_QUEUED[0]}", NO_QUEUED[1])
    pinned = None if settings.force_on_demand else _pinned(slice_.requirements.node_selector, settings)
    listed: tuple[CapacityChoice, ...] = (pinned or _ON_DEMAND,)
    if pinned is None and not settings.force_on_demand:
        listed = slice_.preferences.capacity or settings.capacity or listed
    by_pod = pinned is not None or bool(slice_.preferences.capacity)
    problems = {choice: _problem(choice, slice_.shape, settings, by_pod=by_pod) for choice in listed}
    rejected = tuple(clause for problem in problems.values() for clause in problem)
    zoned = tuple(dict.fromkeys(_in_zones([choice for choice in problems if not problems[choice]], slice_, settings)))
    if not zoned:
        selector = slice_.requirements.node_selector
        selected = next((f"{key}={selector[key]}" for key in constants.ZONE_LABELS if selector.get(key)), "no zone")
        elsewhere = f"the pod selects {selected}, and none of {', '.join(map(str, listed))} exists"
        # Node pools of other clients may use a reservation that a setting forbids here, so the slice is not impossible.
        impossible = by_pod and not any(capacity_choice.reservation for capacity_choice in listed)
        raise (ImpossibleError if impossible else UnmeetableError)(*(rejected or (elsewhere,)))
    return Choices(open=zoned, rejected=rejected)


def _pinned(selector: Mapping[str, str], settings: Settings) -> CapacityChoice | None:
    kinds = {kind: f"{key}={value}" for key, value, kind in _PINS if selector.get(key) == value}
    reservation = _reservation(selector, settings)
    if reservation:
        kinds[CapacityKind.RESERVATION] = f"{constants.RESERVATION_NAME}={selector[constants.RESERVATION_NAME]}"
    if len(kinds) > 1:
        raise ImpossibleError(
            f"the pod selects {' and '.join(sorted(kinds.values()))}", "no capacity is both: remove all but one"
        )
    return next((CapacityChoice(kind=kind, reservation=reservation) for kind in kinds), None)


def _reservation(selector: Mapping[str, str], settings: Settings) -> str:
    name, block = selector.get(constants.RESERVATION_NAME, ""), selector.get(constants.RESERVATION_BLOCK, "")
    sub_block = selector.get(constants.RESERVATION_SUB_BLOCK, "")
    if (block and not name) or (sub_block and not block):
        keys = constants.RESERVATION_NAME, constants.RESERVATION_BLOCK, constants.RESERVATION_SUB_BLOCK
        outer, inner = keys[1:] if sub_block else keys[:2]
        raise ImpossibleError(f"the pod selects {inner} without {outer}", "add it")
    # GKE rejects NAME/reservationBlocks/B with 404, and accepts the full path (cluster-toolkit issue 5043).
    project = selector.get(constants.RESERVATION_PROJECT, "") or (settings.project_id if block else "")
    return reservation_path(name, project=project, block=block, sub_block=sub_block) if name else ""


def _problem(choice: CapacityChoice, shape: tpu.Shape | None, settings: Settings, *, by_pod: bool) -> tuple[str, ...]:
    region = region_of(settings.cluster_location)
    if choice.zone and region_of(choice.zone) != region:
        return (f"{choice} is not in {region}, the region of the cluster",)
    if choice.kind is CapacityKind.FLEX_START and shape is not None and not shape.machine_type.flex_start:
        return (f"Google does not offer {shape.machine_type.name} as {choice.kind.value} capacity",)
    if by_pod and choice.reservation:
        return allowlists.reservation_problem(choice.reservation, settings)
    return ()


def _in_zones(listed: Sequence[CapacityChoice], slice_: Slice, settings: Settings) -> Iterator[CapacityChoice]:
    selector = slice_.requirements.node_selector
    selected = next((Zone(selector[key]) for key in constants.ZONE_LABELS if selector.get(key)), None)
    zones = (selected,) if selected is not None else slice_.preferences.zones or settings.zones or (settings.zone,)
    region = region_of(settings.cluster_location)
    count = sum(1 if choice.zone else len(zones) for choice in listed)
    if count > bounds.CHOICES_IN_ZONES:
        raise UnmeetableError(
            f"{constants.CAPACITY} and {constants.ZONES} make {count} pairs of choice and zone, and at most "
            f"{bounds.CHOICES_IN_ZONES} are read",
            "name fewer choices or zones",
        )
    for zone in zones:
        if region_of(zone) != region:
            raise ImpossibleError(f"zone {zone} is not in {region}, the region of the cluster")
    for choice in listed:
        if not choice.zone:
            yield from (replace(choice, zone=zone) for zone in zones)
        elif selected in (None, choice.zone):
            yield choice


def wants_one_zone(slice_: Slice, settings: Settings) -> bool:
    """Whether all pools of the slice's workload must be in one zone."""
    wish = slice_.preferences.same_zone
    return settings.same_zone if wish is None else wish


def wants_all_or_nothing(slice_: Slice, settings: Settings) -> bool:
    """Whether all slices of the slice's workload should start together."""
    wish = slice_.preferences.all_or_nothing
    return settings.all_or_nothing if wish is None else wish


def max_run_seconds_of(slice_: Slice, settings: Settings) -> int:
    """Return the lifetime of flex-start nodes in seconds, 0 for Google's default. Raises UnmeetableError if invalid."""
    selected = slice_.requirements.node_selector.get(constants.MAX_RUN_SECONDS)
    if selected is not None:
        if not (selected.isascii() and selected.isdigit() and len(selected) <= bounds.LABEL_VALUE):
            text = bounds.quoted(selected)
            raise ImpossibleError(f"nodeSelector {constants.MAX_RUN_SECONDS}={text} is not a number of seconds")
        seconds = float(selected)
    else:
        wish = slice_.preferences.max_run_seconds
        seconds = settings.max_run_seconds if wish is None else wish
    if seconds and not forms.SHORTEST_RUN_SECONDS <= seconds <= forms.LONGEST_RUN_SECONDS:
        # Node pools that other clients of GKE created may allow this duration, so the slice is not impossible.
        raise UnmeetableError(
            f"a max run duration of {seconds:.0f} s is not from 10 minutes to 7 days", "set one within these limits"
        )
    return int(seconds)
