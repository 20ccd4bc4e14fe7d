"""The answers to pods that are created or changed: what is injected, and why a pod is rejected.

Nobody gets around anything by what he writes into a pod. `graphcore.ai/status: injected` alone injects nothing and
keeps nothing from being injected; what the controller writes later is taken out of a new pod; and what decides on the
partition stays as it is as long as the pod is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from provisioner.admission.review import Answer, Request
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.partitions import names
from provisioner.partitions.admission.injection import (
    INIT_CONTAINER,
    OF_THE_CONTROLLER,
    Mode,
    Settings,
    inject,
    mounts_of,
)
from provisioner.partitions.demand import Wrong, read_size

#: Where annotations and labels of a pod can be changed: it, and its status. The API server ignores them elsewhere.
_STATUS = "status"
_CHANGING = ("", _STATUS)
#: Of what is wrong with a pod so much is said at once: it may have thousands of mounts.
_MOST_CONFLICTS = 10


_DAEMON_SET = "DaemonSet"
#: With these the cluster's DNS is not asked, unless dnsConfig names it.
_OTHER_DNS = ("Default", "None")


def conflicts(raw: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield why a pod cannot get its partition as it is."""
    metadata, spec = fields.mapping(raw.get("metadata")), fields.mapping(raw.get("spec"))
    containers = sum(len(fields.sequence(spec.get(part))) for part in ("initContainers", "containers"))
    if containers > bounds.IPU_CONTAINERS:
        yield f"it {bounds.too_many('containers', containers, bounds.IPU_CONTAINERS)}."
    if node := fields.text(spec.get("nodeName")):
        yield (
            f"spec.nodeName is {bounds.quoted(node)}, so nothing can hold the pod back until its partition is there; "
            "select the node by nodeSelector or node affinity instead."
        )
    if any(each.get("kind") == _DAEMON_SET for each in fields.mappings(metadata.get("ownerReferences"))):
        yield (
            "it is of a DaemonSet, and the nodes of its pods are chosen before their partitions are; use a Job, a "
            "StatefulSet or a Deployment."
        )
    if fields.mapping(spec.get("os")).get("name") == "windows":
        yield "spec.os.name is windows; IPUs are used on Linux."
    for place, container in enumerate(fields.mappings(spec.get("containers"))):
        if container.get("name") == INIT_CONTAINER:
            yield f"spec.containers[{place}] has the name of the init container, {INIT_CONTAINER}; call it otherwise."
    yield from _mounts(spec, settings)
    if settings.mode is Mode.COMPATIBLE:
        yield from _of_the_nodes_network(spec)


def doubts(raw: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield what may keep a pod from its partition, and is not against giving it one."""
    policy = fields.mapping(raw.get("spec")).get("dnsPolicy")
    host = urlsplit(settings.api_url).hostname or ""
    if policy in _OTHER_DNS and host.split(".")[2:3] == ["svc"]:
        yield (
            f"with dnsPolicy {policy} the name {host}, where its init container asks for its partition, is found only "
            "where the pod's DNS servers know the cluster's Services; leave dnsPolicy out, or name them in dnsConfig."
        )


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("initContainers", "containers"):
        for place, container in enumerate(fields.mappings(spec.get(part))):
            if (part, container.get("name")) != ("initContainers", INIT_CONTAINER):
                yield f"spec.{part}[{place}]", container


def _mounts(spec: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    volumes = {path: name for name, path in mounts_of(settings)}
    for where, container in _containers(spec):
        for mount in fields.mappings(container.get("volumeMounts")):
            path = fields.text(mount.get("mountPath")).rstrip("/")
            if path in volumes and mount.get("name") != volumes[path]:
                yield (
                    f"{where} mounts the volume {bounds.quoted(fields.text(mount.get('name')))} at {path}, where its "
                    "way to the IPUs is mounted; mount it elsewhere."
                )


def _of_the_nodes_network(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not go with hostNetwork, which is set."""
    why = "pods with IPUs have the node's network (hostNetwork)"
    if spec.get("hostUsers") is False:
        yield f"spec.hostUsers is false, and {why}; leave it out."
    used: Counter[tuple[str, str, str]] = Counter()
    for where, container in _containers(spec):
        alone = where.startswith("spec.init") and container.get("restartPolicy") != "Always"
        for port in fields.mappings(container.get("ports")):
            inside, outside = port.get("containerPort"), port.get("hostPort")
            if outside and outside != inside:
                yield (
                    f"{where} has containerPort {fields.shown(inside)} with hostPort {fields.shown(outside)}, and "
                    f"{why}; let the container listen on the hostPort, or leave the hostPort out."
                )
            protocol, address = (fields.text(port.get(key)) for key in ("protocol", "hostIP"))
            used[protocol or "TCP", address, fields.shown(inside)] += not alone
    for (protocol, _, number), count in used.items():
        if count > 1:
            yield f"{count} of its containers have the port {number} ({protocol}), and {why}; use one port for each."


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
