"""What commands need that talk to the cluster and to GKE, if there is one: settings, kubeconfig and credentials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from provisioner import kube, settings
from provisioner.google import metadata
from provisioner.slices import preflight
from provisioner.slices.suppliers.gke.client import GkeClient, default_credentials
from provisioner.slices.suppliers.gke.errors import GkeError
from provisioner.slices.suppliers.gke.supplier import Calls, GkeSupplier

_INFERRED = {
    "GCP_PROJECT_ID": "project",
    "GCP_CLUSTER_LOCATION": "location",
    "GCP_ZONE": "zone",
    "GCP_CLUSTER": "cluster",
}

_MEANING = {
    "GCP_PROJECT_ID": "the project of this machine.",
    "GCP_CLUSTER_LOCATION": "the location of the cluster of this machine.",
    "GCP_ZONE": "the zone of this machine. Node pools are created there. Set it if the TPUs are in another zone.",
    "GCP_CLUSTER": "the cluster of this machine.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Everything that a start needs."""

    settings: settings.Settings
    api: kube.KubeApi
    #: None where capacity does not come from GKE.
    gke: GkeClient | None
    #: The settings that were not set and are taken from where this runs, by variable.
    inferred: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What of a start can be had, and what is wrong with the rest."""

    settings: settings.Settings | None
    api: kube.KubeApi | None
    #: Only where the settings and the credentials are right, and capacity comes from GKE.
    gke: GkeClient | None
    settings_problems: tuple[str, ...] = ()
    kubeconfig_problem: str = ""
    credentials_problem: str = ""
    #: As `Start.inferred`.
    inferred: Mapping[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong."""
        return (*self.settings_problems, *filter(None, (self.kubeconfig_problem, self.credentials_problem)))


def prepare(kubeconfig: str | None, environment: Mapping[str, str], *, problems: Iterable[str] = ()) -> Start:
    """Read settings, kubeconfig and credentials.

    Raises SettingsError with all that is wrong with any of them, and with the `problems` that are known already.
    """
    tried = attempt(kubeconfig, environment)
    found = (*tried.problems, *problems)
    if found or tried.settings is None or tried.api is None:
        raise settings.SettingsError(found)
    return Start(settings=tried.settings, api=tried.api, gke=tried.gke, inferred=tried.inferred)


def attempt(kubeconfig: str | None, environment: Mapping[str, str]) -> Attempt:
    """Read settings, kubeconfig and credentials, each as far as it can be read."""
    effective = api = credentials = gke = None
    settings_problems: tuple[str, ...] = ()
    kubeconfig_problem = credentials_problem = ""
    inferred = _infer(environment)
    try:
        effective = settings.read_settings(environment, inferred=inferred)
    except settings.SettingsError as error:
        settings_problems = error.problems
    try:
        api = kube.connect(kubeconfig)
    except kube.KubeconfigError as error:
        kubeconfig_problem = str(error)
    on_gke = effective is None or not effective.on_gce
    if on_gke and not environment.get("GKE_ENDPOINT"):
        try:
            credentials = default_credentials()
        except GkeError as error:
            credentials_problem = str(error)
    if effective is not None and on_gke and not credentials_problem:
        gke = GkeClient(
            effective.cluster_name,
            endpoint=effective.gke_endpoint or None,
            credentials=credentials,
        )
    return Attempt(
        settings=effective,
        api=api,
        gke=gke,
        settings_problems=settings_problems,
        kubeconfig_problem=kubeconfig_problem,
        credentials_problem=credentials_problem,
        inferred=inferred,
    )


def inferred_words(inferred: Mapping[str, str]) -> tuple[str, ...]:
    """Say in words what was taken from where this runs; the zone above all, for TPUs may be in another."""
    return tuple(
        f"{variable} is not set; using {value}, {_MEANING[variable]}" for variable, value in inferred.items() if value
    )


def subject_of(tried: Start | Attempt, effective: settings.Settings) -> preflight.Subject:
    """Return what can be checked of a start under these settings."""

    def now() -> datetime:
        return datetime.now(tz=UTC)

    return preflight.Subject(
        settings=effective,
        api=tried.api,
        server=tried.api.server if tried.api is not None else "",
        trusted_ca_pem=tried.api.ca_certificates_pem() if tried.api is not None else None,
        gke=GkeSupplier(gke=tried.gke, clock=now, calls=Calls()) if tried.gke is not None else None,
        inspector=tried.gke,
        now=now,
    )


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
