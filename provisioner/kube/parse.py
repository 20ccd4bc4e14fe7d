"""Turn raw JSON of pods, JobSets and nodes into the narrow records of the model.

Total: whatever JSON comes in, a record, None ("not one of ours") or MalformedObject comes out. A field of a wrong type
counts as absent, except where a guess would be dangerous: an identity, or an amount of chips, CPU or memory. The API
server has validated the objects; nothing here checks them again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from provisioner import constants
from provisioner.kube.bounded import BoundedReader, shared
from provisioner.kube.quantities import ceil, parse_quantity, parse_timestamp
from provisioner.model import bounds
from provisioner.model.capacity import Node, PoolName, Taint
from provisioner.model.workloads import (
    Expression,
    GroupKey,
    Pod,
    PodGroup,
    Requirements,
    Term,
    Toleration,
    Workload,
    WorkloadUid,
    group_key,
)

#: A selector term without requirements matches no node at all; the scheduler's rule, in the model's words.
_MATCHES_NOTHING: Term = (Expression(key="metadata.name", operator="In", values=(), on_field=True),)
_LARGEST_INDEX_DIGITS = 9
_JOB = ("batch/v1", "Job")
#: Counts are int32 in the API.
_LARGEST_COUNT = 2**31 - 1
#: What a decision needs of an object that is refused for having too many labels or selectors.
_KEPT_LABELS = (constants.DISABLE, constants.JOB_NAME)
_KEPT_JOBSET_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)
_KEPT_SELECTORS = (constants.TPU_ACCELERATOR, constants.TPU_TOPOLOGY)


_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)


class MalformedObject(ValueError):  # noqa: N818 - it names what the object is
    """An object that can't be read without guessing; the text names it, the value, and what is wrong."""


def parse_pod(raw: object) -> Pod | None:
    """Read a pod; None unless it belongs to a JobSet and asks for chips."""
    metadata = _dict(_dict(raw).get("metadata"))
    labels = _dict(metadata.get("labels"))
    annotations = _dict(metadata.get("annotations"))

    def marked(key: str) -> str:
        return _name(labels.get(key)) or _name(annotations.get(key))

    workload_name = marked(constants.JOBSET_NAME)
    if not workload_name:
        return None
    spec = _dict(_dict(raw).get("spec"))
    namespace, name, uid = _identity("pod", metadata)
    what = f"pod {namespace}/{name}"
    requirements = _requirements(what, spec, metadata)
    if requirements.chips == 0:
        return None
    status = _dict(_dict(raw).get("status"))
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    phase = _name(status.get("phase")) or "Pending"
    since, words = None, ""
    if phase == "Pending":
        for condition in _dicts(status.get("conditions")):
            if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
                continue
            if condition.get("reason") == "Unschedulable":
                since = parse_timestamp(condition.get("lastTransitionTime")) or created_at
                words = bounds.cut(_string(condition.get("message")), bounds.SCHEDULER_MESSAGE)
    return Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        workload_name=workload_name,
        workload_uid=marked(constants.JOBSET_UID),
        group_key=group_key_of(namespace, metadata),
        completion_index=_index(marked(constants.COMPLETION_INDEX)),
        phase=phase,
        node_name=_name(spec.get("nodeName")),
        requirements=requirements,
        created_at=created_at or _UNKNOWN_TIME,
        unschedulable_since=since,
        unschedulable_message=words,
        deletion_deadline=_deletion(what, metadata),
    )


