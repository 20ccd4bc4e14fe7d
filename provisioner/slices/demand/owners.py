"""Adds the workloads of kind POD, which are derived from pods, and joins child Jobs that are one slice. Pure."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from provisioner.model.workloads import (
    GroupKey,
    Pod,
    PodGroup,
    Workload,
    WorkloadKind,
    WorkloadName,
    WorkloadUid,
    group_key,
)
from provisioner.slices.demand.groups import name_of_group, parts_of_group
from provisioner.slices.demand.slices import Slice
from provisioner.workloads.plain import apart, as_plain, workloads_of

_Workloads = Mapping[WorkloadUid, Workload]


def with_owners(
    workloads: _Workloads,
    pods: Iterable[Pod],
    *,
    serve_pods: str = "all",
    unknown_kinds: AbstractSet[WorkloadKind] = frozenset(),
) -> tuple[dict[WorkloadUid, Workload], tuple[Pod, ...]]:
    """Return the workloads, including the workloads of kind POD, and the pods.

    If several child Jobs form one slice, their pods get one group, whose index counts slices instead of child Jobs.
    With SERVE_PODS=all, pods of Jobs outside `workloads` get kind POD, unless Jobs are in `unknown_kinds`: the Job may
    have a pool already. Their workload usually has the UID of the Job, so a pool keeps it if the Job is served later.
    A workload of kind POD never has pods of several namespaces, although users can write any UID into owner references.
    """
    joins = {
        workload.full_name: workload
        for workload in workloads.values()
        if any(group.jobs > 1 for group in workload.groups)
    }
    namespaces: dict[str, str] = {uid: workload.namespace for uid, workload in workloads.items()}
    if serve_pods == "all" and WorkloadKind.JOB not in unknown_kinds:
        pods = [
            as_plain(pod) if pod.kind is WorkloadKind.JOB and pod.workload_uid not in workloads else pod for pod in pods
        ]
    owned = tuple(apart(pods, namespaces))
    if joins:
        of_pod = ((pod, WorkloadName(pod.kind, pod.namespace, pod.workload_name)) for pod in owned)
        owned = tuple(_joined(pod, joins.get(name)) for pod, name in of_pod)
    return {**{workload.uid: workload for workload in workloads_of(owned)}, **workloads}, owned


def groups_of_pods(slice_: Slice) -> frozenset[GroupKey]:
    """Return the keys of a slice's groups before `with_owners` joins them: several if child Jobs are one slice."""
    workload = slice_.workload
    group, place = _joining(workload, slice_.group_name)
    if group is None:
        return frozenset({slice_.id.group_key})
    numbers = range(place * group.jobs, (place + 1) * group.jobs)
    names = (name_of_group(workload.name, group.name, number, numbered=True) for number in numbers)
    return frozenset(group_key(workload.namespace, name) for name in names)


def _joining(workload: Workload, group_name: str) -> tuple[PodGroup | None, int]:
    """Return the spec entry (None unless its child Jobs are joined) and the index of a child Job or joined group."""
    name, number = parts_of_group(workload.name, group_name)
    if number is None:
        return None, 0
    return next((entry for entry in workload.groups if entry.name == name and entry.jobs > 1), None), number


def _joined(pod: Pod, workload: Workload | None) -> Pod:
    if workload is None or pod.completion_index is None:
        return pod
    group, number = _joining(workload, pod.group_name)
    if group is None:
        return pod
    place, job = divmod(number, group.jobs)
    joined = name_of_group(workload.name, group.name, place, numbered=True)
    index = job * (group.parallelism // group.jobs) + pod.completion_index
    key = group_key(pod.namespace, joined)
    return replace(pod, group_name=joined, group_key=key, completion_index=index)
