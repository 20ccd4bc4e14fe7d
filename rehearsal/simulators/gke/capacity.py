"""Reads the kind of capacity of a pool, and checks the fields that request it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from rehearsal.simulators.gke.errors import ApiError
from rehearsal.simulators.http import google
from rehearsal.simulators.machines import Machine

_RESERVATION = re.compile(
    r"(?:projects/[^/]+/reservations/)?[^/]+(?:/reservationBlocks/[^/]+(?:/reservationSubBlocks/[^/]+)?)?"
)
#: Prefix of taints that the cluster autoscaler ignores, because it expects their removal when a node has started.
_IGNORED_TAINT_PREFIX = "startup-taint.cluster-autoscaler.kubernetes.io/"
_TOLERATED_TAINT = "google.com/tpu"
#: Messages for reservations that are used up: recorded messages, and messages that GKE's autoscaler recognizes.
FULL_RESERVATION_TEXTS = (
    google.full_reservation_text("r"),
    "No available resources in specified reservations",
    "[RESERVATION_CAPACITY_EXCEEDED]: the reservation is used up",
    "Reservation does not have enough resources for the request",
    google.NOT_READY_TEXT,
    "Zone does not currently have sufficient capacity for the requested resources.",
)


class Capacity(StrEnum):
    """Kinds of capacity, each of which can be out of stock independently of the others."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    FLEX_START = "flex-start"


def capacity_of(pool: Mapping[str, Any]) -> Capacity:
    """Return the kind of capacity that a pool in canonical JSON requests."""
    config = pool.get("config", {})
    if reservation_of(pool):
        return Capacity.RESERVATION
    if config.get("flexStart"):
        return Capacity.FLEX_START
    return Capacity.SPOT if config.get("spot") else Capacity.ON_DEMAND


def reservation_of(pool: Mapping[str, Any]) -> str:
    """Return the reservation of a pool with its blocks, as it was sent; empty if the pool has no reservation."""
    affinity = pool.get("config", {}).get("reservationAffinity", {})
    named = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION" and affinity.get("values")
    return str(affinity["values"][0]) if named else ""


def reservation_parts(reservation: str) -> tuple[str, str, str, str]:
    """Return project, name, block and sub-block of a reservation; a part that the text lacks is empty."""
    parts = reservation.split("/")
    project = ""
    if len(parts) > 2 and parts[0] == "projects":
        project, parts = parts[1], parts[3:]
    name, block, sub_block = (*parts[::2], "", "")[:3]
    return project, name, block, sub_block


def reservation_names(reservation: str) -> tuple[str, str]:
    """Return the reservation as a pool sends it, and only its name; both are empty without a reservation."""
    return reservation, reservation_parts(reservation)[1]


def full_reservation_text(pool_name: str) -> str:
    """Return the message for a used-up reservation; the name of the pool selects one of the recorded texts."""
    return FULL_RESERVATION_TEXTS[zlib.crc32(pool_name.encode()) % len(FULL_RESERVATION_TEXTS)]


def keeps_autoscaler_off(pool: Mapping[str, Any]) -> bool:
    """Return whether a taint prevents the autoscaler from adding nodes.

    The autoscaler adds nodes only if a waiting pod would fit a node with the pool's taints. The simulator has no pods;
    it assumes that pods tolerate only the taints that GKE makes pods with chips tolerate.
    """
    return any(
        taint.get("effect") != "PREFER_NO_SCHEDULE"
        and taint["key"] != _TOLERATED_TAINT
        and not taint["key"].startswith(_IGNORED_TAINT_PREFIX)
        for taint in pool.get("config", {}).get("taints", [])
    )


def check_capacity(pool: Mapping[str, Any], machine: Machine) -> None:
    """Raise ApiError for kinds of capacity that exclude each other or do not exist for the machine type."""
    config = pool.get("config", {})
    _check_reservation(config)
    reserved = config.get("reservationAffinity", {}).get("consumeReservationType", "UNSPECIFIED")
    if config.get("spot") and reserved not in ("UNSPECIFIED", "NO_RESERVATION"):
        raise _invalid("Spot VMs can't consume reservations.")
    if pool.get("queuedProvisioning", {}).get("enabled"):
        raise ApiError("UNIMPLEMENTED", "Queued provisioning is not implemented by the simulator.")
    if config.get("flexStart"):
        _check_flex_start(pool, machine)
    _check_longest_run(config)


def _invalid(text: str) -> ApiError:
    return ApiError("INVALID_ARGUMENT", text)


def _check_reservation(config: Mapping[str, Any]) -> None:
    affinity = config.get("reservationAffinity", {})
    kind = affinity.get("consumeReservationType", "UNSPECIFIED")
    values = affinity.get("values", [])
    field = 'Invalid value for field "node_pool.config.reservation_affinity"'
    if kind == "SPECIFIC_RESERVATION":
        if affinity.get("key") != google.RESERVATION_KEY:
            raise _invalid(f'{field}: key must be "{google.RESERVATION_KEY}" for SPECIFIC_RESERVATION.')
        if len(values) != 1:
            raise _invalid(f"{field}: exactly one reservation must be given, got {len(values)}.")
        if _RESERVATION.fullmatch(values[0]) is None:
            raise _invalid(f'{field}: "{values[0]}" is not the name of a reservation.')
        if "/" in values[0] and not values[0].startswith("projects/"):
            # This rejection was reported in cluster-toolkit issue 5043; the full path is accepted.
            raise ApiError("NOT_FOUND", f"The resource '{values[0]}' was not found")
    elif values or affinity.get("key"):
        raise _invalid(f"{field}: key and values are for SPECIFIC_RESERVATION only.")


def _check_flex_start(pool: Mapping[str, Any], machine: Machine) -> None:
    """Raise ApiError for fields that the scheduler of flex-start (dynamic workload scheduler) does not accept."""
    config, scaling = pool.get("config", {}), pool.get("autoscaling", {})
    if machine.is_tpu and not machine.flex_start:
        raise _invalid(f"Flex-start is not supported with machine type {machine.name}.")
    if config.get("spot"):
        raise _invalid("Flex-start can't be combined with Spot VMs.")
    if config.get("reservationAffinity", {}).get("consumeReservationType") != "NO_RESERVATION":
        raise _invalid("Flex-start requires reservation affinity NO_RESERVATION.")
    if not scaling.get("enabled"):
        raise _invalid("Flex-start requires cluster autoscaling to be enabled on the node pool.")
    if pool.get("initialNodeCount", 0) or scaling.get("minNodeCount", 0):
        raise _invalid("Flex-start requires an initial and a minimum node count of 0.")
    if scaling.get("locationPolicy") != "ANY":
        raise _invalid("Flex-start requires location policy ANY.")
    if pool.get("upgradeSettings", {}).get("strategy", "SHORT_LIVED") != "SHORT_LIVED":
        raise _invalid("Flex-start supports only the SHORT_LIVED upgrade strategy.")
    if pool.get("management", {}).get("autoRepair"):
        raise _invalid("Flex-start requires node auto-repair to be disabled.")


def _check_longest_run(config: Mapping[str, Any]) -> None:
    if "maxRunDuration" not in config:
        return
    flex = config.get("flexStart")
    low, high = google.run_seconds(flex_start=bool(flex))
    if not low <= float(config["maxRunDuration"][:-1]) <= high:
        raise _invalid(f"Max run duration must be between {low}s and {high}s{' for flex-start' if flex else ''}.")
