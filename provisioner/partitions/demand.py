"""Reads pods that request IPUs from the API server's JSON. Any JSON results in a `Pod` or in MalformedObject. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioner.kube import fields
from provisioner.kube.podspec import MATCHES_NOTHING, reader_of_pod, required_terms
from provisioner.model.fit import holds
from provisioner.model.workloads import Term
from provisioner.partitions import names
from provisioner.settings.partitions import LARGEST_SIZE, Server

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_DEFAULT_GRACE_SECONDS = 30
_RELEASED = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that requests IPUs by annotation, or that has the label of pods with IPUs (`names.POD_LABEL`)."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at: datetime
    #: Requested IPUs, a power of two; 0 if none are requested, or the number is invalid or too large.
    size: int
    #: Mistake in the pod, as a sentence; empty if none. Pods with a mistake get no partition.
    problem: str = ""
    #: Whether the provisioner's webhook prepared the pod, and not Graphcore's plugin, which adds no init container.
    injected: bool = False
    gated: bool = False
    #: Whether the pod has scheduling gates of other controllers.
    held_by_others: bool = False
    priority: int = 0
    node: str = ""
    #: Whether the phase is Succeeded or Failed: the pod no longer needs its partition.
    finished: bool = False
    #: metadata.deletionTimestamp: end of the grace period; None if the pod is not being deleted.
    deletion_deadline: datetime | None = None
    #: metadata.deletionGracePeriodSeconds: time that the pod has to end once it is being deleted.
    deletion_grace_seconds: float = 30.0
    #: Whether the pod has the annotation RELEASE: the partition may be removed before the pod ends.
    released: bool = False
    #: spec.activeDeadlineSeconds: maximum run time from the pod's start; None if unlimited.
    active_deadline_seconds: float | None = None
    #: spec.terminationGracePeriodSeconds: time that the pod has to end after its deadline.
    grace_seconds: float = 30.0
    #: status.startTime: time at which the kubelet accepted the pod.
    started_at: datetime | None = None
    #: HOST:PORT of the pod's V-IPU server, from annotations that are set when the gate is removed; empty until then.
    server_annotation: str = ""
    #: Id of the only partition that the pod uses, from an annotation set when the gate is removed; empty until then.
    partition_annotation: str = ""
    #: Whether the pod's main containers may use the partition: INIT_CONTAINER has succeeded, or the pod is not pending.
    begun: bool = False
    #: Servers (HOST:PORT) whose nodes the pod's nodeSelector and required node affinity allow; None if all or unknown.
    servers: frozenset[str] | None = None


class Wrong(Exception):  # noqa: N818 - a verdict on the pod, which callers report to its user
    """The request of a pod cannot be served. The text is a sentence for the author of the pod."""


def read_size(annotations: Mapping[str, str], *, largest: int) -> int | None:
    """Return the requested IPUs; None without annotation. Raises Wrong if the value is invalid or above `largest`."""
    asked = {key: _read(key, annotations[key]) for key in names.SIZE_ANNOTATIONS if key in annotations}
    if not asked:
        return None
    if len(set(asked.values())) > 1:
        both = " and ".join(f"{key} asks for {size}" for key, size in asked.items())
        raise Wrong(f"{both} IPUs: keep one of the annotations, or give both the same value.")
    key, size = next(iter(asked.items()))
    if size & (size - 1):
        below = 1 << (size.bit_length() - 1)
        nearest = f"{min(below, largest)}" if below * 2 > largest else f"{below} or {below * 2}"
        raise Wrong(f"{key} asks for {size} IPUs, and a partition has a power of two of them: ask for {nearest}.")
    if size > largest:
        raise Wrong(f"{key} asks for {size} IPUs, and the largest partition that is served has {largest}.")
    return size


def _read(key: str, value: object) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    raise Wrong(f'{key} is {fields.shown(value)}, but must be a number of IPUs that is a power of two, such as "4".')


def parse_pod(raw: object, *, servers: Sequence[Server] = (), largest_size: int = LARGEST_SIZE) -> Pod:
    """Read a pod. Raises MalformedObject if namespace, name or UID is missing, or deletionTimestamp is not a time."""
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity("pod", metadata)
    annotations = fields.mapping(metadata.get("annotations"))
    gates = {fields.name(gate.get("name")) for gate in fields.mappings(spec.get("schedulingGates"))}
    gated = names.SCHEDULING_GATE in gates
    size, allowed, problem = 0, None, ""
    try:
        size = read_size(annotations, largest=largest_size) or 0
        allowed = _allowed_of(spec, servers)
    except Wrong as wrong:
        problem = str(wrong)
    deadline_seconds = fields.count(spec.get("activeDeadlineSeconds"), default=0)
    grace_seconds = fields.count(spec.get("terminationGracePeriodSeconds"), default=_DEFAULT_GRACE_SECONDS)
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=fields.name(metadata.get("resourceVersion")),
        created_at=fields.parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
        size=size,
        problem=problem,
        injected=_is_injected(annotations, spec),
        gated=gated,
        held_by_others=bool(gates - {names.SCHEDULING_GATE}),
        priority=fields.priority(spec),
        node=fields.name(spec.get("nodeName")),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(f"pod {namespace}/{name}", metadata),
        deletion_grace_seconds=float(fields.count(metadata.get("deletionGracePeriodSeconds"), default=grace_seconds)),
        released=annotations.get(names.RELEASE) == _RELEASED,
        active_deadline_seconds=float(deadline_seconds) if deadline_seconds > 0 else None,
        grace_seconds=float(grace_seconds),
        started_at=fields.parse_timestamp(status.get("startTime")),
        # The controller sets these annotations when it removes the gate; before that, a user may have written them.
        server_annotation="" if gated else _server_annotation_of(annotations),
        partition_annotation="" if gated else fields.name(annotations.get(names.PARTITION_ID)),
        begun=not gated and _has_begun(status),
        servers=allowed,
    )


def _is_injected(annotations: dict[str, Any], spec: dict[str, Any]) -> bool:
    if annotations.get(names.STATUS) != names.INJECTED or names.MIRROR in annotations:
        return False
    return any(
        container.get("name") == names.INIT_CONTAINER for container in fields.mappings(spec.get("initContainers"))
    )


def _server_annotation_of(annotations: dict[str, Any]) -> str:
    host, port = (fields.name(annotations.get(key)) for key in (names.PARTITION_HOST, names.PARTITION_PORT))
    number = fields.index(port)
    return Server(host=host, port=number).address if host and number is not None else ""


def _has_begun(status: dict[str, Any]) -> bool:
    if status.get("phase") not in (None, "Pending"):
        return True
    for statuse in fields.mappings(status.get("initContainerStatuses")):
        if statuse.get("name") == names.INIT_CONTAINER:
            ended = fields.at(statuse, "state", "terminated")
            return ended.get("exitCode") == 0
    return False


def _allowed_of(spec: dict[str, Any], servers: Sequence[Server]) -> frozenset[str] | None:
    """Return the servers (HOST:PORT) whose nodes the pod may use; None if all. Raises Wrong for too large selectors."""
    reader = reader_of_pod()
    selector, terms = reader.labels("nodeSelector", spec.get("nodeSelector"), keep=()), required_terms(reader, spec)
    if reader.problem:
        raise Wrong(f"The pod is not served: {'; '.join(reader.problem)}.")
    allowed = frozenset(server.address for server in servers if _allows(server, selector, terms))
    return None if len(allowed) == len(servers) else allowed


def _allows(server: Server, selector: Mapping[str, str], terms: tuple[Term, ...]) -> bool:
    if terms == (MATCHES_NOTHING,):
        return False
    key, value = server.node_selector or ("", "")
    return selector.get(key, value) == value and (not terms or any(_may_match(term, key, value) for term in terms))


def _may_match(term: Term, key: str, value: str) -> bool:
    """Return whether a node with this value of the label `key`, and unknown other labels, may match a term."""
    return all(
        requirement.key != key or requirement.on_field or holds(requirement.operator, requirement.values, value)
        for requirement in term
    )
