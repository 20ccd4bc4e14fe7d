"""What users wrote, taken out of GKE's words before these are read. Pure.

GKE repeats names in its errors: a JobSet called `quota-exceeded`, a policy called `rate-limit-exceeded` or a label
with such a value would otherwise decide what the error means. Only the reading is of the shortened text; people see the
whole one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from provisioner.model.capacity import NodePoolRequest

#: Stands where something was taken out, so that the words around it stay apart.
_GAP = "…"
#: Nothing that GKE's words are known by is shorter.
_SHORTEST_VALUE = 4
#: Longer texts are read so far.
_LONGEST_TEXT = 10_000
#: Instances and groups of GKE have the names of cluster and pool in theirs, cut; and other users' pools are named too.
_GENERATED_NAME = re.compile(r"(?<![\w-])(gke-[a-z0-9-]+|[a-z0-9][a-z0-9-]{0,60}-[0-9a-f]{10})(?![\w-])")
#: Parts of a resource's path that are Google's own words.
_COLLECTIONS = frozenset(
    {
        "projects", "global", "regions", "zones", "locations", "networks", "subnetworks", "reservations",
        "reservationBlocks", "reservationSubBlocks", "keyRings", "cryptoKeys", "images", "disks", "resourcePolicies",
    }
)  # fmt: skip


def without(text: str, values: Iterable[str]) -> str:
    """Return a text without the values, wherever they stand as a name of their own.

    A plain word goes only where it is quoted or part of a path: it could be GKE's own as well.
    """
    text = text[:_LONGEST_TEXT]
    words: set[str] = set()
    others: set[str] = set()
    for value in values:
        for part in _parts(value):
            if len(part) >= _SHORTEST_VALUE:
                (words if part.isalpha() else others).add(part)
    patterns = []
    if others:
        patterns.append(rf"(?<![\w-])(?:{_alternatives(others)})(?![\w-])")
    if words:
        patterns.append(rf"(?<=['\"`/=:])(?:{_alternatives(words)})(?![\w-])")
    for pattern in patterns:
        text = re.sub(pattern, _GAP, text)
    return _GENERATED_NAME.sub(_GAP, text)


def of_request(request: NodePoolRequest) -> tuple[str, ...]:
    """Return all that a create says in words that may be a user's."""
    return (
        request.name,
        request.zone,
        request.machine_type,
        request.policy_name,
        request.reservation,
        request.disk_type,
        request.service_account,
        request.secondary_boot_disk,
        request.boot_disk_kms_key,
        *request.tags,
        *request.labels,
        *request.labels.values(),
        *(part for taint in request.taints for part in (taint.key, taint.value)),
        *(part for one in request.additional_networks for part in (one.network, one.subnetwork)),
    )


def of_pool(message: Any) -> tuple[str, ...]:
    """Return the same of a node pool's raw protocol buffer."""
    config = message.config
    return (
        message.name,
        *message.locations,
        message.placement_policy.policy_name,
        config.machine_type,
        config.service_account,
        *config.reservation_affinity.values,
        *config.labels,
        *config.labels.values(),
        *(part for taint in config.taints for part in (taint.key, taint.value)),
        *(
            part
            for one in message.network_config.additional_node_network_configs
            for part in (one.network, one.subnetwork)
        ),
    )


def names(text: str, name: str) -> bool:
    """Whether a text has a name as a name of its own, not as a part of another word."""
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def _parts(value: str) -> Iterator[str]:
    yield value
    # GKE repeats paths in other forms than they were given in.
    if "/" in value:
        yield from (part for part in value.split("/") if part not in _COLLECTIONS)
    if "@" in value:
        yield from value.split("@")


def _alternatives(texts: set[str]) -> str:
    # The longest first, so that no part of it is taken for the whole.
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
