"""Finds how the PersistentVolumeClaims of a pod restrict its node, by the rules of the scheduler. Pure.

If the objects of a kind, such as StorageClasses, could not be read, they restrict nothing. Not handled: generic
ephemeral volumes, node affinity of volumes on labels other than the zone, and the number of disks of a machine.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from provisioner.model.workloads import Pod, Volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Fields of a PersistentVolumeClaim that restrict the nodes of a pod."""

    #: Name of the StorageClass; None for the default class, empty if the claim requires a volume without a class.
    storage_class: str | None = None
    #: Name of the PersistentVolume; empty if the claim names none. A claim that is not bound yet may name a volume.
    volume: str = ""
    #: Reason why no pod can use the claim now, such as its deletion; otherwise empty.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    """Fields of a StorageClass that determine where its volumes are created, and on which disks."""

    #: Whether a claim is bound only when its pod is scheduled (WaitForFirstConsumer).
    waits: bool = False
    default: bool = False
    #: Zones in allowedTopologies; None if volumes may be in any zone.
    zones: frozenset[str] | None = None
    #: Type of the Compute Engine disks; empty if the volumes are not disks of Compute Engine.
    disk: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Objects that describe volumes; None instead of a mapping if the objects of a kind could not be read."""

    claims: Mapping[tuple[str, str], Claim] | None = None
    #: Zones by name of a PersistentVolume. Volumes that nodes in any zone can use are left out.
    zones: Mapping[str, frozenset[str]] | None = None
    classes: Mapping[str, StorageClass] | None = None
    #: Whether the objects are from a cluster, not from manifests. If not, pods get no `Volumes.problem`.
    complete: bool = True


class _Restriction(NamedTuple):
    problem: str = ""
    zones: frozenset[str] | None = None
    disk: str = ""


def with_volumes(pods: Iterable[Pod], storage: Storage) -> Iterator[Pod]:
    """Yield all pods. Pods without a node get the restrictions by their claims (`Requirements.volumes`)."""
    # Pods of a workload often use the same claims.
    restrict = functools.cache(functools.partial(_restrict, storage))
    for pod in pods:
        requirements = pod.requirements
        if requirements.volumes is not None and not pod.node_name:
            volumes = restrict(pod.namespace, requirements.volumes.claims)
            yield replace(pod, requirements=replace(requirements, volumes=volumes))
        else:
            yield pod


def _restrict(storage: Storage, namespace: str, claims: tuple[str, ...]) -> Volumes:
    restrictions = [_restriction(namespace, name, storage) for name in claims]
    zones = [restriction.zones for restriction in restrictions if restriction.zones is not None]
    return Volumes(
        claims=claims,
        zones=tuple(sorted(frozenset.intersection(*zones))) if zones else None,
        disks=tuple(restriction.disk for restriction in restrictions if restriction.disk),
        problem=next((restriction.problem for restriction in restrictions if restriction.problem), ""),
    )


def _restriction(namespace: str, name: str, storage: Storage) -> _Restriction:
    claim = storage.claims.get((namespace, name)) if storage.claims is not None else None
    if claim is None:
        problem = "does not exist; create it" if storage.claims is not None else ""
    else:
        problem = claim.problem or ("" if claim.volume else _problem_of_class(claim, storage.classes))
    problem = f"PersistentVolumeClaim {namespace}/{name} {problem}" if problem and storage.complete else ""
    described = _class_of(claim, storage.classes or {}) if claim is not None else None
    if claim is not None and claim.volume:
        # Ignore the class of a claim with a volume: it may have been replaced since the volume was created.
        return _Restriction(problem, (storage.zones or {}).get(claim.volume))
    return _Restriction(problem, described.zones, described.disk) if described is not None else _Restriction(problem)


def _problem_of_class(claim: Claim, classes: Mapping[str, StorageClass] | None) -> str:
    """Return why a claim has no volume; empty if it is bound when its pod is scheduled, or if classes are unknown."""
    if classes is None:
        return ""
    described = _class_of(claim, classes)
    if described is not None or claim.storage_class == "":
        return "" if described is not None and described.waits else "is not bound to a volume yet"
    if claim.storage_class is None:
        return "names no StorageClass, and the cluster has no default; name one"
    return f"names StorageClass {claim.storage_class}, which does not exist"


def _class_of(claim: Claim, classes: Mapping[str, StorageClass]) -> StorageClass | None:
    if claim.storage_class is None:
        return next((class_ for class_ in classes.values() if class_.default), None)
    return classes.get(claim.storage_class)
