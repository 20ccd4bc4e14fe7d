"""Adds marks to new pods, or an affinity that excludes assigned and free pools. Pure.

Used on clusters without MutatingAdmissionPolicy. The policy in deploy/components/placement makes the same changes. Not
handled: pods without chips in namespaces with `resource.kubernetes.io/admin-access`; the webhook never receives them.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from provisioner import constants
from provisioner.admission.review import Answer, Operation, Request, pointer
from provisioner.kube import fields, podspec
from provisioner.model.placement import labels_of, slice_key
from provisioner.workloads.kind import controller_of
from provisioner.workloads.leaderworkerset import is_excluded

#: Formats of a topology and of an amount of chips. The admission policy reads the same formats.
_TOPOLOGY, _NUMBER = re.compile("[0-9]{1,4}(x[0-9]{1,4}){1,2}"), re.compile("[0-9]{1,6}")
_KEPT_OFF = {"key": constants.SLICE, "operator": "DoesNotExist"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = ("spec", "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")


def review_placement(request: Request, *, assigned: bool) -> Answer:
    """Return the changes of a new pod; `assigned` is whether the pods of its namespace get marks."""
    if (request.kind, request.operation, request.subresource) != ("Pod", "CREATE", ""):
        return Answer()
    metadata, spec = (fields.mapping(request.object.get(key)) for key in ("metadata", "spec"))
    chips = _requests_chips(spec)
    devices = chips or podspec.uses_claims(spec)
    if not (devices or _may_lead(metadata, spec)):
        return Answer()
    if assigned and _is_served(metadata, spec, chips=chips, leads=not devices):
        key = slice_key(fields.mapping(metadata.get("labels")), _stateful_set_of(metadata, spec))
        return Answer(patch=tuple(_marks(spec, labels_of(key, request.namespace))))
    return Answer(patch=tuple(_affinity(spec)))


def _stateful_set_of(metadata: dict[str, Any], spec: dict[str, Any]) -> str:
    """Return the UID of a pod's StatefulSet; empty without one, without topology, or if the pod fills the topology."""
    topology = fields.text(fields.mapping(spec.get("nodeSelector")).get(constants.TPU_TOPOLOGY))
    if not _TOPOLOGY.fullmatch(topology) or math.prod(map(int, topology.split("x"))) == _limit_of_chips(spec):
        return ""
    owner = controller_of(metadata)
    return owner.uid if owner is not None and owner.kind == "StatefulSet" else ""


def _limit_of_chips(spec: dict[str, Any]) -> int:
    limits = (fields.at(container, "resources", "limits") for container in fields.mappings(spec.get("containers")))
    amounts = (str(limit.get(constants.TPU_RESOURCE, "")) for limit in limits)
    return sum(int(amount) for amount in amounts if _NUMBER.fullmatch(amount))


def _requests_chips(spec: dict[str, Any]) -> bool:
    try:
        return podspec.counted_chips("pod", spec) > 0
    except fields.MalformedObject:
        # The requested amount is invalid, so the API server will reject the pod.
        return True


def _may_lead(metadata: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Return whether a pod without chips may be the leader of a LeaderWorkerSet on a host of its slice."""
    of_set = constants.LWS_NAME in fields.mapping(metadata.get("labels"))
    on_slice = constants.TPU_ACCELERATOR in fields.mapping(spec.get("nodeSelector"))
    return of_set and on_slice and not is_excluded(metadata)


def _is_served(metadata: dict[str, Any], spec: dict[str, Any], *, chips: bool, leads: bool) -> bool:
    """Return whether the provisioner can serve a pod. With marks, an unserved pod would never be bound."""
    labels, annotations = (fields.mapping(metadata.get(key)) for key in ("labels", "annotations"))
    selector = fields.mapping(spec.get("nodeSelector"))
    return (
        constants.TPU_TOPOLOGY in selector
        and (chips or leads or (podspec.has_claims(spec) and constants.TPU_ACCELERATOR in selector))
        and "true" not in (labels.get(constants.DISABLE), annotations.get(constants.DISABLE))
        and constants.SLICE_TOPOLOGY not in annotations
    )


def _marks(spec: dict[str, Any], marks: Mapping[str, str]) -> Iterator[Operation]:
    selector = spec.get("nodeSelector")
    if not selector:
        yield Operation(op="add", path=pointer("spec", "nodeSelector"), value=dict(marks))
        return
    for key, value in marks.items():
        if selector.get(key) != value:
            yield Operation(op="add", path=pointer("spec", "nodeSelector", key), value=value)


def _affinity(spec: dict[str, Any]) -> Iterator[Operation]:
    """Yield the changes that make the required node affinity exclude assigned and free pools."""
    affinity = fields.mapping(spec.get("affinity"))
    node_affinity = fields.mapping(affinity.get("nodeAffinity"))
    required = node_affinity.get(_REQUIRED)
    if required is None:
        value = {**node_affinity, _REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [_KEPT_OFF]}]}}
        affinity = {**affinity, "nodeAffinity": value}
        yield Operation(op="add", path=pointer("spec", "affinity"), value=affinity)
        return
    for index, term in enumerate(fields.sequence(fields.mapping(required).get("nodeSelectorTerms"))):
        expressions = fields.sequence(fields.mapping(term).get("matchExpressions"))
        excluded = any(_KEPT_OFF.items() <= fields.mapping(expression).items() for expression in expressions)
        # An empty term is not changed: it matches no node, but with an added expression it would match nodes.
        if (expressions or fields.mapping(term).get("matchFields")) and not excluded:
            path = pointer(*_TERMS, index, "matchExpressions")
            yield Operation(op="add", path=path, value=[*expressions, _KEPT_OFF])
