"""What the init container and the REST API agree on: audience, paths, the names of what a pod is told by."""

from __future__ import annotations

#: Tokens of ServiceAccounts are made for this audience alone, and no other tokens are taken.
AUDIENCE = "tpu-provisioner-partitions"
#: Partitions are asked for here by POST; one is at this path, "/" and its id, its configuration at /config below.
ROOT = "/v1/partitions"
CONFIG = "config"
HEALTH = "/health"
#: The port of the REST API, and that of its Service.
PORT = 8080
SERVICE = "tpu-provisioner-partitions"

#: The container that waits for the partition: it tells pods that were prepared here from those of Graphcore's plugin.
INIT_CONTAINER = "graphcore-partition"

# --- in the pod -----------------------------------------------------------------------------------------------------
#: Where the token is mounted in the init container.
TOKEN_DIRECTORY = "/var/run/secrets/tpu-provisioner"  # noqa: S105 - a path
TOKEN_FILE = "token"  # noqa: S105 - a name
#: Beside it: whom the client trusts; also the key in the ConfigMap that it comes from.
CA_FILE = "ca.crt"
#: Where the volume with the IPUoF configuration is mounted, and the file in it.
CONFIG_DIRECTORY = "/etc/graphcore"
CONFIG_FILE = "ipuof.conf"
#: Variables of the init container, which say whose partition it waits for.
NAMESPACE_VARIABLE = "POD_NAMESPACE"
POD_VARIABLE = "POD_NAME"
UID_VARIABLE = "POD_UID"
SIZE_VARIABLE = "IPUS"
