"""What the metadata server of Google Cloud knows of where we run: project, location, zone, cluster.

Elsewhere everything is unknown, after one second at most for the connection; nothing is ever raised.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Mapping
from dataclasses import dataclass

#: The address rather than the name, since looking up a name that is not there can take very long.
_DEFAULT_HOST = "169.254.169.254"
_HOST_VARIABLE = "GCE_METADATA_HOST"
_FLAVOR = "Metadata-Flavor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where we run; empty for what is not known."""

    project: str = ""
    #: Region or zone of the cluster.
    location: str = ""
    #: Zone of the machine.
    zone: str = ""
    cluster: str = ""


def read_surroundings(environ: Mapping[str, str], *, timeout_seconds: float = 1.0) -> Surroundings:
    """Ask the metadata server, at the address in GCE_METADATA_HOST where that is set."""
    host = environ.get(_HOST_VARIABLE) or _DEFAULT_HOST
    found: dict[str, str] = {}
    # Not on Google Cloud, or not for now: what was read so far still holds.
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
    # Whatever else listens at that address does not send the header.
    return body if response.status == 200 and response.headers.get(_FLAVOR) == "Google" else ""
