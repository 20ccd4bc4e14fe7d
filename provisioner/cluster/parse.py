"""Turn raw JSON of pods, JobSets and nodes into the narrow records of the model.

Total: whatever JSON comes in, a record, None ("not one of ours") or MalformedObject comes out. A field of a wrong type
counts as absent, except where a guess would be dangerous: an identity, or an amount of chips, CPU or memory. The API
server has validated the objects; nothing here checks them again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

from provisioner import constants
from provisioner.cluster.quantities import ceil, parse_quantity, parse_timestamp
from provisioner.model.capacity import Node, PoolName, Taint
from provisioner.model.workloads import (
    Expression,
    JobKey,
    JobSet,
    JobSetUid,
    Pod,
    ReplicatedJob,
    Requirements,
    Term,
    Toleration,
    job_key,
)

#: A selector term without requirements matches no node at all; the scheduler's rule, in the model's words.
_MATCHES_NOTHING: Term = (Expression(key="metadata.name", operator="In", values=(), on_field=True),)
_LARGEST_INDEX_DIGITS = 9
_JOB = ("batch/v1", "Job")


class MalformedObject(ValueError):  # noqa: N818 - it names what the object is
    """An object that can't be read without guessing; the text names it, the value, and what is wrong."""


def parse_pod(raw: object) -> Pod | None:
    """Read a pod; None unless it belongs to a JobSet and asks for chips."""
    metadata = _dict(_dict(raw).get("metadata"))
    labels = _strings(metadata.get("labels"))
    annotations = _strings(metadata.get("annotations"))

    def marked(key: str) -> str:
        return labels.get(key) or annotations.get(key, "")

    jobset_name = marked(constants.JOBSET_NAME)
    if not jobset_name:
        return None
    spec = _dict(_dict(raw).get("spec"))
    namespace, name, uid = _identity("pod", metadata)
    what = f"pod {namespace}/{name}"
    requirements = _requirements(what, spec, metadata)
    if requirements.chips == 0:
        return None
    status = _dict(_dict(raw).get("status"))
    phase = _string(status.get("phase")) or "Pending"
    since, words = None, ""
    if phase == "Pending":
        for condition in _dicts(status.get("conditions")):
            if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
                continue
            if condition.get("reason") == "Unschedulable":
                since = parse_timestamp(condition.get("lastTransitionTime")) or parse_timestamp(
                    metadata.get("creationTimestamp")
                )
                words = _string(condition.get("message"))
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        jobset_name=_shared(jobset_name),
        jobset_uid=_shared(marked(constants.JOBSET_UID)),
        job_key=job_key_of(namespace, metadata),
        completion_index=_index(marked(constants.COMPLETION_INDEX)),
        phase=_shared(phase),
        node_name=_string(spec.get("nodeName")),
        requirements=requirements,
        unschedulable_since=since,
        unschedulable_message=words,
        deletion_deadline=_deletion(what, metadata),
    )


def parse_jobset(raw: object) -> JobSet:
    """Read a JobSet of API version v1alpha2."""
    metadata = _dict(_dict(raw).get("metadata"))
    spec = _dict(_dict(raw).get("spec"))
    namespace, name, uid = _identity("JobSet", metadata)
    what = f"JobSet {namespace}/{name}"
    jobs = []
    for entry in _dicts(spec.get("replicatedJobs")):
        job_spec = _dict(_dict(entry.get("template")).get("spec"))
        template = _dict(job_spec.get("template"))
        jobs.append(
            ReplicatedJob(
                name=_string(entry.get("name")),
                replicas=_count(entry.get("replicas"), default=1),
                parallelism=_count(job_spec.get("parallelism"), default=1),
                template=_requirements(
                    what,
                    _dict(template.get("spec")),
                    _dict(template.get("metadata")),
                ),
            )
        )
    return JobSet(
        namespace=namespace,
        name=name,
        uid=JobSetUid(uid),
        replicated_jobs=tuple(jobs),
        suspended=spec.get("suspend") is True,
        terminal_state=_terminal_state(_dict(_dict(raw).get("status"))),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=_strings(metadata.get("labels")),
        annotations=_ours(metadata.get("annotations")),
        managed_by=_string(spec.get("managedBy")),
    )


