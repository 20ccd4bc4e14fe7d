"""Names, links and numbers as GKE and Compute Engine form them."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from datetime import datetime

from rehearsal.simulators.http import google

CONTAINER_API = "https://container.googleapis.com/v1"
_PREFIX_LENGTH = 32
_SUFFIX_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, order=True)
class ClusterName:
    """A cluster's full name."""

    project: str
    location: str
    cluster: str

    @property
    def path(self) -> str:
        """The name as Google's texts give it: /zones/ for a zonal cluster."""
        return f"projects/{self.project}/{location_kind(self.location)}/{self.location}/clusters/{self.cluster}"

    def pool_path(self, pool: str) -> str:
        """The full name of a node pool."""
        return f"{self.path}/nodePools/{pool}"


def region_of(location: str) -> str:
    """Return the region of a zone; a region is its own."""
    return location.rpartition("-")[0] if google.is_zone(location) else location


def location_kind(location: str) -> str:
    """Return the path segment that Google's links have before the location."""
    return "zones" if google.is_zone(location) else "locations"


def zones_of(location: str) -> tuple[str, ...]:
    """Return the zones that pools of a cluster there get by default."""
    return (location,) if google.is_zone(location) else tuple(f"{location}-{letter}" for letter in "abc")


def operation_name(now: datetime, rng: random.Random) -> str:
    """Return a fresh name for an operation."""
    return f"operation-{int(now.timestamp() * 1000)}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"


def group_prefix(cluster: str, pool: str, rng: random.Random) -> str:
    """Return what the names of an instance group and its nodes without TPUs share: gke-CLUSTER-POOL-HASH."""
    pool_part = pool[: max(16, _PREFIX_LENGTH - 1 - len(cluster))]
    cluster_part = cluster[: _PREFIX_LENGTH - 1 - len(pool_part)]
    return f"gke-{cluster_part.rstrip('-')}-{pool_part.rstrip('-')}-{rng.getrandbits(32):08x}"


def group_url(project: str, zone: str, prefix: str) -> str:
    """Return the link of an instance group manager."""
    return f"{google.COMPUTE_API}/projects/{project}/zones/{zone}/instanceGroupManagers/{prefix}-grp"


def node_name(prefix: str, rng: random.Random, *, tpu: bool) -> str:
    """Return a fresh name for a node of an instance group; one with TPUs is named after neither cluster nor pool."""
    head = f"gke-tpu-{prefix.rpartition('-')[2]}" if tpu else prefix
    return f"{head}-{''.join(rng.choices(_SUFFIX_ALPHABET, k=4))}"


def timestamp(moment: datetime) -> str:
    """Return RFC 3339 with nanosecond digits, as GKE writes it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z"
