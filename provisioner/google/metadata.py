"""Reads the project, zone and cluster of this process from Google Cloud's metadata server."""

import contextlib
import http.client
from collections.abc import Mapping

#: Metadata server unless GCE_METADATA_HOST is set. An IP address, because looking up a missing name could take long.
_DEFAULT_HOST = "169.254.169.254"
_HOST_VARIABLE = "GCE_METADATA_HOST"
_FLAVOR = "Metadata-Flavor"


def read_surroundings(environ: Mapping[str, str], *, timeout_seconds: float = 1.0) -> Mapping[str, str]:
    """Return `project`, `zone` (of the machine), `cluster` and `location` (of the cluster), if the server has them."""
    host = environ.get(_HOST_VARIABLE) or _DEFAULT_HOST
    values: dict[str, str] = {}
    # If the server does not exist or a read fails, the values that were read before are returned.
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        contextlib.closing(http.client.HTTPConnection(host, timeout=timeout_seconds)) as connection,
    ):
        values["project"] = _read(connection, "project/project-id")
        # The response is projects/NUMBER/zones/ZONE.
        values["zone"] = _read(connection, "instance/zone").rpartition("/")[2]
        values["location"] = _read(connection, "instance/attributes/cluster-location")
        values["cluster"] = _read(connection, "instance/attributes/cluster-name")
    return {key: value for key, value in values.items() if value}


def _read(connection: http.client.HTTPConnection, path: str) -> str:
    connection.request("GET", f"/computeMetadata/v1/{path}", headers={_FLAVOR: "Google"})
    response = connection.getresponse()
    body = response.read().decode("utf-8", "replace").strip()
    # A response without the header is from another server at that address, so it is ignored.
    return body if response.status == 200 and response.headers.get(_FLAVOR) == "Google" else ""
