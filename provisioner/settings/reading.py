"""Reads the effective settings from environment variables, and lists settings with unexpected effects. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from provisioner.settings import forms
from provisioner.settings.forms import GCE, GKE, is_more_than, region_of
from provisioner.settings.node_fields import ROWS
from provisioner.settings.option import MAX_CONCURRENCY, read
from provisioner.settings.options import OPTIONS, Settings

#: Ends of OAuth scopes that allow nodes to pull private images. One of them is enough.
_PULLING_SCOPES = ("/cloud-platform", "/devstorage.read_only", "/devstorage.read_write", "/devstorage.full_control")
#: Default of GCP_CLUSTER without GKE; also kubeadm's default.
_CLUSTER_ON_GCE = "kubernetes"
#: Fields that TPUNodeGroups would silently ignore. With PROVIDER=gce, only defaults, empty and false values are valid.
_ON_GKE_ALONE = {name for name, row in ROWS.items() if not row.on_gce}

_NAMES = dict.fromkeys(option.variable for option in OPTIONS)
#: Minimum similarity, from 0 to 1, of an unknown variable to a suggested option. PROVIDR (0.93) passes.
_NEAR = 0.92
#: Prefix of unknown variables for which an option is always suggested.
_NODE_PREFIX = "GCP_NODE_"
_NO_SLICES = "Slice resources are not supported"
#: Messages about variables of the Go provisioner that have no counterpart, by name or prefix.
_OF_THE_GO_PROVISIONER = {
    "ENABLE_SLICE_CONTROLLER": _NO_SLICES,
    "ENABLE_WEBHOOKS": "webhooks are a process of their own (docs/webhook.md)",
    "ENABLE_IMAGE_STREAMING": "image streaming is only requested with GCP_NODE_SECONDARY_DISK",
    "STATIC_NODEPOOL_": "static node pools are not supported",
    "SLICE_": _NO_SLICES,
    "BACKOFF_": "the back-off is fixed and grows automatically",
}


def read_settings(environment: Mapping[str, str], *, inferred: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of the controller of slices. Raises SettingsError with all problems."""
    inferred = {**(inferred or {}), **_of_gce(environment, inferred or {})}
    return read(Settings, environment, inferred=inferred, contradictions=_contradictions)


def _of_gce(environment: Mapping[str, str], inferred: Mapping[str, str]) -> dict[str, str]:
    if environment.get("PROVIDER", "").strip().lower() != GCE:
        return {}
    zone = environment.get("GCP_ZONE", "").strip() or inferred.get("GCP_ZONE", "")
    return {"GCP_CLUSTER": _CLUSTER_ON_GCE, **({"GCP_CLUSTER_LOCATION": region_of(zone)} if zone else {})}


def _impossible_on_gce(values: Mapping[str, Any]) -> Iterator[str]:
    for option in OPTIONS:
        value = values.get(option.field)
        if option.field in _ON_GKE_ALONE and value and value != option.value:
            yield f"{option.variable} is set, and TPUNodeGroups cannot have it: unset it, or set PROVIDER={GKE}."
    if not values.get("node_images"):
        yield f"NODE_GROUP_IMAGES is not set, and PROVIDER={GCE} needs the boot images of machines."


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    zone, location = values.get("zone"), values.get("cluster_location")
    if zone and zone == region_of(zone):
        yield f"GCP_ZONE={zone!r} is a region; set a zone in it, such as {zone}-b."
    elif zone and location and region_of(zone) != region_of(location):
        yield f"GCP_ZONE={zone!r} is not in GCP_CLUSTER_LOCATION={location!r}; set a zone in {region_of(location)}."
    if location:
        named = [(f"ZONES={item!r} is", item) for item in values.get("zones", ())]
        named += [(f"CAPACITY names {item}, which is", item.zone) for item in values.get("capacity", ()) if item.zone]
        for subject, item in named:
            if region_of(item) != region_of(location):
                yield f"{subject} not in GCP_CLUSTER_LOCATION={location!r}; name only zones in {region_of(location)}."
    seconds = values.get("max_run_seconds", 0.0)
    if seconds and not forms.SHORTEST_RUN_SECONDS <= seconds <= forms.LONGEST_RUN_SECONDS:
        yield f"MAX_RUN_DURATION is {seconds:.0f} s; set 10 minutes to 7 days, or 0 for Google's default."
    if values.get("provider") == GCE:
        yield from _impossible_on_gce(values)


def warnings_about(settings: Settings) -> Iterator[str]:
    """Yield warnings about settings whose effect the administrator may not expect, such as limits that are not set."""
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
    if open_doors:
        yield (
            f"{', '.join(open_doors)} not set: anybody who may create a workload may name any of these that IAM allows "
            f'the provisioner. Set each to a list, or to "none".'
        )
    if settings.max_chips is None:
        yield "MAX_CHIPS is not set: anybody who may create a workload may spend without limit."
    if not any(scope.endswith(_PULLING_SCOPES) for scope in settings.node_oauth_scopes):
        scopes = ", ".join(scope[1:] for scope in _PULLING_SCOPES)
        yield f"GCP_NODE_OAUTH_SCOPES has none of {scopes}: nodes cannot pull private images."
    served = (*settings.namespaces, settings.own_namespace)
    if settings.on_gce and settings.namespaces and settings.node_groups_in not in served:
        yield (
            f"SERVED_NAMESPACES does not contain NODE_GROUP_NAMESPACE={settings.node_groups_in}: if the controller of "
            f"node groups reads the same settings (component nodegroups), it serves no TPUNodeGroup of the provisioner."
        )
    if settings.pause_creation:
        yield "PAUSE_CREATION is set: no node pools are created."


def warnings_about_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about variables that look like options and have no effect, and about too large a CONCURRENCY."""
    if is_more_than(environment.get("CONCURRENCY", "").strip(), MAX_CONCURRENCY):
        yield f"CONCURRENCY is above the maximum and counts as {MAX_CONCURRENCY}."
    for name in sorted(environment.keys() - _NAMES):
        reason = next((advice for key, advice in _OF_THE_GO_PROVISIONER.items() if _matches(name, key)), "")
        if reason:
            yield f"{name} is an option of the Go provisioner and has no effect here: {reason}. Remove it."
        elif near := forms.nearest(name, _NAMES, 0.0 if name.startswith(_NODE_PREFIX) else _NEAR):
            yield f"{name} is not an option and has no effect; did you mean {near}?"


def _matches(name: str, key: str) -> bool:
    return name.startswith(key) if key.endswith("_") else name == key


def given(environment: Mapping[str, str], effective: Settings) -> dict[str, str]:
    """Return the texts of all options that are set, and inferred values of the cluster, by variable."""
    texts = {name: environment[name] for name in _NAMES if environment.get(name, "").strip()}
    texts |= {
        "GCP_PROJECT_ID": effective.project_id,
        "GCP_CLUSTER_LOCATION": effective.cluster_location,
        "GCP_ZONE": effective.zone,
        "GCP_CLUSTER": effective.cluster,
    }
    if effective.auto_upgrade is not None:
        texts["NODEPOOL_AUTO_UPGRADE"] = "on" if effective.auto_upgrade else "off"
    return texts
