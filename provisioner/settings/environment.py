"""Variables of the environment that do not do what whoever set them thinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioner.settings.forms import is_more_than
from provisioner.settings.option import MOST_CONCURRENCY
from provisioner.settings.options import OPTIONS, Settings

_NAMES = tuple(option.variable for option in OPTIONS)
#: Shorter names are near too much.
_SHORTEST = 5
_NEAR = 2
_NO_SLICES = "Slice resources are not supported"
_NO_WEBHOOKS = "there are no webhooks"
_NO_STATIC_POOLS = "static node pools are not supported"
_OWN_BACKOFF = "the back-off is fixed and grows automatically"
#: Variables of Go releases that have no counterpart, by name or by the beginning of the name.
_OF_THE_GO_PROVISIONER = {
    "ENABLE_SLICE_CONTROLLER": _NO_SLICES,
    "ENABLE_WEBHOOKS": _NO_WEBHOOKS,
    "ENABLE_IMAGE_STREAMING": "image streaming is not requested",
    "STATIC_NODEPOOL_": _NO_STATIC_POOLS,
    "SLICE_": _NO_SLICES,
    "BACKOFF_": _OWN_BACKOFF,
}


def warnings_about_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """List variables that are not read although they look like options, and values that count as others."""
    return (*_clamped(environment), *_unread(environment))


def given(environment: Mapping[str, str], effective: Settings) -> dict[str, str]:
    """Return the options that are set, as text, with what was inferred or found out since; no other variable."""
    found = {name: environment[name] for name in _NAMES if environment.get(name, "").strip()}
    found |= {
        "GCP_PROJECT_ID": effective.project_id,
        "GCP_CLUSTER_LOCATION": effective.cluster_location,
        "GCP_ZONE": effective.zone,
        "GCP_CLUSTER": effective.cluster,
    }
    if effective.auto_upgrade is not None:
        found["NODEPOOL_AUTO_UPGRADE"] = "on" if effective.auto_upgrade else "off"
    return found


def _clamped(environment: Mapping[str, str]) -> Iterator[str]:
    text = environment.get("CONCURRENCY", "").strip()
    if is_more_than(text, MOST_CONCURRENCY):
        yield f"CONCURRENCY is above the maximum and counts as {MOST_CONCURRENCY}."


def _unread(environment: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environment.keys() - set(_NAMES)):
        known = next((why for key, why in _OF_THE_GO_PROVISIONER.items() if _is(name, key)), "")
        if known:
            yield f"{name} is an option of the Go provisioner and has no effect here: {known}. Remove it."
        elif near := _nearest(name):
            yield f"{name} is not an option and has no effect; did you mean {near}?"


def _is(name: str, key: str) -> bool:
    return name.startswith(key) if key.endswith("_") else name == key


def _nearest(name: str) -> str:
    """Return the option that a name was probably meant to be; empty for none."""
    if len(name) < _SHORTEST or name != name.upper():
        return ""
    # A wrong first letter is rare, and NODE_NAME is not POD_NAME.
    near = [(_distance(name, option), option) for option in _NAMES if option[0] == name[0]]
    distance, option = min(near, default=(_NEAR + 1, ""))
    return option if distance <= _NEAR else ""


def _distance(one: str, other: str) -> int:
    """Count the letters to insert, delete or replace; what is too far counts as too far, however far."""
    if abs(len(one) - len(other)) > _NEAR:
        return _NEAR + 1
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        above, row = row, [i]
        for j, another in enumerate(other, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != another)))
    return row[-1]