def parse_jobset(raw: object) -> Workload:
    """Read a JobSet of API version v1alpha2."""
    metadata = _dict(_dict(raw).get("metadata"))
    spec = _dict(_dict(raw).get("spec"))
    namespace, name, uid = _identity("JobSet", metadata)
    what = f"JobSet {namespace}/{name}"
    reader = BoundedReader("a JobSet", most_characters=bounds.JOBSET)
    labels = reader.labels("labels", metadata.get("labels"), keep=_KEPT_JOBSET_LABELS)
    annotations = reader.annotations(metadata.get("annotations"), keep=constants.READ_ANNOTATIONS)
    jobs = []
    entries = _dicts(spec.get("replicatedJobs"))
    if len(entries) > bounds.REPLICATED_JOBS:
        reader.refuse(f"spec.replicatedJobs {bounds.too_many('entries', len(entries), bounds.REPLICATED_JOBS)}")
    for entry in itertools.islice(entries, bounds.REPLICATED_JOBS):
        job_spec = _dict(_dict(entry.get("template")).get("spec"))
        template = _dict(job_spec.get("template"))
        template_reader = _reader_of_pod(within=reader)
        jobs.append(
            PodGroup(
                name=template_reader.text("the name of a replicated job", entry.get("name"), most=bounds.OBJECT_NAME),
                replicas=_count(entry.get("replicas"), default=1),
                parallelism=_count(job_spec.get("parallelism"), default=1),
                template=_requirements(
                    what,
                    _dict(template.get("spec")),
                    _dict(template.get("metadata")),
                    reader=template_reader,
                ),
            )
        )
    return Workload(
        namespace=namespace,
        name=name,
        uid=WorkloadUid(uid),
        groups=tuple(jobs),
        suspended=spec.get("suspend") is True,
        terminal_state=_terminal_state(_dict(_dict(raw).get("status"))),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=labels,
        annotations=annotations,
        managed_by=_name(spec.get("managedBy")),
        problem=reader.problem or _too_much_work(jobs),
        created_at=parse_timestamp(metadata.get("creationTimestamp")) or _UNKNOWN_TIME,
    )


def _too_much_work(jobs: Iterable[PodGroup]) -> str:
    """Say what there is too much of in a JobSet; child Jobs without chips are no work here."""
    with_chips = [job for job in jobs if job.template.chips > 0]
    for job in with_chips:
        if job.template.problem:
            return f"replicated job {bounds.cut(job.name)}: {job.template.problem}"
        if job.parallelism > bounds.PARALLELISM:
            return (
                f"replicated job {bounds.cut(job.name)} has parallelism {job.parallelism:,}, and at most "
                f"{bounds.PARALLELISM:,} pods of one child Job are served; no slice has more hosts"
            )
    children = sum(job.replicas for job in with_chips)
    if children > bounds.CHILD_JOBS:
        return (
            f"it has {children:,} child Jobs that request chips, and at most {bounds.CHILD_JOBS:,} are served; split "
            f"it into several JobSets"
        )
    return ""


def parse_node(raw: object) -> Node | None:
    """Read a node; None unless GKE's label says which node pool it belongs to."""
    metadata = _dict(_dict(raw).get("metadata"))
    pool_name = _name(_dict(metadata.get("labels")).get(constants.NODE_POOL))
    if not pool_name:
        return None
    name = _name(metadata.get("name"))
    what = f"node {name}"
    created_at = parse_timestamp(metadata.get("creationTimestamp"))
    if not name or created_at is None:
        raise MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{_show(metadata.get('creationTimestamp'))} is not an RFC 3339 time"
        )
    spec = _dict(_dict(raw).get("spec"))
    status = _dict(_dict(raw).get("status"))
    allocatable = _dict(status.get("allocatable"))
    chips = _amount(what, "allocatable", constants.TPU_RESOURCE, allocatable)
    return Node(
        name=name,
        uid=_name(metadata.get("uid")),
        pool_name=PoolName(pool_name),
        labels=kept_labels(metadata.get("labels")),
        taints=tuple(
            Taint(
                key=_name(taint.get("key")),
                value=_name(taint.get("value")),
                effect=_name(taint.get("effect")),
            )
            for taint in itertools.islice(_dicts(spec.get("taints")), bounds.NODE_TAINTS)
        ),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in _dicts(status.get("conditions"))
        ),
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=_dict(metadata.get("annotations")).get(constants.CORDONED) == "true",
        # A device plugin reports whole devices; a fraction could only be a promise that no pod can use.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(_amount(what, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(_amount(what, "allocatable", "memory", allocatable)),
        provider_id=_name(spec.get("providerID")),
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
    for container in _that_ask(fields.get("initContainers")):
        amount = _container_request(what, container, resource)
        if container.get("restartPolicy") == "Always":
            sidecars += amount
            while_starting = max(while_starting, sidecars)
        else:
            while_starting = max(while_starting, sidecars + amount)
    running = sidecars
    for container in _that_ask(fields.get("containers")):
        running += _container_request(what, container, resource)
    total = max(running, while_starting)
    pod_level = _dict(_dict(fields.get("resources")).get("requests"))
    if resource in pod_level:
        total = _amount(what, "pod-level request", resource, pod_level)
    return total + _amount(what, "overhead", resource, _dict(fields.get("overhead")))


