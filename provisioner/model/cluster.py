"""The full name of a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterName:
    """A cluster of GKE; as text as people write it, PROJECT/LOCATION/CLUSTER."""

    project: str
    #: The region of a regional cluster, the zone of a zonal one.
    location: str
    cluster: str

    @property
    def location_path(self) -> str:
        """The resource name of its project and location."""
        return f"projects/{self.project}/locations/{self.location}"

    @property
    def path(self) -> str:
        """Its resource name in GKE's API."""
        return f"{self.location_path}/clusters/{self.cluster}"

    def __str__(self) -> str:
        return f"{self.project}/{self.location}/{self.cluster}"
