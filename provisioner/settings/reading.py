"""From the environment to the effective settings; all mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provisioner.settings.forms import (
    GCE,
    GKE,
    LONGEST_RUN_SECONDS,
    SHORTEST_RUN_SECONDS,
    SecretValueError,
    region_of,
)
from provisioner.settings.option import Option
from provisioner.settings.options import OPTIONS, Settings

#: Of these OAuth scopes a node needs one to pull private images.
_PULLING_SCOPES = ("/cloud-platform", "/devstorage.read_only", "/devstorage.read_write", "/devstorage.full_control")
#: What is not told of clusters without GKE: kubeadm's own name for them.
_CLUSTER_ON_GCE = "kubernetes"
#: What machines would go without, unseen.
_ON_GKE_ALONE = (
    "node_secondary_disk",
    "node_additional_networks",
    "node_confidential_storage",
    "node_boot_disk_kms_key",
)


class SettingsError(ValueError):
    """Some settings are missing or invalid; the message lists every problem and how to fix it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{count} setting{'s are' if count > 1 else ' is'} missing or invalid:\n{lines}")


def read_options(
    options: Iterable[Option], environment: Mapping[str, str], *, inferred: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Read options; return their values by field, and all that is wrong with them.

    `inferred` holds values by variable for those that the environment leaves out.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for option in options:
        text = environment.get(option.variable, "").strip() or (inferred or {}).get(option.variable, "")
        if not text:
            if option.default is None:
                problems.append(f"{option.variable} is not set. {option.description}")
                continue
            text = option.default
            if not text:
                continue
        try:
            value = option.read(text)
        except SecretValueError as error:
            problems.append(f"{option.variable} {error}. {option.description}")
            continue
        except ValueError as error:
            problems.append(f"{option.variable}={text!r} {error}. {option.description}")
            continue
        values[option.field] = value
    return values, problems


def read_settings(environment: Mapping[str, str], *, inferred: Mapping[str, str] | None = None) -> Settings:
    """Read all options of the controller, `inferred` as for `read_options`.

    Raises SettingsError with every problem at once.
    """
    inferred = {**(inferred or {}), **_of_gce(environment, inferred or {})}
    values, problems = read_options(OPTIONS, environment, inferred=inferred)
    problems += _contradictions(values)
    problems += _impossible_on_gce(values)
    if problems:
        raise SettingsError(problems)
    return Settings(**values)


def _of_gce(environment: Mapping[str, str], inferred: Mapping[str, str]) -> dict[str, str]:
    """Return what only GKE's clusters have, for a cluster without GKE: a place, and a name for logs and metrics."""
    if environment.get("PROVIDER", "").strip().lower() != GCE:
        return {}
    zone = environment.get("GCP_ZONE", "").strip() or inferred.get("GCP_ZONE", "")
    return {"GCP_CLUSTER": _CLUSTER_ON_GCE, **({"GCP_CLUSTER_LOCATION": region_of(zone)} if zone else {})}


def _impossible_on_gce(values: Mapping[str, Any]) -> list[str]:
    if values.get("provider") != GCE:
        return []
    variables = {option.field: option.variable for option in OPTIONS}
    problems = [
        f"{variables[field]} is set, and TPUNodeGroups cannot have it: unset it, or set PROVIDER={GKE}."
        for field in _ON_GKE_ALONE
        if values.get(field)
    ]
    if not values.get("node_images"):
        problems.append(f"{variables['node_images']} is not set, and PROVIDER={GCE} needs the boot images of machines.")
    return problems


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    zone, location = values.get("zone"), values.get("cluster_location")
    problems = []
    if zone and zone == region_of(zone):
        problems.append(f"GCP_ZONE={zone!r} is a region; set a zone in it, such as {zone}-b.")
    elif zone and location and region_of(zone) != region_of(location):
        problems.append(
            f"GCP_ZONE={zone!r} is not in GCP_CLUSTER_LOCATION={location!r}; set a zone in {region_of(location)}."
        )
    if location:
        problems += [
            f"ZONES={each!r} is not in GCP_CLUSTER_LOCATION={location!r}; name only zones in {region_of(location)}."
            for each in values.get("zones", ())
            if region_of(each) != region_of(location)
        ]
        problems += [
            f"CAPACITY names {choice}, which is not in GCP_CLUSTER_LOCATION={location!r}; name only "
            f"zones in {region_of(location)}."
            for choice in values.get("capacity", ())
            if choice.zone and region_of(choice.zone) != region_of(location)
        ]
    seconds = values.get("max_run_seconds", 0.0)
    if seconds and not SHORTEST_RUN_SECONDS <= seconds <= LONGEST_RUN_SECONDS:
        problems.append(f"MAX_RUN_DURATION is {seconds:.0f} s; set 10 minutes to 7 days, or 0 for Google's default.")
    return problems


def warnings_about(settings: Settings) -> tuple[str, ...]:
    """List what a pod author may do under these settings that the administrator should know of."""
    open_doors = [
        variable
        for variable, allowed in (
            ("ALLOWED_RESERVATIONS", settings.allowed_reservations),
            ("ALLOWED_SERVICE_ACCOUNTS", settings.allowed_service_accounts),
            ("ALLOWED_NETWORKS", settings.allowed_networks),
            ("ALLOWED_LABEL_KEYS", settings.allowed_label_keys),
        )
        if allowed is None
    ]
    warnings = []
    if open_doors:
        warnings.append(
            f"{', '.join(open_doors)} not set: anybody who may create a workload may name any of these that IAM allows "
            f'the provisioner. Set each to a list, or to "none".'
        )
    if settings.max_chips is None:
        warnings.append("MAX_CHIPS is not set: anybody who may create a workload may spend without limit.")
    if not any(scope.endswith(_PULLING_SCOPES) for scope in settings.node_oauth_scopes):
        warnings.append(
            f"GCP_NODE_OAUTH_SCOPES has none of {', '.join(scope[1:] for scope in _PULLING_SCOPES)}: nodes cannot pull "
            f"private images."
        )
    if settings.pause_creation:
        warnings.append("PAUSE_CREATION is set: no node pools are created.")
    return tuple(warnings)
