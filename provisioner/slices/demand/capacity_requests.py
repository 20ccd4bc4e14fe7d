"""Adds slices and virtual leader pods for ProvisioningRequests and CapacityBuffers, which have no pods. Pure.

With these leader pods, later steps treat requests and buffers like workloads with pods. The slices of a request start
together. Their leaders are unschedulable until Provisioned is true; afterwards the request only keeps its pools. The
leaders of a buffer are always unschedulable: if other pods use a slice's pool, the slice gets another pool.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta

from provisioner import constants, tpu
from provisioner.model import bounds, wording
from provisioner.model.sources import POD_TEMPLATES
from provisioner.model.workloads import (
    CapacityRequest,
    Pod,
    PodGroup,
    Requirements,
    Workload,
    WorkloadKind,
    Workloads,
    WorkloadUid,
    group_key,
)
from provisioner.slices.demand.groups import SliceId, name_of_group
from provisioner.slices.demand.slices import CHIP_TOLERATION, Slice, shape_of, with_host_chips
from provisioner.workloads import PROVISIONING_REQUEST

_Workloads = Mapping[WorkloadUid, Workload]
Templates = Mapping[tuple[str, str], Requirements]


def with_slices(
    workloads: _Workloads, templates: Templates, rejected: AbstractSet[str] = frozenset(), *, unlisted: bool = False
) -> tuple[_Workloads, list[Pod]]:
    """Return the workloads, with slices for requests and buffers, and the virtual leader pods of these slices.

    If the catalogue of machine types may be incomplete (`unlisted`), templates without a valid slice count as missing.
    Requests in `rejected` get no slices: their status cannot be written, so no controller would see their pools.
    """
    asking = [
        workload
        for workload in workloads.values()
        if workload.capacity_request is not None
        and (workload.kind is not WorkloadKind.PROVISIONING_REQUEST or workload.full_name.text not in rejected)
    ]
    if not asking:
        return workloads, []
    named = Workloads.of(workloads)
    read: list[Workload] = []
    slice_counts: Counter[str] = Counter()
    for workload in sorted(asking, key=lambda workload: (workload.created_at, workload.uid)):
        if workload.capacity_request is not None:
            room = bounds.CHILD_JOBS - slice_counts[workload.namespace]
            read.append(_with_slices(workload, workload.capacity_request, templates, named, room, unlisted=unlisted))
            slice_counts[workload.namespace] += sum(group.replicas for group in read[-1].groups)
    pods = [pod for workload in read for pod in _leaders(workload)]
    return {**workloads, **{workload.uid: workload for workload in read}}, pods


def _with_slices(
    workload: Workload, request: CapacityRequest, templates: Templates, named: Workloads, room: int, *, unlisted: bool
) -> Workload:
    """Return the workload, usually with a group per pod set with chips; its namespace may have `room` more slices.

    An invalid workload gets a `problem` and no slices; its groups only show whether the workload is served.
    """
    if workload.problem or not workload.lives:
        return workload
    try:
        if workload.kind is WorkloadKind.PROVISIONING_REQUEST:
            groups = tuple(_groups_of_request(workload, request, templates))
        else:
            groups = (_group_of_buffer(workload, request, templates, named),)
    except _MissingError:
        return workload
    except ValueError as error:
        if unlisted and isinstance(error, tpu.ShapeError):
            return workload
        named_templates = (templates.get((workload.namespace, name)) for name, _ in request.pod_sets)
        groups = tuple(
            PodGroup(name="", replicas=0, parallelism=0, template=template)
            for template in named_templates
            if template is not None
        )
        return replace(workload, groups=groups, problem=error.args)
    count, problem = sum(group.replicas for group in groups), tuple[str, ...]()
    if count > bounds.REQUESTED_SLICES:
        problem = (f"it asks for {count:,} slices, and at most {bounds.REQUESTED_SLICES:,} are served",)
    elif count > room:
        problem = (f"it and what its namespace has asked for before have more than {bounds.CHILD_JOBS:,} slices",)
    if problem:
        groups = tuple(replace(group, replicas=0) for group in groups)
    return replace(workload, groups=groups, problem=problem)


class _MissingError(Exception):
    """A template or the scalable object of a buffer does not exist (yet)."""


def _groups_of_request(workload: Workload, request: CapacityRequest, templates: Templates) -> Iterator[PodGroup]:
    pod_sets = [(_template(workload, name, templates), pods or 0) for name, pods in request.pod_sets]
    if not any(template.chips for template, _ in pod_sets):
        raise ValueError(f"none of its pod sets requests {constants.TPU_RESOURCE}")
    for place, (template, pods) in enumerate(pod_sets):
        if not template.chips:
            continue
        shape = shape_of(template)
        hosts = shape.nodes(1)
        if problem := shape.pods_problem(pods, several=True):
            raise wording.ProblemError(*problem)
        yield _group(str(place), template, replicas=pods // hosts, hosts=hosts, together=True)


def _group_of_buffer(workload: Workload, request: CapacityRequest, templates: Templates, named: Workloads) -> PodGroup:
    ((name, replicas),) = request.pod_sets
    like, template = 0, Requirements()
    if request.scalable[2]:
        of = _scalable(workload, request.scalable, named)
        groups = [group for group in of.groups if group.template.chips > 0]
        if not groups:
            raise ValueError(f"{of} requests no {constants.TPU_RESOURCE}")
        like, template = sum(group.replicas for group in groups), with_host_chips(groups[0].template)
    elif name:
        template = _template(workload, name, templates)
    shape = shape_of(template)
    counts = [replicas] if replicas is not None else []
    if request.scalable[2] and request.percentage is not None:
        counts.append(max(1, -(-like * request.percentage // 100)))
    hosts = shape.nodes(1)
    if request.max_chips is not None:
        counts.append(request.max_chips // (hosts * shape.machine_type.chips))
    if not counts:
        raise ValueError(f"it has neither replicas nor a percentage nor a limit of {constants.TPU_RESOURCE}")
    return _group("", template, replicas=min(counts), hosts=hosts, together=False)


def _group(name: str, template: Requirements, *, replicas: int, hosts: int, together: bool) -> PodGroup:
    annotations = {**template.annotations, constants.ALL_OR_NOTHING: str(together).lower()}
    tolerations = (*template.tolerations, CHIP_TOLERATION)
    admitted = replace(template, annotations=annotations, tolerations=tolerations)
    return PodGroup(name=name, replicas=replicas, parallelism=hosts, template=admitted)


def _template(workload: Workload, name: str, templates: Templates) -> Requirements:
    template = templates.get((workload.namespace, name))
    if template is None:
        raise _MissingError(name)
    if template.problem:
        raise wording.ProblemError(*template.problem)
    return with_host_chips(template)


def _scalable(workload: Workload, scalable: tuple[str, str, str], named: Workloads) -> Workload:
    api_group, name_of_kind, name = scalable
    kind = next(
        (candidate for candidate in WorkloadKind if candidate.has_pods and candidate.value == name_of_kind), None
    )
    if kind is None:
        raise wording.ProblemError(
            f"scalableRef names a {bounds.cut(name_of_kind)}",
            "name a JobSet, a LeaderWorkerSet, a RayCluster or a served Job",
        )
    uid = named.uid_of_name.get((kind, workload.namespace, name))
    if uid is None or api_group != kind.api_version.partition("/")[0]:
        raise _MissingError(name)
    return named.by_uid[uid]


def _leaders(workload: Workload) -> Iterator[Pod]:
    request = workload.capacity_request
    served = request is not None and request.is_true(constants.PROVISIONED)
    for group in workload.groups:
        for number in range(group.replicas):
            name = name_of_group(workload.name, group.name, number, numbered=group.numbered)
            yield Pod(
                kind=workload.kind,
                namespace=workload.namespace,
                name=name,
                uid=f"{workload.uid}/{name}",
                workload_name=workload.name,
                workload_uid=workload.uid,
                group_name=name,
                group_key=group_key(workload.namespace, name),
                completion_index=constants.LEADER_INDEX,
                requirements=group.template,
                created_at=workload.created_at,
                unschedulable_since=None if served else workload.created_at,
            )


def booked_until(request: CapacityRequest, booking_seconds: float, now: datetime) -> datetime | None:
    """Return when a request's booking ends if no pods come; None unless Provisioned is true and has a time."""
    since = request.conditions[constants.PROVISIONED].since if request.is_true(constants.PROVISIONED) else None
    # A time in the future counts as `now`, because a clock was wrong.
    return min(since, now) + timedelta(seconds=booking_seconds) if since is not None else None


def awaiting_request(
    slices: Iterable[Slice], by_uid: Mapping[WorkloadUid, Workload], unknown: AbstractSet[str] = frozenset()
) -> dict[SliceId, Slice]:
    """Return the slices whose leader pods consume a living ProvisioningRequest, with its name in the field `request`.

    If ProvisioningRequests or PodTemplates are `unknown`, all requests count as living, so no slice gets a second pool.
    """
    hidden = not unknown.isdisjoint((PROVISIONING_REQUEST.resource, POD_TEMPLATES))
    live = {
        (workload.namespace, workload.name)
        for workload in by_uid.values()
        if workload.kind is WorkloadKind.PROVISIONING_REQUEST and workload.lives
    }
    if not (live or hidden):
        return {}
    named = (
        (slice_, slice_.requirements.annotations.get(constants.CONSUMES_REQUEST, ""))
        for slice_ in slices
        if slice_.leader is not None
    )
    return {
        slice_.id: replace(slice_, request=name)
        for slice_, name in named
        if (hidden and name) or (slice_.workload.namespace, name) in live
    }
