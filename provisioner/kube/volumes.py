"""Reads the fields with which PersistentVolumeClaims, PersistentVolumes and StorageClasses restrict nodes. Pure."""

from collections.abc import Iterable
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.kube.kept import NamespaceBound
from provisioner.model import bounds
from provisioner.model.volumes import Claim, StorageClass

_BOUND, _DEFAULT = "pv.kubernetes.io/bind-completed", "storageclass.kubernetes.io/is-default-class"
#: CSI driver of Compute Engine's disks, and the disk type for a StorageClass without the parameter `type`.
_DISK_DRIVER, _DEFAULT_DISK = "pd.csi.storage.gke.io", "pd-standard"


def parse_claim(raw: object) -> Claim:
    """Read a PersistentVolumeClaim. A claim that is being deleted, Lost, or not bound to its volume has a `problem`."""
    metadata, spec, status = (fields.at(raw, key) for key in ("metadata", "spec", "status"))
    named, volume = spec.get("storageClassName"), fields.name(spec.get("volumeName"))
    problem = ""
    if metadata.get("deletionTimestamp") is not None:
        problem = "is being deleted; create it again"
    elif status.get("phase") == "Lost":
        problem = f"has lost its volume {volume}; create it again"
    elif volume and _BOUND not in fields.mapping(metadata.get("annotations")):
        problem = f"is not bound to its volume {volume} yet"
    return Claim(storage_class=fields.name(named) if isinstance(named, str) else None, volume=volume, problem=problem)


def parse_volume(raw: object) -> frozenset[str] | None:
    """Return the zones in which nodes can use a PersistentVolume; None if its node affinity does not list zones."""
    terms = fields.mappings(fields.at(raw, "spec", "nodeAffinity", "required").get("nodeSelectorTerms"))
    return _zones(fields.mappings(term.get("matchExpressions")) for term in terms)


def parse_class(raw: object) -> StorageClass:
    """Read a StorageClass."""
    storage_class = fields.mapping(raw)
    annotations = fields.at(storage_class, "metadata", "annotations")
    terms = fields.mappings(storage_class.get("allowedTopologies"))
    disk = fields.text(fields.mapping(storage_class.get("parameters")).get("type")) or _DEFAULT_DISK
    return StorageClass(
        waits=storage_class.get("volumeBindingMode") == "WaitForFirstConsumer",
        default=annotations.get(_DEFAULT) == "true",
        zones=_zones(fields.mappings(term.get("matchLabelExpressions")) for term in terms),
        disk=disk if storage_class.get("provisioner") == _DISK_DRIVER else "",
    )


def _zones(terms: Iterable[Iterable[dict[str, Any]]]) -> frozenset[str] | None:
    """Return the zones that at least one term allows; None without terms, or if a term does not list zones."""
    allowed: list[set[str]] = []
    for term in terms:
        zones = [
            {fields.name(value) for value in fields.sequence(expression.get("values"))[: bounds.ZONES]}
            for expression in term
            if expression.get("key") in constants.ZONE_LABELS and expression.get("operator", "In") == "In"
        ]
        if not zones:
            return None
        allowed.append(set.intersection(*zones))
    return frozenset[str]().union(*allowed) if allowed else None


#: Bound on the claims of one namespace. A reduced claim restricts no nodes; a claim that is left out counts as absent.
BOUND_OF_CLAIMS: NamespaceBound[Claim] = NamespaceBound(
    plural="PersistentVolumeClaims",
    max_bytes=bounds.NAMESPACE_CLAIMS,
    reduce=lambda *_: Claim(volume="unread"),
)
