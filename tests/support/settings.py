"""Settings of a regional cluster."""

from __future__ import annotations

from typing import Any

from provisioner.settings import Settings

#: Variables without a default for a cluster on GKE.
REQUIRED = {
    "GCP_PROJECT_ID": "project-1",
    "GCP_CLUSTER_LOCATION": "us-central2",
    "GCP_ZONE": "us-central2-b",
    "GCP_CLUSTER": "test",
}


def settings(**changes: Any) -> Settings:
    fields: dict[str, Any] = {
        "project_id": "project-1",
        "cluster_location": "us-central2",
        "zone": "us-central2-b",
        "cluster": "test",
    }
    return Settings(**fields | changes)
