"""The answers to pods that are created or changed: what is injected, and why a pod is rejected.

Nobody gets around anything by what he writes into a pod. `graphcore.ai/status: injected` alone injects nothing and
keeps nothing from being injected; what the controller writes later is taken out of a new pod; and what decides on the
partition stays as it is as long as the pod is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from provisioner.admission.review import Answer, Request
from provisioner.kube import fields
from provisioner.partitions import names
from provisioner.partitions.admission.conflicts import conflicts, doubts
from provisioner.partitions.admission.injection import OF_THE_CONTROLLER, Mode, Settings, inject
from provisioner.partitions.request import Wrong, read_size

#: Where annotations and labels of a pod can be changed: it, and its status. The API server ignores them elsewhere.
_STATUS = "status"
_CHANGING = ("", _STATUS)
#: Of what is wrong with a pod so much is said at once: it may have thousands of mounts.
_MOST_CONFLICTS = 10


def review_pod(request: Request, settings: Settings) -> Answer:
    """Answer the review of a pod; whatever does not concern IPUs is admitted as it is."""
    if settings.mode is Mode.OFF or (settings.namespaces and request.namespace not in settings.namespaces):
        return Answer()
    if request.kind == "Binding":
        return _bound(request)
    if request.kind != "Pod" or request.subresource not in _CHANGING:
        return Answer()
    if request.operation == "CREATE":
        return _created(request, settings)
    if request.operation == "UPDATE":
        return _changed(request, settings)
    return Answer()


def _created(request: Request, settings: Settings) -> Answer:
    pod = request.object
    metadata = fields.mapping(pod.get("metadata"))
    annotations = fields.mapping(metadata.get("annotations"))
    title = _title(request, metadata)
    try:
        size = read_size(annotations, largest=settings.largest_size)
    except Wrong as error:
        return _static(title) if names.MIRROR in annotations else Answer(denied=f"{title}: {error}")
    if size is None:
        if names.STATUS in annotations:
            said = f"{names.STATUS} is written by the webhook, and the pod asks for no IPUs"
            return Answer(denied=f'{title}: {said}; leave it out, or add {names.IPUS}: "4" for four IPUs.')
        return Answer()
    if names.MIRROR in annotations:
        return _static(title)
    wrong = list(islice(conflicts(pod, settings), _MOST_CONFLICTS))
    if wrong:
        return Answer(denied=" ".join((f"{title} asks for IPUs:", *wrong)))
    warnings = [
        f"{title}: the annotation {each} is written by the controller, and was left out."
        for each in OF_THE_CONTROLLER
        if each in annotations
    ]
    warnings += [f"{title}: {doubt}" for doubt in doubts(pod, settings)]
    return Answer(patch=inject(pod, size, settings), warnings=tuple(warnings))


def _bound(request: Request) -> Answer:
    """Answer what binds a pod to a node: the API server adds its annotations and labels to those of the pod."""
    metadata = fields.mapping(request.object.get("metadata"))
    added = [
        *_differing({}, metadata, "annotations", (*OF_THE_CONTROLLER, *names.SIZE_ANNOTATIONS, names.STATUS)),
        *_differing({}, metadata, "labels", (names.POD_LABEL,)),
    ]
    if not added:
        return Answer()
    return Answer(
        denied=f"{_title(request, metadata)}: {' and '.join(added)} cannot be set by a Binding; leave it out of its "
        "metadata."
    )


def _static(title: str) -> Answer:
    """Answer what shows a static pod: it runs already, and rejecting it would only hide it."""
    return Answer(warnings=(f"{title} is a static pod, and gets no IPUs; create it through the API server.",))


def _changed(request: Request, settings: Settings) -> Answer:
    before, after = (fields.mapping(each.get("metadata")) for each in (request.old_object, request.object))
    title = _title(request, after)
    of_controller = _differing(before, after, "annotations", OF_THE_CONTROLLER)
    if of_controller and request.user != settings.controller:
        return Answer(
            denied=f"{title}: {' and '.join(of_controller)} can be changed by the controller alone; to give the "
            "partition back early, send DELETE to the REST API, or delete the pod."
        )
    # The API server ignores the rest of an object whose status is written.
    with_spec = request.subresource != _STATUS
    if with_spec and _gated(request.old_object) and not _gated(request.object) and request.user != settings.controller:
        return Answer(
            denied=f"{title}: the scheduling gate {names.SCHEDULING_GATE} is taken off by the controller when the "
            "pod's partition is there; without it the pod would run, and have no IPUs."
        )
    differing = [
        *_differing(before, after, "annotations", (*names.SIZE_ANNOTATIONS, names.STATUS)),
        *_differing(before, after, "labels", (names.POD_LABEL,)),
    ]
    if not differing:
        return Answer()
    named = " and ".join(differing)
    if fields.mapping(before.get("annotations")).get(names.STATUS) == names.INJECTED:
        return Answer(
            denied=f"{title}: {named} cannot be changed: the pod's partition was made for what it asked for when it "
            "was created; delete it, and create it with the annotation that you want."
        )
    present = fields.mapping(after.get("annotations")).keys() | fields.mapping(after.get("labels")).keys()
    if present.isdisjoint(differing):
        # Of a pod that was created without the webhook: it gets nothing either way.
        return Answer()
    return Answer(
        denied=f"{title}: {named} is read only when a pod is created; delete the pod, and create it with the "
        "annotation."
    )


def _gated(pod: Mapping[str, Any]) -> bool:
    gates = fields.mappings(fields.mapping(pod.get("spec")).get("schedulingGates"))
    return any(each.get("name") == names.SCHEDULING_GATE for each in gates)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any], part: str, keys: Iterable[str]) -> list[str]:
    old, new = (fields.mapping(each.get(part)) for each in (before, after))
    return [key for key in keys if old.get(key) != new.get(key)]


def _title(request: Request, metadata: Mapping[str, Any]) -> str:
    name = request.name or fields.name(metadata.get("name")) or f"{fields.name(metadata.get('generateName'))}*"
    return f"Pod {request.namespace}/{name}"
