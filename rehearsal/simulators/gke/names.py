"""Creates names, links and numbers in the formats of GKE and Compute Engine."""

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
        """The name in Google's messages: with /zones/ for a zonal cluster."""
        return f"projects/{self.project}/{location_kind(self.location)}/{self.location}/clusters/{self.cluster}"

    def pool_path(self, pool: str) -> str:
        """Return the full name of a node pool."""
        return f"{self.path}/nodePools/{pool}"


def region_of(location: str) -> str:
    """Return the region of a zone; a region is returned unchanged."""
    return location.rpartition("-")[0] if google.is_zone(location) else location


def location_kind(location: str) -> str:
    """Return the path segment before the location in Google's links."""
    return "zones" if google.is_zone(location) else "locations"


def zones_of(location: str) -> tuple[str, ...]:
    """Return the default zones of pools of a cluster in this location."""
    return (location,) if google.is_zone(location) else tuple(f"{location}-{letter}" for letter in "abc")


def operation_name(now: datetime, rng: random.Random) -> str:
    """Return a new name for an operation."""
    return f"operation-{int(now.timestamp() * 1000)}-{uuid.UUID(int=rng.getrandbits(128), version=4)}"


def group_prefix(cluster: str, pool: str, rng: random.Random) -> str:
    """Return the common prefix of an instance group and its nodes without TPUs: gke-CLUSTER-POOL-HASH."""
    pool_part = pool[: max(16, _PREFIX_LENGTH - 1 - len(cluster))]
    cluster_part = cluster[: _PREFIX_LENGTH - 1 - len(pool_part)]
    return f"gke-{cluster_part.rstrip('-')}-{pool_part.rstrip('-')}-{rng.getrandbits(32):08x}"


def group_url(project: str, zone: str, prefix: str) -> str:
    """Return the link of an instance group manager."""
    return f"{google.COMPUTE_API}/projects/{project}/zones/{zone}/instanceGroupManagers/{prefix}-grp"


def node_name(prefix: str, rng: random.Random, *, tpu: bool) -> str:
    """Return a new name for a node of an instance group; with TPUs, it contains neither cluster nor pool."""
    head = f"gke-tpu-{prefix.rpartition('-')[2]}" if tpu else prefix
    return f"{head}-{''.join(rng.choices(_SUFFIX_ALPHABET, k=4))}"


def timestamp(moment: datetime) -> str:
    """Return a time as GKE writes it: RFC 3339 with nanosecond digits."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z"