def parse_node(raw: object) -> Node | None:
    """Read a node; None unless GKE's label says which node pool it belongs to."""
    metadata = _dict(_dict(raw).get("metadata"))
    labels = _strings(metadata.get("labels"))
    pool_name = labels.get(constants.NODE_POOL, "")
    if not pool_name:
        return None
    name = _string(metadata.get("name"))
    what = f"node {name}"
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    if not name or created_at is None:
        raise MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{_show(metadata.get('creationTimestamp'))} is no RFC 3339 time"
        )
    spec = _dict(_dict(raw).get("spec"))
    status = _dict(_dict(raw).get("status"))
    allocatable = _dict(status.get("allocatable"))
    chips = _amount(what, "allocatable", constants.TPU_RESOURCE, allocatable)
    return Node(
        name=name,
        uid=_string(metadata.get("uid")),
        pool_name=PoolName(_shared(pool_name)),
        labels=labels,
        taints=tuple(
            Taint(
                key=_string(taint.get("key")),
                value=_string(taint.get("value")),
                effect=_string(taint.get("effect")),
            )
            for taint in _dicts(spec.get("taints"))
        ),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in _dicts(status.get("conditions"))
        ),
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=_strings(metadata.get("annotations")).get(constants.CORDONED) == "true",
        # A device plugin reports whole devices; a fraction could only be a promise that no pod can use.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(_amount(what, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(_amount(what, "allocatable", "memory", allocatable)),
        provider_id=_string(spec.get("providerID")),
        created_at=created_at,
    )


