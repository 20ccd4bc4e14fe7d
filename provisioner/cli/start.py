"""What commands need that talk to the cluster and to GKE: settings, kubeconfig and credentials, found to be usable."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from provisioner import cluster, settings
from provisioner.gke import metadata
from provisioner.gke.client import GkeClient, default_credentials
from provisioner.gke.errors import GkeError

_INFERRED = {
    "GCP_PROJECT_ID": "project",
    "GCP_CLUSTER_LOCATION": "location",
    "GCP_ZONE": "zone",
    "GCP_CLUSTER": "cluster",
}

_MEANING = {
    "GCP_PROJECT_ID": "the project of this machine.",
    "GCP_CLUSTER_LOCATION": "where the cluster of this machine is.",
    "GCP_ZONE": "the zone of this machine: node pools are made there. Set it where the TPUs are in another zone.",
    "GCP_CLUSTER": "the cluster of this machine.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Everything that a start needs."""

    settings: settings.Settings
    api: cluster.KubeApi
    gke: GkeClient
    #: The settings that were not set and are taken from where this runs, by variable.
    inferred: Mapping[str, str] = field(default_factory=dict)


def prepare(kubeconfig: str | None, environment: Mapping[str, str], *, problems: Iterable[str] = ()) -> Start:
    """Read settings, kubeconfig and credentials.

    Raises SettingsError with all that is wrong with any of them, and with the `problems` that are known already.
    """
    found: list[str] = []
    effective = api = credentials = None
    inferred = _infer(environment)
    try:
        effective = settings.read_settings(environment, inferred=inferred)
    except settings.SettingsError as error:
        found += error.problems
    try:
        api = cluster.connect(kubeconfig)
    except cluster.KubeconfigError as error:
        found.append(str(error))
    found += problems
    if not environment.get("GKE_ENDPOINT"):
        try:
            credentials = default_credentials()
        except GkeError as error:
            found.append(str(error))
    if found or effective is None or api is None:
        raise settings.SettingsError(found)
    gke = GkeClient(
        project=effective.project_id,
        location=effective.cluster_location,
        cluster=effective.cluster,
        endpoint=effective.gke_endpoint or None,
        credentials=credentials,
    )
    return Start(settings=effective, api=api, gke=gke, inferred=inferred)


def inferred_words(inferred: Mapping[str, str]) -> tuple[str, ...]:
    """Say in words what was taken from where this runs; the zone above all, for TPUs may be in another."""
    return tuple(
        f"{variable} is not set; {value} is taken, {_MEANING[variable]}"
        for variable, value in inferred.items()
        if value
    )


def refuse(message: str) -> int:
    """Say why a command does not start; return its exit code."""
    sys.stderr.write(f"tpu-provisioner: {message}\n")
    return 1


def _infer(environment: Mapping[str, str]) -> dict[str, str]:
    if environment.get("GKE_ENDPOINT") or all(environment.get(variable) for variable in _INFERRED):
        return {}
    found = metadata.read_surroundings(environment)
    # What is set is set.
    return {
        variable: getattr(found, attribute)
        for variable, attribute in _INFERRED.items()
        if not environment.get(variable, "").strip()
    }
