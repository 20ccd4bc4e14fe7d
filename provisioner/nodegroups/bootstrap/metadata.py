"""Metadata of machines: the data with which they join the cluster, and the startup script. Pure.

A change replaces all items, and must contain the fingerprint of the metadata that was read. Values that may change
while machines run (version, address, token) are separate items, because the script in a template cannot be changed.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from provisioner.nodegroups.api.names import KUBE_LABELS, labels_text, parse_labels

#: Keys of the metadata for the join. gke-labs/tpu-operator has the same keys, except PORT and VERSION.
TOKEN = "kubeadm-join-token"  # noqa: S105 - a key
ADDRESS = "kubeadm-control-plane-ip"
PORT = "kubeadm-control-plane-port"
CA_HASH = "kubeadm-ca-hash"
VERSION = "kubeadm-kubernetes-version"
DEFAULT_PORT = 6443

#: Default address of the Debian packages of Kubernetes, with a folder for each minor version.
REPOSITORY = "https://pkgs.k8s.io"
_HOST = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,252}[A-Za-z0-9])?")
_WITH_USERS = """\
#!/bin/bash
# The startup-script of the group's metadata runs first, at each boot, as Compute Engine would run it.
if users_script=$(mktemp -d)/startup-script; then
  cat > "$users_script" << '{end}'
{users}{end}
  chmod 700 "$users_script"
  "$users_script" < /dev/null || echo "tpu-provisioner: the startup-script of the metadata ended with $?" >&2
  rm -rf "${{users_script%/*}}"
fi
{script}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Data that a machine needs to join the cluster."""

    token: str = field(repr=False)
    #: HOST:PORT of the API server.
    api_server: str
    #: sha256:HEX; several hashes are separated by commas.
    ca_hash: str
    kubernetes_version: str


def changed_items(items: Mapping[str, str], *, labels: Mapping[str, str], join: Join | None) -> dict[str, str] | None:
    """Return all items that a machine must have, None if unchanged. Without `join`, only labels are added."""
    wanted = dict(items)
    wanted[KUBE_LABELS] = labels_text({**parse_labels(items.get(KUBE_LABELS, "")), **labels})
    if join is not None:
        host, _, port = join.api_server.rpartition(":")
        wanted |= {
            TOKEN: join.token,
            ADDRESS: host,
            PORT: port,
            CA_HASH: join.ca_hash,
            VERSION: join.kubernetes_version,
        }
        if port == str(DEFAULT_PORT):
            del wanted[PORT]
    return None if wanted == dict(items) else wanted


def api_server(host: str, port: int | None = None) -> str:
    """Return HOST:PORT, empty if the host is invalid or an IPv6 address, which machines cannot reach."""
    return f"{host}:{port or DEFAULT_PORT}" if _HOST.fullmatch(host) else ""


def startup_script(repository: str = REPOSITORY) -> str:
    """Return the script that installs containerd and kubeadm, and joins the cluster; `repository` may be a mirror."""
    script = resources.files(__package__).joinpath("startup.sh").read_text(encoding="utf-8")
    return script.replace("@REPOSITORY@", shlex.quote(repository.rstrip("/")))


def with_users_script(script: str, users: str) -> str:
    """Return a script that runs the user's startup script and then `script`, even if the user's script has failed."""
    if not users:
        return script
    # The delimiter contains a hash of the user's script, so no line of that script can equal the delimiter.
    end = f"END_{hashlib.sha256(users.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    users = users if users.endswith("\n") else f"{users}\n"
    return _WITH_USERS.format(end=end, users=users, script=script)
