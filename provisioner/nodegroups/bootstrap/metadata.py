"""What the metadata of a machine is to say, and whether it has to be written. Pure.

The whole list is written at once, with the fingerprint of what was read. Keys that are not ours stay as they are. The
first four are read by the startup script; all but version and port are those of gke-labs/tpu-operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.nodegroups.api.registration import LABELS

TOKEN = "kubeadm-join-token"  # noqa: S105 - a key
ADDRESS = "kubeadm-control-plane-ip"
#: Left out for 6443.
PORT = "kubeadm-control-plane-port"
CA_HASH = "kubeadm-ca-hash"
VERSION = "kubeadm-kubernetes-version"
DEFAULT_PORT = 6443


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What a machine needs to join."""

    token: str = field(repr=False)
    #: HOST:PORT; an IPv6 address in brackets.
    api_server: str
    #: sha256:HEX, several separated by commas.
    ca_hash: str
    #: As 1.31.
    kubernetes_version: str


def changed_items(
    items: Mapping[str, str], *, labels: Mapping[str, str], join: Join | None, joined: bool
) -> dict[str, str] | None:
    """Return all items that a machine is to have, None where these are the ones that it has.

    `join` is None for a machine that joins by itself or not at all; one with a gap in it counts as none. A machine that
    has joined keeps what it has but the token.
    """
    wanted = dict(items)
    wanted[LABELS] = merged_labels(items.get(LABELS, ""), labels)
    if not wanted[LABELS]:
        del wanted[LABELS]
    if joined:
        wanted.pop(TOKEN, None)
    elif join is not None and join.token and join.api_server and join.ca_hash and join.kubernetes_version:
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


def merged_labels(text: str, labels: Mapping[str, str]) -> str:
    """Return `kube-labels` with these labels in it: KEY=VALUE, sorted and separated by commas; others stay."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key = part.partition("=")[0].strip()
        if key:
            found[key] = part.strip()
    found |= {key: f"{key}={value}" for key, value in labels.items()}
    return ",".join(found[key] for key in sorted(found))