def group_key_of(namespace: str, metadata: dict[str, Any]) -> GroupKey:
    """Return the key of the Job that controls a pod; empty where no Job does.

    The labels say the same, but whoever makes a pod writes its labels; the reference is what the Job controller and the
    garbage collector go by.
    """
    for reference in _dicts(metadata.get("ownerReferences")):
        if reference.get("controller") is True and (reference.get("apiVersion"), reference.get("kind")) == _JOB:
            name = _name(reference.get("name"))
            return group_key(namespace, name) if name else GroupKey("")
    return GroupKey("")


def requested_chips(what: str, spec: object) -> int:
    """Return the chips that a pod asks for; MalformedObject where they are no whole number."""
    chips = pod_requests(what, spec, constants.TPU_RESOURCE)
    if chips != chips.to_integral_value():
        raise MalformedObject(f"{what}: {constants.TPU_RESOURCE} is {chips}; request a whole number of chips")
    return int(chips)


def _that_ask(containers: object) -> Iterable[dict[str, Any]]:
    """Leave out containers that ask for nothing: a pod may have thousands, and each is asked for three resources."""
    return [container for container in _dicts(containers) if container.get("resources")]


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
        raise MalformedObject(
            f"{what}: {role} {resource} is {_show(raw)}, which is not a quantity; use a form such as 4, 1500m or 2Gi"
        )
    return value


def _requirements(
    what: str, spec: dict[str, Any], metadata: dict[str, Any], *, reader: BoundedReader | None = None
) -> Requirements:
    affinity = _dict(_dict(spec.get("affinity")).get("nodeAffinity"))
    reader = reader or _reader_of_pod()
    return Requirements(
        chips=requested_chips(what, spec),
        cpu_millicores=ceil(pod_requests(what, spec, "cpu") * 1000),
        memory_bytes=ceil(pod_requests(what, spec, "memory")),
        node_selector=reader.labels("nodeSelector", spec.get("nodeSelector"), keep=_KEPT_SELECTORS),
        labels=reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS),
        annotations=reader.annotations(metadata.get("annotations"), keep=constants.READ_ANNOTATIONS),
        tolerations=tuple(
            Toleration(
                key=reader.text("a toleration's key", entry.get("key")),
                operator=reader.text("a toleration's operator", entry.get("operator")) or "Equal",
                value=reader.text("a toleration's value", entry.get("value")),
                effect=reader.text("a toleration's effect", entry.get("effect")),
            )
            for entry in reader.entries("tolerations", spec.get("tolerations"), bounds.TOLERATIONS)
        ),
        affinity_terms=_terms(reader, affinity.get("requiredDuringSchedulingIgnoredDuringExecution")),
        # Read last: it is what all of the above came to.
        problem=reader.problem,
    )


def _reader_of_pod(*, within: BoundedReader | None = None) -> BoundedReader:
    return BoundedReader("a pod", most_characters=bounds.REQUIREMENTS, within=within)


