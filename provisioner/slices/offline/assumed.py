"""Placeholders for settings that are required and not set, for what can do without them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from provisioner import constants
from provisioner.kube import fields
from provisioner.settings import Settings, read_settings
from provisioner.settings.forms import region_of
from provisioner.slices.offline.documents import Document, mappings_in

_PROJECT, _CLUSTER, _LOCATION, _ZONE = "GCP_PROJECT_ID", "GCP_CLUSTER", "GCP_CLUSTER_LOCATION", "GCP_ZONE"
#: A region and one more part.
_NAMED_ZONE = re.compile(r"\b[a-z]{1,20}-[a-z]{1,20}[0-9]{1,3}-[a-z0-9]{1,10}\b")
_ZONE_FIELDS = (*constants.ZONE_LABELS, constants.ZONES, constants.CAPACITY)
_REGION_FIELDS = (constants.REGION, constants.BETA_REGION)
_ZONE_SETTINGS = (_ZONE, "ZONES", "CAPACITY")
_SOMEWHERE = "your-region1"
_MOST_OF_A_FIELD = 4096
#: The release channel of new clusters.
CHANNEL = "REGULAR"


def settings_by_object(variables: Mapping[str, str]) -> Callable[[Document], Settings]:
    """Return the settings for an object: in its own region where no setting says the cluster's; raise SettingsError."""
    own = read_settings(variables, inferred=assumed(variables)).on_channel(CHANNEL)
    if not {_LOCATION, _ZONE} & assumed(variables).keys():
        return lambda _: own
    return lambda document: read_settings(variables, inferred=assumed(variables, (document,))).on_channel(CHANNEL)


def assumed(variables: Mapping[str, str], documents: Iterable[Document] = ()) -> dict[str, str]:
    """Return placeholders by variable; the region is that of the objects where no setting says it."""
    given = {name: variables.get(name, "").strip() for name in (_PROJECT, _CLUSTER, _LOCATION, *_ZONE_SETTINGS)}
    named = [zone for name in _ZONE_SETTINGS for zone in _NAMED_ZONE.findall(given[name])]
    if not (given[_LOCATION] and given[_ZONE]):
        named += _zones_of(documents)
    location = given[_LOCATION] or (region_of(named[0]) if named else _SOMEWHERE)
    there = [zone for zone in named if region_of(zone) == region_of(location)]
    own = location if location != region_of(location) else ""
    placeholders = {
        _PROJECT: "your-project",
        _CLUSTER: "your-cluster",
        _LOCATION: location,
        _ZONE: own or (there[0] if there else f"{location}-a"),
    }
    return {name: text for name, text in placeholders.items() if not given[name]}


def _zones_of(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the zones that manifests name, by selector, node affinity or annotation; of a region the first one."""
    for document in documents:
        for _, found in mappings_in(document.value):
            for key in (*_ZONE_FIELDS, *_REGION_FIELDS):
                affinity = fields.sequence(found.get("values"))[:1]
                selects = found.get("key") == key and found.get("operator") == "In"
                for text in affinity if selects else [found.get(key)]:
                    if isinstance(text, str):
                        zone = f"{text}-a" if key in _REGION_FIELDS else text
                        yield from _NAMED_ZONE.findall(zone[:_MOST_OF_A_FIELD])