def pod_requests(what: str, spec: object, resource: str) -> Decimal:
    """Return how much of a resource the scheduler reserves for a pod.

    Containers run together with the sidecars (init containers that restart always); each other init container runs
    alone beside the sidecars that started before it. The larger of the two counts, plus the runtime's overhead.
    """
    fields = _dict(spec)
    sidecars = Decimal(0)
    while_starting = Decimal(0)
    for container in _dicts(fields.get("initContainers")):
        amount = _container_request(what, container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            while_starting = max(while_starting, sidecars)
        else:
            while_starting = max(while_starting, sidecars + amount)
    running = sidecars
    for container in _dicts(fields.get("containers")):
        running += _container_request(what, container, resource)
    total = max(running, while_starting)
    pod_level = _dict(_dict(fields.get("resources")).get("requests"))
    if resource in pod_level:
        total = _amount(what, "pod-level request", resource, pod_level)
    return total + _amount(what, "overhead", resource, _dict(fields.get("overhead")))


def job_key_of(namespace: str, metadata: dict[str, Any]) -> JobKey:
    """Return the key of the Job that controls a pod; empty where no Job does.

    The labels say the same, but whoever makes a pod writes its labels; the reference is what the Job controller and the
    garbage collector go by.
    """
    for reference in _dicts(metadata.get("ownerReferences")):
        if reference.get("controller") is True and (reference.get("apiVersion"), reference.get("kind")) == _JOB:
            name = _string(reference.get("name"))
            return job_key(namespace, name) if name else JobKey("")
    return JobKey("")


def requested_chips(what: str, spec: object) -> int:
    """Return the chips that a pod asks for; MalformedObject where they are no whole number."""
    chips = pod_requests(what, spec, constants.TPU_RESOURCE)
    if chips != chips.to_integral_value():
        raise MalformedObject(f"{what}: {constants.TPU_RESOURCE} is {chips}: chips are whole; ask for a whole number")
    return int(chips)


def _container_request(what: str, container: dict[str, Any], resource: str) -> Decimal:
    resources = _dict(container.get("resources"))
    requests = _dict(resources.get("requests"))
    if requests.get(resource) is not None:
        return _amount(what, "request", resource, requests)
    return _amount(what, "limit", resource, _dict(resources.get("limits")))


def _amount(what: str, role: str, resource: str, amounts: dict[str, Any]) -> Decimal:
    raw = amounts.get(resource)
    if raw is None:
        return Decimal(0)
    value = parse_quantity(raw)
    if value is None:
        raise MalformedObject(f"{what}: {role} {resource} is {_show(raw)}: no quantity; write it like 4, 1500m or 2Gi")
    return value


def _requirements(what: str, spec: dict[str, Any], metadata: dict[str, Any]) -> Requirements:
    affinity = _dict(_dict(spec.get("affinity")).get("nodeAffinity"))
    return Requirements(
        chips=requested_chips(what, spec),
        cpu_millicores=ceil(pod_requests(what, spec, "cpu") * 1000),
        memory_bytes=ceil(pod_requests(what, spec, "memory")),
        node_selector=_strings(spec.get("nodeSelector")),
        affinity_terms=_terms(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")),
        tolerations=tuple(
            Toleration(
                key=_string(entry.get("key")),
                operator=_string(entry.get("operator")) or "Equal",
                value=_string(entry.get("value")),
                effect=_string(entry.get("effect")),
            )
            for entry in _dicts(spec.get("tolerations"))
        ),
        labels=_strings(metadata.get("labels")),
        annotations=_ours(metadata.get("annotations"), constants.SLICE_TOPOLOGY),
    )


def _terms(required: object) -> tuple[Term, ...]:
    """Read required node affinity; a term that matches nothing goes, unless then no term were left."""
    if not isinstance(required, dict):
        return ()
    terms = []
    for entry in _dicts(required.get("nodeSelectorTerms")):
        term = (
            *_expressions(entry.get("matchExpressions"), on_field=False),
            *_expressions(entry.get("matchFields"), on_field=True),
        )
        if term:
            terms.append(term)
    return tuple(terms) or (_MATCHES_NOTHING,)


def _expressions(raw: object, *, on_field: bool) -> Iterator[Expression]:
    for entry in _dicts(raw):
        values = entry.get("values")
        yield Expression(
            key=_string(entry.get("key")),
            operator=_string(entry.get("operator")),
            values=tuple(
                _shared(value) for value in (values if isinstance(values, list) else ()) if isinstance(value, str)
            ),
            on_field=on_field,
        )


def _terminal_state(status: dict[str, Any]) -> str:
    """Read how a JobSet ended; releases before terminalState only have conditions."""
    state = _string(status.get("terminalState"))
    if state:
        return state
    for condition in _dicts(status.get("conditions")):
        if condition.get("type") in ("Completed", "Failed") and condition.get("status") == "True":
            return _string(condition["type"])
    return ""


def _identity(kind: str, metadata: dict[str, Any]) -> tuple[str, str, str]:
    namespace, name, uid = (_string(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not (namespace and name and uid):
        raise MalformedObject(
            f"{kind} {namespace or '?'}/{name or '?'} with uid {uid or '?'}: namespace, name or uid is missing"
        )
    return _shared(namespace), name, uid


def _deletion(what: str, metadata: dict[str, Any]) -> datetime | None:
    raw = metadata.get("deletionTimestamp")
    if raw is None:
        return None
    deadline = parse_timestamp(raw)
    if deadline is None:
        raise MalformedObject(f"{what}: deletionTimestamp {_show(raw)} is no RFC 3339 time")
    return deadline


def _index(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _LARGEST_INDEX_DIGITS:
        return int(text)
    return None


def _ours(raw: object, *also: str) -> dict[str, str]:
    return {
        key: value
        for key, value in _strings(raw).items()
        if key.startswith(constants.OUR_ANNOTATION_PREFIX) or key in also
    }


def _count(raw: object, *, default: int) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        return default
    return max(raw, 0)


def _string(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _strings(raw: object) -> dict[str, str]:
    """Keep the string entries of a map."""
    if not isinstance(raw, dict):
        return {}
    return {
        _shared(key): _shared(value) for key, value in raw.items() if isinstance(key, str) and isinstance(value, str)
    }


def _dict(raw: object) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _dicts(raw: object) -> Iterable[dict[str, Any]]:
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else ()


@functools.lru_cache(maxsize=8192)
def _shared(text: str) -> str:
    """Return one and the same string for equal texts: thousands of pods carry the same few.

    Not sys.intern, which in some releases of Python never frees what it was given.
    """
    return text


def _show(raw: object) -> str:
    if isinstance(raw, (dict, list)):
        return f"a {type(raw).__name__}"
    text = repr(raw)
    return text if len(text) <= 60 else text[:59] + "…"
