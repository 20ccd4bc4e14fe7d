"""Reads the metadata that a VM's startup script reads before it joins a cluster. Pure.

The keys are those of gke-labs/tpu-operator and, if its script has no key for a value, of later scripts. Version, port
and taints count only if the script contains their key; a VM whose script has no key of a token does not join. The
accepted formats, and the labels that are left out, are those of kubeadm and the kubelet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rehearsal.simulators.compute.guests.client import JoinError
from rehearsal.simulators.compute.records import MachineView

_SCRIPT = "startup-script"
_TOKEN = "kubeadm-join-token"  # noqa: S105 - a key
_ADDRESS = "kubeadm-control-plane-ip"
_PORT = "kubeadm-control-plane-port"
_CA_HASH = "kubeadm-ca-hash"
_VERSION = "kubeadm-kubernetes-version"
_LABELS = "kube-labels"
_TAINTS = "kube-taints"

_DEFAULT_PORT = 6443
_DEFAULT_VERSION = "1.31"
_FORMS = {
    _TOKEN: re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})"),
    _ADDRESS: re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]"),
    _PORT: re.compile(r"[0-9]{1,5}"),
    _CA_HASH: re.compile(r"sha256:[0-9a-f]{64}(?:,sha256:[0-9a-f]{64})*"),
    _VERSION: re.compile(r"1\.[0-9]{1,3}"),
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"(?:(?P<domain>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?)/)?(?P<name>{_NAME})=(?:{_NAME})?")
_TAINT = re.compile(
    rf"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME})(?:=(?P<value>(?:{_NAME})?))?"
    r":(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)"
)
#: Labels in Kubernetes' own domains that a kubelet may set, in addition to all labels in the kubelet's two domains.
_ALLOWED = {
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
}
_OWN_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Values from which a VM knows the cluster to join. `host` has no brackets if it is an IPv6 address."""

    host: str
    port: int
    token_id: str
    token_secret: str = field(repr=False)
    ca_hashes: tuple[str, ...]
    #: Version without patch, such as 1.31.
    kubernetes_version: str
    labels: dict[str, str]
    #: Key, value and effect of taints, in addition to those of all machines.
    taints: tuple[tuple[str, str, str], ...] = ()

    @property
    def token(self) -> str:
        """The token as clients send it."""
        return f"{self.token_id}.{self.token_secret}"


def joins(machine: MachineView) -> bool:
    """Return whether the metadata of a VM makes its startup script join a cluster."""
    return _TOKEN in machine.metadata.get(_SCRIPT, "")


def read_invitation(machine: MachineView) -> Invitation:
    """Return the invitation in the metadata of a VM. Raises JoinError if a value is missing or invalid."""
    script = machine.metadata.get(_SCRIPT, "")
    version = _read(machine, _VERSION)[0] if _VERSION in script else _DEFAULT_VERSION
    (host,) = _read(machine, _ADDRESS)
    port = _DEFAULT_PORT
    if _PORT in script and _PORT in machine.metadata:
        port = int(_read(machine, _PORT)[0])
    (hashes,) = _read(machine, _CA_HASH)
    token_id, token_secret = _read(machine, _TOKEN)
    return Invitation(
        host=host.strip("[]"),
        port=port,
        token_id=token_id,
        token_secret=token_secret,
        ca_hashes=tuple(hashes.split(",")),
        kubernetes_version=version,
        labels=allowed_labels(machine.metadata.get(_LABELS, "")),
        taints=allowed_taints(machine.metadata.get(_TAINTS, "")) if _TAINTS in script else (),
    )


def provider_id(machine: MachineView) -> str:
    """Return the provider ID that the kubelet of a VM gets."""
    return f"gce://{machine.scope.project}/{machine.scope.location}/{machine.name}"


def allowed_labels(text: str) -> dict[str, str]:
    """Return the labels of a list KEY=VALUE,..., without invalid labels and those that a kubelet may not set."""
    found = {}
    for entry in text.split(","):
        match = _LABEL.fullmatch(entry)
        if match is not None and _may_set(match["domain"] or "", entry.partition("=")[0]):
            key, _, value = entry.partition("=")
            found[key] = value
    return found


def allowed_taints(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return the taints of a list KEY=VALUE:EFFECT,..., without invalid ones."""
    found = (_TAINT.fullmatch(entry) for entry in text.split(","))
    return tuple((match["key"], match["value"] or "", match["effect"]) for match in found if match is not None)


def _may_set(domain: str, key: str) -> bool:
    if key in _ALLOWED or any(_is_in(domain, own) for own in _OWN_DOMAINS):
        return True
    return not _is_in(domain, "kubernetes.io") and not _is_in(domain, "k8s.io")


def _is_in(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")


def _read(machine: MachineView, key: str) -> tuple[str, ...]:
    value = machine.metadata.get(key)
    if value is None:
        raise JoinError(f"there is no {key} in the metadata yet")
    match = _FORMS[key].fullmatch(value)
    if match is None:
        raise JoinError(f"{key} in the metadata cannot be read")
    return match.groups() or (match[0],)
