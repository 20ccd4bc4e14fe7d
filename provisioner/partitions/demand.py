"""What pods ask of V-IPU servers, read from their raw JSON: a record or MalformedObject, whatever JSON comes in."""

from __future__ import annotations

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
    """A pod that asks for IPUs, or that did: every pod with one of the annotations or with the label."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at: datetime
    #: IPUs: a power of two; 0 where `problem` says what is wrong with it.
    size: int
    #: Why it cannot be served as it is, as a sentence; empty: it can.
    problem: str = ""
    #: It has been injected, and not by Graphcore's plugin: our init container is there.
    injected: bool = False
    #: It has our scheduling gate still.
    gated: bool = False
    #: Other scheduling gates than ours hold it.
    held_by_others: bool = False
    priority: int = 0
    node: str = ""
    #: Succeeded or Failed: it needs its partition no more.
    finished: bool = False
    #: metadata.deletionTimestamp: when its grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None = None
    #: metadata.deletionGracePeriodSeconds: what it may take to end, once it is being deleted.
    deletion_grace_seconds: float = 30.0
    #: It gives its partition back before it ends.
    released: bool = False
    #: spec.activeDeadlineSeconds: the longest that it runs, from its start on; None: for ever.
    active_deadline_seconds: float | None = None
    #: spec.terminationGracePeriodSeconds: what it may take to end, past its deadline.
    grace_seconds: float = 30.0
    #: status.startTime: when the kubelet took it.
    started_at: datetime | None = None
    #: HOST:PORT that it was told when its gate was opened (annotations); empty: it was told nothing yet.
    told_server: str = ""
    #: Id of the partition that it was told then; it uses no other.
    told_partition: str = ""
    #: Its init container has ended well, so that the others may use its partition.
    begun: bool = False
    #: Those (HOST:PORT) whose nodes its nodeSelector and its required node affinity allow; None: all.
    servers: frozenset[str] | None = None


class Wrong(Exception):  # noqa: N818 - it is a verdict on what somebody wrote, which callers pass on to them
    """What a pod asks for cannot be served; its text is a sentence for whoever wrote it."""


def read_size(annotations: Mapping[str, str], *, largest: int) -> int | None:
    """Return the IPUs that a pod asks for, None for none; Wrong where they are no power of two up to `largest`."""
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
    """Read a pod; MalformedObject where namespace, name or UID is missing, or the time of its deletion is not one."""
    whole = fields.mapping(raw)
    metadata, spec, status = (fields.mapping(whole.get(part)) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity("pod", metadata)
    annotations = fields.mapping(metadata.get("annotations"))
    gates = {fields.name(gate.get("name")) for gate in fields.mappings(spec.get("schedulingGates"))}
    gated = names.SCHEDULING_GATE in gates
    size, allowed, problem, priority = 0, None, "", spec.get("priority")
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
        priority=priority if type(priority) is int else 0,
        node=fields.name(spec.get("nodeName")),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(f"pod {namespace}/{name}", metadata),
        deletion_grace_seconds=float(fields.count(metadata.get("deletionGracePeriodSeconds"), default=grace_seconds)),
        released=annotations.get(names.RELEASE) == _RELEASED,
        active_deadline_seconds=float(deadline_seconds) if deadline_seconds > 0 else None,
        grace_seconds=float(grace_seconds),
        started_at=fields.parse_timestamp(status.get("startTime")),
        # They are written when the gate is opened; before that they are not ours.
        told_server="" if gated else _told_server_of(annotations),
        told_partition="" if gated else fields.name(annotations.get(names.PARTITION_ID)),
        begun=not gated and _has_begun(status),
        servers=allowed,
    )


def _is_injected(annotations: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether our admission, and not Graphcore's plugin, has prepared a pod; a static one is never prepared."""
    if annotations.get(names.STATUS) != names.INJECTED or names.MIRROR in annotations:
        return False
    return any(each.get("name") == names.INIT_CONTAINER for each in fields.mappings(spec.get("initContainers")))


def _told_server_of(annotations: dict[str, Any]) -> str:
    host, port = (fields.name(annotations.get(key)) for key in (names.PARTITION_HOST, names.PARTITION_PORT))
    number = fields.index(port)
    return Server(host=host, port=number).address if host and number is not None else ""


def _has_begun(status: dict[str, Any]) -> bool:
    if status.get("phase") not in (None, "Pending"):
        return True
    for each in fields.mappings(status.get("initContainerStatuses")):
        if each.get("name") == names.INIT_CONTAINER:
            ended = fields.mapping(fields.mapping(each.get("state")).get("terminated"))
            return ended.get("exitCode") == 0
    return False


def _allowed_of(spec: dict[str, Any], servers: Sequence[Server]) -> frozenset[str] | None:
    """Return the servers to whose nodes a pod may be scheduled, by the one label that is known of them; None if all.

    Raises Wrong if the pod's requirements exceed a bound.
    """
    reader = reader_of_pod()
    selector, terms = reader.labels("nodeSelector", spec.get("nodeSelector"), keep=()), required_terms(reader, spec)
    if reader.problem:
        raise Wrong(f"The pod is not served: {reader.problem}.")
    allowed = frozenset(server.address for server in servers if _allows(server, selector, terms))
    return None if len(allowed) == len(servers) else allowed


def _allows(server: Server, selector: Mapping[str, str], terms: tuple[Term, ...]) -> bool:
    if terms == (MATCHES_NOTHING,):
        return False
    key, value = server.node_selector or ("", "")
    return selector.get(key, value) == value and (not terms or any(_may_match(term, key, value) for term in terms))


def _may_match(term: Term, key: str, value: str) -> bool:
    """Return whether nodes may match a term that have this value of the label `key`, and any other labels."""
    return all(each.key != key or each.on_field or holds(each.operator, each.values, value) for each in term)