def _terms(reader: BoundedReader, required: object) -> tuple[Term, ...]:
    """Read required node affinity; a term that matches nothing goes, unless then no term were left."""
    if not isinstance(required, dict):
        return ()
    terms = []
    expressions = values = 0
    for entry in _dicts(required.get("nodeSelectorTerms")):
        found = [(each, False) for each in _dicts(entry.get("matchExpressions"))]
        found += [(each, True) for each in _dicts(entry.get("matchFields"))]
        expressions += len(found)
        values += sum(len(_list(each.get("values"))) for each, _ in found)
        if expressions > bounds.EXPRESSIONS or values > bounds.EXPRESSION_VALUES:
            reader.refuse(
                f"required node affinity has more than {bounds.EXPRESSIONS} expressions or "
                f"{bounds.EXPRESSION_VALUES:,} values, and no more are read; use fewer"
            )
            return (_MATCHES_NOTHING,)
        if found:
            terms.append(tuple(_expression(reader, each, on_field=on_field) for each, on_field in found))
    return tuple(terms) or (_MATCHES_NOTHING,)


def _expression(reader: BoundedReader, raw: dict[str, Any], *, on_field: bool) -> Expression:
    return Expression(
        key=reader.text("an affinity expression's key", raw.get("key")),
        operator=reader.text("an affinity expression's operator", raw.get("operator")),
        values=tuple(
            reader.text("an affinity expression's value", value)
            for value in _list(raw.get("values"))
            if isinstance(value, str)
        ),
        on_field=on_field,
    )


def _terminal_state(status: dict[str, Any]) -> str:
    """Read how a JobSet ended; releases before terminalState only have conditions."""
    state = _name(status.get("terminalState"))
    if state:
        return state
    for condition in _dicts(status.get("conditions")):
        if condition.get("type") in ("Completed", "Failed") and condition.get("status") == "True":
            return _string(condition["type"])
    return ""


def _identity(kind: str, metadata: dict[str, Any]) -> tuple[str, str, str]:
    namespace, name, uid = (_name(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not (namespace and name and uid):
        raise MalformedObject(
            f"{kind} {namespace or '?'}/{name or '?'} with uid {uid or '?'}: namespace, name or uid is missing"
        )
    return namespace, name, uid


def _deletion(what: str, metadata: dict[str, Any]) -> datetime | None:
    raw = metadata.get("deletionTimestamp")
    if raw is None:
        return None
    deadline = parse_timestamp(raw)
    if deadline is None:
        raise MalformedObject(f"{what}: deletionTimestamp {_show(raw)} is not an RFC 3339 time")
    return deadline


def _index(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _LARGEST_INDEX_DIGITS:
        return int(text)
    return None


def kept_labels(raw: object) -> dict[str, str]:
    """Read the labels of a node or namespace, as many as such an object needs; only administrators write them."""
    entries = ((_name(key), _name(value)) for key, value in _dict(raw).items() if isinstance(value, str))
    return dict(itertools.islice(entries, bounds.CLUSTER_OBJECT_LABELS))


def _count(raw: object, *, default: int) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        return default
    return min(max(raw, 0), _LARGEST_COUNT)


def _string(raw: object) -> str:
    return raw if isinstance(raw, str) else ""


def _name(raw: object) -> str:
    """Read a text that Kubernetes bounds itself; a longer one is cut, so that it is no name of anything."""
    return shared(bounds.cut(raw, bounds.OBJECT_NAME)) if isinstance(raw, str) else ""


def _dict(raw: object) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _dicts(raw: object) -> Sequence[dict[str, Any]]:
    return [entry for entry in raw if isinstance(entry, dict)] if isinstance(raw, list) else ()


def _list(raw: object) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _show(raw: object) -> str:
    if isinstance(raw, (dict, list)):
        return f"a {type(raw).__name__}"
    text = repr(raw)
    return text if len(text) <= 60 else text[:59] + "…"
