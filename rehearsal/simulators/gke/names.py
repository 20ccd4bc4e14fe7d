"""Names, links and numbers as GKE and Compute Engine form them."""

from __future__ import annotations

import hashlib
import random
import re
import uuid
import zlib
from dataclasses import dataclass
from datetime import datetime

CONTAINER_API = "https://container.googleapis.com/v1"
COMPUTE_API = "https://www.googleapis.com/compute/v1"
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z][a-z0-9]*")
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


def is_zone(location: str) -> bool:
    """Tell a zone (us-east5-a, us-central1-ai1a) from a region (us-east5)."""
    return _ZONE.fullmatch(location) is not None


def region_of(location: str) -> str:
    """Return the region of a zone; a region is its own."""
    return location.rpartition("-")[0] if is_zone(location) else location


def location_kind(location: str) -> str:
    """Return the path segment that Google's links have before the location."""
    return "zones" if is_zone(location) else "locations"


def zones_of(location: str) -> tuple[str, ...]:
    """Return the zones that pools of a cluster there get by default."""
    return (location,) if is_zone(location) else tuple(f"{location}-{letter}" for letter in "abc")


def project_number(project: str) -> str:
    """Return a stable twelve-digit number for a project."""
    return str(100_000_000_000 + zlib.crc32(project.encode()) * 181 % 900_000_000_000)


def default_account(project: str) -> str:
    """Return Compute Engine's default service account of a project, which nodes get that name none."""
    return f"{project_number(project)}-compute@developer.gserviceaccount.com"


def numbered(path: str, project: str) -> str:
    """Return a path with the project's number in place of its name, as links of operations have it."""
    return path.replace(f"projects/{project}/", f"projects/{project_number(project)}/", 1)


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
    return f"{COMPUTE_API}/projects/{project}/zones/{zone}/instanceGroupManagers/{prefix}-grp"


def node_name(prefix: str, rng: random.Random, *, tpu: bool) -> str:
    """Return a fresh name for a node of an instance group; one with TPUs is named after neither cluster nor pool."""
    head = f"gke-tpu-{prefix.rpartition('-')[2]}" if tpu else prefix
    return f"{head}-{''.join(rng.choices(_SUFFIX_ALPHABET, k=4))}"


def timestamp(moment: datetime) -> str:
    """Return RFC 3339 with nanosecond digits, as GKE writes it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z"


def number_of(text: str) -> int:
    """Return a stable nineteen-digit number for a name, as instance ids are."""
    return 10**18 + int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
