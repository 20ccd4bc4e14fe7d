"""Reads lists of capacity choices, which administrators write in settings, and users in annotations.

    reservation/r1, on-demand, spot
    reservation/other-project/r2/block-1@us-east5-b, flex-start

The choices are tried in the order of the list. A reservation is NAME, or PROJECT/NAME[/BLOCK[/SUB-BLOCK]] if another
project shares it or if only a block of it is used. `@zone` restricts a choice to one zone.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from provisioner import constants
from provisioner.model import bounds, wording
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, Zone

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
#: Pattern of a zone name, which is the region and one more part, such as "us-east5-b" or "us-central1-ai1a".
ZONE = re.compile(r"[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}-[a-z0-9]{1,10}")
_PATH_START = "projects/"
_MAX_PARTS = 4
_RESERVATION_FORM = "reservation/NAME or reservation/PROJECT/NAME[/BLOCK[/SUB-BLOCK]]"
#: Time before the end of a reservation in which it gets no new pools, and no slice takes another slice's pool in it.
LAST_OF_RESERVATION = timedelta(minutes=45)
NO_QUEUED = (
    "queued capacity is not supported",
    f"use flex-start, or let Kueue request slices by ProvisioningRequests of class {constants.PROVISIONING_CLASS}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChoice:
    """One way to get machines. Its text form is for messages, such as "reservation r1 in us-east5-b"."""

    kind: CapacityKind
    #: Reservation as `reservation_path` returns it; empty for other kinds.
    reservation: str = ""
    #: Zone of the capacity; empty for all allowed zones.
    zone: Zone = Zone("")

    def __str__(self) -> str:
        reservation = "/".join(filter(None, reservation_parts(self.reservation)))
        text = f"{self.kind.value} {reservation}" if reservation else self.kind.value
        return f"{text} in {self.zone}" if self.zone else text


def parse_choices(text: str) -> tuple[CapacityChoice, ...]:
    """Return the choices in a comma-separated list, in its order. Raises ValueError with the mistake."""
    choices: dict[CapacityChoice, None] = {}
    for part in comma_items(text, noun="choices", limit=bounds.CHOICES):
        choice = _choice(part)
        if choice in choices:
            raise wording.ProblemError(f"has {bounds.quoted(part)} twice", "name each choice once, best first")
        choices[choice] = None
    return tuple(choices)


def parse_zones(text: str) -> tuple[Zone, ...]:
    """Return the different zones in a comma-separated list, in its order. Raises ValueError with the mistake."""
    zones = comma_items(text, noun="zones", limit=bounds.ZONES)
    for zone in zones:
        if not ZONE.fullmatch(zone):
            raise ValueError(f"has {bounds.quoted(zone)}, which is not a zone such as us-east5-b")
    return tuple(Zone(zone) for zone in dict.fromkeys(zones))


def reservation_path(name: str, *, project: str = "", block: str = "", sub_block: str = "") -> str:
    """Return the text by which the node pool API names a reservation, a block or a sub-block; `project` is optional."""
    path = f"{_PATH_START}{project}/reservations/{name}" if project else name
    path += f"/reservationBlocks/{block}" if block else ""
    return path + (f"/reservationSubBlocks/{sub_block}" if sub_block else "")


def reservation_parts(path: str) -> tuple[str, str, str, str]:
    """Return project, name, block and sub-block from a result of `reservation_path`; each is empty if absent."""
    parts = path.split("/")
    names = parts[1::2] if path.startswith(_PATH_START) else ["", *parts[::2]]
    project, name, block, sub_block = (*names, "", "", "")[:4]
    return project, name, block, sub_block


def choice_of(pool: NodePool | NodePoolRequest) -> CapacityChoice:
    """Return the choice of capacity that a pool or request uses, with its zone."""
    zone = pool.zone if isinstance(pool, NodePoolRequest) else next(iter(pool.zones), Zone(""))
    return CapacityChoice(kind=pool.capacity, reservation=pool.reservation, zone=zone)


class CapacityKey(NamedTuple):
    """Key of a back-off. A create that failed for lack of capacity or quota delays creates with an equal key."""

    zone: Zone
    machine_type: str
    #: Topology and number of hosts.
    shape: str
    #: Kind of capacity or name of the reservation, followed by `NodePoolRequest.own_inputs` if that is not empty.
    terms: str

    def __str__(self) -> str:
        return "/".join(self)


def capacity_key(pool: NodePool | NodePoolRequest) -> CapacityKey:
    """Return the key of the back-off for a pool or request."""
    choice = choice_of(pool)
    terms = f"reservation {choice.reservation}" if choice.reservation else choice.kind.value
    inputs = f" {pool.own_inputs}" if isinstance(pool, NodePoolRequest) and pool.own_inputs else ""
    return CapacityKey(choice.zone, pool.machine_type, f"{pool.topology} on {pool.hosts}", f"{terms}{inputs}")


def comma_items(text: str, *, noun: str = "", limit: int | None = None) -> tuple[str, ...]:
    """Return the stripped, non-empty items of a comma-separated list. Raises ValueError with `limit` or more commas."""
    if limit is not None and (count := text.count(",") + 1) > limit:
        raise wording.ProblemError(*bounds.too_many(noun, count, limit))
    return tuple(stripped for part in text.split(",") if (stripped := part.strip()))


def _choice(text: str) -> CapacityChoice:
    choice_text, separator, zone = text.partition("@")
    choice_text, zone = choice_text.strip(), zone.strip()
    if separator and not ZONE.fullmatch(zone):
        raise ValueError(f"has {bounds.quoted(text)}, where {bounds.quoted(zone)} is not a zone such as us-east5-b")
    name, slash, reservation_text = choice_text.partition("/")
    kinds = {kind.value: kind for kind in CapacityKind}
    kind = kinds.get(name)
    if kind is CapacityKind.RESERVATION:
        return CapacityChoice(kind=kind, reservation=_reservation(reservation_text, text), zone=Zone(zone))
    if name == "queued":
        raise wording.ProblemError(f"has {bounds.quoted(text)}, and {NO_QUEUED[0]}", NO_QUEUED[1])
    if kind is None or slash:
        valid = ", ".join(value for value in kinds if value != CapacityKind.RESERVATION.value)
        raise ValueError(f"has {bounds.quoted(text)}, which is not one of {valid}, {_RESERVATION_FORM}")
    return CapacityChoice(kind=kind, zone=Zone(zone))


def _reservation(path: str, text: str) -> str:
    parts = path.split("/", _MAX_PARTS)
    # Reject the API's form projects/..., which would otherwise name a reservation of a project called "projects".
    if len(parts) > _MAX_PARTS or not all(parts) or path.startswith(_PATH_START):
        raise ValueError(f"has {bounds.quoted(text)}, which is not of the form {_RESERVATION_FORM}")
    project, names = ("", parts) if len(parts) == 1 else (parts[0], parts[1:])
    if project and not PROJECT.fullmatch(project):
        raise wording.ProblemError(
            f"has {bounds.quoted(text)}, where {bounds.quoted(project)} is not a project id",
            f"the form is {_RESERVATION_FORM}",
        )
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"has {bounds.quoted(text)}, where {bounds.quoted(name)} is not the name of a reservation or block"
            )
    name, block, sub_block = (*names, "", "")[:3]
    return reservation_path(name, project=project, block=block, sub_block=sub_block)
