"""Turn raw JSON of pods into demand, for the cache and for live reads.

Total: whatever JSON comes in, a record or MalformedObject comes out. A field of a wrong type counts as absent, except
where a guess would be dangerous: an identity, a time of deletion. What a pod asks for wrongly is its `problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from provisioner.kube import fields
from provisioner.kube.quantities import parse_timestamp
from provisioner.partitions import handover, names, request
from provisioner.partitions.demand import Pod, Server

#: Where the settings do not say what the largest partition is.
_LARGEST_SIZE = 1024
_DEFAULT_GRACE_SECONDS = 30
#: The API has no higher priority.
_HIGHEST_PRIORITY = 2_000_001_000
_RELEASED = "true"


def parse_pod(raw: object, *, servers: Sequence[Server] = (), largest_size: int = _LARGEST_SIZE) -> Pod:
    """Read a pod; MalformedObject where namespace, name or UID is missing, or the time of its deletion is not one."""
    whole = fields.mapping(raw)
    metadata, spec, status = (fields.mapping(whole.get(part)) for part in ("metadata", "spec", "status"))
    namespace, name, uid = fields.identity("pod", metadata)
    annotations = fields.mapping(metadata.get("annotations"))
    gates = {fields.name(gate.get("name")) for gate in fields.mappings(spec.get("schedulingGates"))}
    gated = names.SCHEDULING_GATE in gates
    size, problem = _asked_of(annotations, largest_size)
    grace_seconds = fields.count(spec.get("terminationGracePeriodSeconds"), default=_DEFAULT_GRACE_SECONDS)
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=fields.name(metadata.get("resourceVersion")),
        created_at=parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
        size=size,
        problem=problem,
        injected=_is_injected(annotations, spec),
        gated=gated,
        held_by_others=bool(gates - {names.SCHEDULING_GATE}),
        priority=_priority_of(spec.get("priority")),
        node=fields.name(spec.get("nodeName")),
        finished=status.get("phase") in ("Succeeded", "Failed"),
        deletion_deadline=fields.deletion_deadline(f"pod {namespace}/{name}", metadata),
        deletion_grace_seconds=float(fields.count(metadata.get("deletionGracePeriodSeconds"), default=grace_seconds)),
        released=annotations.get(names.RELEASE) == _RELEASED,
        active_deadline_seconds=_active_deadline_of(spec),
        grace_seconds=float(grace_seconds),
        started_at=parse_timestamp(status.get("startTime")),
        # They are written when the gate is opened; before that they are not ours.
        told_server="" if gated else _told_server_of(annotations),
        told_partition="" if gated else fields.name(annotations.get(names.PARTITION_ID)),
        begun=not gated and _has_begun(status),
        servers=_allowed_of(spec, servers),
    )


def _is_injected(annotations: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether admission has prepared a pod. Those of Graphcore's plugin have its annotation and label, too.

    A static pod is admitted whatever it says of itself.
    """
    if annotations.get(names.STATUS) != names.INJECTED or names.MIRROR in annotations:
        return False
    return any(each.get("name") == handover.INIT_CONTAINER for each in fields.mappings(spec.get("initContainers")))


def _asked_of(annotations: dict[str, Any], largest_size: int) -> tuple[int, str]:
    try:
        return request.read_size(annotations, largest=largest_size) or 0, ""
    except request.Wrong as wrong:
        return 0, str(wrong)


def _priority_of(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        return 0
    return min(max(raw, -_HIGHEST_PRIORITY), _HIGHEST_PRIORITY)


def _active_deadline_of(spec: dict[str, Any]) -> float | None:
    seconds = fields.count(spec.get("activeDeadlineSeconds"), default=0)
    return float(seconds) if seconds > 0 else None


def _told_server_of(annotations: dict[str, Any]) -> str:
    host, port = (fields.name(annotations.get(key)) for key in (names.PARTITION_HOST, names.PARTITION_PORT))
    number = fields.index(port)
    return Server(host=host, port=number).address if host and number is not None else ""


def _has_begun(status: dict[str, Any]) -> bool:
    if status.get("phase") not in (None, "Pending"):
        return True
    for each in fields.mappings(status.get("initContainerStatuses")):
        if each.get("name") == handover.INIT_CONTAINER:
            ended = fields.mapping(fields.mapping(each.get("state")).get("terminated"))
            return ended.get("exitCode") == 0
    return False


def _allowed_of(spec: dict[str, Any], servers: Sequence[Server]) -> frozenset[str] | None:
    """Return the servers whose nodes a pod may be scheduled to, by the one label that is known of them; None: all."""
    selector = fields.mapping(spec.get("nodeSelector"))
    affinity = fields.mapping(fields.mapping(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not selector and not isinstance(required, dict):
        return None
    terms = fields.mappings(required.get("nodeSelectorTerms")) if isinstance(required, dict) else None
    allowed = frozenset(server.address for server in servers if _allows(server, selector, terms))
    return None if len(allowed) == len(servers) else allowed


def _allows(server: Server, selector: dict[str, Any], terms: Iterable[dict[str, Any]] | None) -> bool:
    label = server.node_selector
    if label is not None and selector.get(label[0], label[1]) != label[1]:
        return False
    return terms is None or any(_may_match(term, label) for term in terms)


def _may_match(term: dict[str, Any], label: tuple[str, str] | None) -> bool:
    """Whether nodes with this label may match a term; one without any requirement matches none."""
    expressions = fields.mappings(term.get("matchExpressions"))
    if not expressions and not fields.mappings(term.get("matchFields")):
        return False
    return label is None or all(_holds(each, label[1]) for each in expressions if each.get("key") == label[0])


def _holds(expression: dict[str, Any], value: str) -> bool:
    values = fields.sequence(expression.get("values"))
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "DoesNotExist":
            return False
        case "Gt" | "Lt" as operator:
            bound = fields.index(values[0]) if values and isinstance(values[0], str) else None
            number = fields.index(value)
            if number is None or bound is None:
                return False
            return number > bound if operator == "Gt" else number < bound
    return True
