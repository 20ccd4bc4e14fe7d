"""Reads project, location, zone and cluster of this process from the metadata server of Google Cloud.

Elsewhere all fields are empty, after at most one second for the connection. Never raises.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Mapping
from dataclasses import dataclass

#: The address instead of the name, because the look-up of a missing name can take very long.
_DEFAULT_HOST = "169.254.169.254"
_HOST_VARIABLE = "GCE_METADATA_HOST"
_FLAVOR = "Metadata-Flavor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Project, location, zone and cluster that this process runs in. Empty if unknown."""

    project: str = ""
    #: Region or zone of the cluster.
    location: str = ""
    #: Zone of the machine.
    zone: str = ""
    cluster: str = ""


def read_surroundings(environ: Mapping[str, str], *, timeout_seconds: float = 1.0) -> Surroundings:
    """Read the metadata server, at the address in GCE_METADATA_HOST if that is set."""
    host = environ.get(_HOST_VARIABLE) or _DEFAULT_HOST
    found: dict[str, str] = {}
    # On other machines, or in a temporary failure, keep the fields that were read before it.
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        contextlib.closing(http.client.HTTPConnection(host, timeout=timeout_seconds)) as connection,
    ):
        for field, path in (
            ("project", "project/project-id"),
            ("zone", "instance/zone"),
            ("location", "instance/attributes/cluster-location"),
            ("cluster", "instance/attributes/cluster-name"),
        ):
            found[field] = _read(connection, path)
    # projects/NUMBER/zones/ZONE
    found["zone"] = found.get("zone", "").rpartition("/")[2]
    return Surroundings(**found)


def _read(connection: http.client.HTTPConnection, path: str) -> str:
    connection.request("GET", f"/computeMetadata/v1/{path}", headers={_FLAVOR: "Google"})
    response = connection.getresponse()
    body = response.read().decode("utf-8", "replace").strip()
    # Another server at that address does not send the header.
    return body if response.status == 200 and response.headers.get(_FLAVOR) == "Google" else ""
