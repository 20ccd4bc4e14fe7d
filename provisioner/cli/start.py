"""Reads settings, kubeconfig and, for GKE, credentials for the commands `run`, `check` and `drain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from provisioner import constants, settings
from provisioner.google import metadata
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.errors import KubeconfigError
from provisioner.model.wording import UserError
from provisioner.slices.suppliers.gke.client import GkeClient, default_credentials
from provisioner.slices.suppliers.gke.errors import GkeError

#: Settings that can be inferred from this machine's metadata, with the key in the metadata and a text for messages.
_INFERRED = {
    "GCP_PROJECT_ID": ("project", "the project of this machine."),
    "GCP_CLUSTER_LOCATION": ("location", "the location of the cluster of this machine."),
    "GCP_ZONE": (
        "zone",
        "the zone of this machine. Node pools are created there. Set it if the TPUs are in another zone.",
    ),
    "GCP_CLUSTER": ("cluster", "the cluster of this machine."),
}


@dataclass(slots=True, kw_only=True)
class Attempt:
    """Settings and clients of a command, and the problems of those that are missing."""

    #: Values from this machine's metadata for unset settings, by variable; empty if unknown.
    inferred: Mapping[str, str]
    settings: settings.Settings | None = None
    api: KubeApi | None = None
    #: Client of GKE; None if settings or credentials have a problem, or if PROVIDER is not gke.
    gke: GkeClient | None = None
    settings_problems: tuple[str, ...] = ()
    kubeconfig_problem: str = ""
    credentials_problem: str = ""


class StartError(UserError, ValueError):
    """The kubeconfig, credentials or arguments of a command are wrong. The message lists all problems."""

    def __init__(self, problems: Sequence[str]) -> None:
        count = len(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"cannot start; {count} problem{'s' if count > 1 else ''}:\n{lines}")


def prepare(
    kubeconfig: str | None, environment: Mapping[str, str], *, problems: Iterable[str] = ()
) -> tuple[settings.Settings, KubeApi, Attempt]:
    """Read settings, kubeconfig and credentials. Raises StartError, or SettingsError if only settings are wrong."""
    tried = attempt(kubeconfig, environment)
    more_problems = [*filter(None, (tried.kubeconfig_problem, tried.credentials_problem)), *problems]
    if more_problems:
        raise StartError([*tried.settings_problems, *more_problems])
    if tried.settings is None or tried.api is None:
        raise settings.SettingsError(tried.settings_problems)
    return tried.settings, tried.api, tried


def in_cluster(command: str) -> str:
    """Return advice to run a command in the pod of the installed controller, with its settings and credentials."""
    return (
        "To use the settings of the installed controller, run: kubectl "
        f"--namespace={constants.DEFAULT_NAMESPACE} exec deployment/tpu-provisioner -- tpu-provisioner {command}"
    )


def attempt(kubeconfig: str | None, environment: Mapping[str, str]) -> Attempt:
    """Read settings, kubeconfig and credentials, each of them even if another one has a problem."""
    tried = Attempt(inferred=_infer(environment))
    credentials = None
    try:
        tried.settings = settings.read_settings(environment, inferred=tried.inferred)
    except settings.SettingsError as error:
        tried.settings_problems = error.problems
    try:
        tried.api = connect(kubeconfig)
    except KubeconfigError as error:
        tried.kubeconfig_problem = str(error)
    effective = tried.settings
    on_gke = effective is None or not effective.on_gce
    if on_gke and not environment.get("GKE_ENDPOINT"):
        try:
            credentials = default_credentials()
        except GkeError as error:
            tried.credentials_problem = str(error)
    if effective is not None and on_gke and not tried.credentials_problem:
        endpoint = effective.gke_endpoint or None
        tried.gke = GkeClient(effective.cluster_name, endpoint=endpoint, credentials=credentials)
    return tried


def inferred_words(inferred: Mapping[str, str]) -> tuple[str, ...]:
    """Return a text about each inferred setting."""
    inferred_values = ((variable, value, _INFERRED[variable][1]) for variable, value in inferred.items() if value)
    return tuple(f"{variable} is not set; using {value}, {meaning}" for variable, value, meaning in inferred_values)


def _infer(environment: Mapping[str, str]) -> dict[str, str]:
    if environment.get("GKE_ENDPOINT") or all(environment.get(variable) for variable in _INFERRED):
        return {}
    values = metadata.read_surroundings(environment)
    return {
        variable: values.get(key, "")
        for variable, (key, _) in _INFERRED.items()
        if not environment.get(variable, "").strip()
    }
