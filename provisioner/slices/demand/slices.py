"""From workloads and their pods to slices.

A slice is what one group of a living workload needs: a child Job of a JobSet, a leader with its workers of a
LeaderWorkerSet, a plain Job itself; only one that asks for chips and that the workload's spec lists. It wants a pool
once its leader pod cannot be scheduled. Only those are listed that have pods or that something refers to (a pool, the
memory), so that the work depends on what is there and not on what a spec asks for.

What annotations ask for beside the shape of a slice, read once: those of the pod, else those of its workload.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from provisioner import constants, tpu
from provisioner.kube import fields
from provisioner.model import bounds, choices
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.placement import mark_of, with_job_nodes, without_marks
from provisioner.model.workloads import (
    GroupKey,
    Pod,
    Requirements,
    Toleration,
    Workload,
    WorkloadKind,
    Workloads,
    WorkloadUid,
    group_key,
)
from provisioner.settings.forms import go_bool, go_duration_seconds
from provisioner.slices.demand.allowlists import ServingPolicy

#: GKE's API server adds it to every pod that asks for chips; templates do not have it yet.
CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists")
#: The API server's clock says when a pod was created, and that of a workload's controller when it was suspended.
_CLOCKS_DIFFER_BY = timedelta(seconds=5)
_T = TypeVar("_T")
_KEYS = (
    constants.SAME_ZONE,
    constants.ALL_OR_NOTHING,
    constants.CAPACITY,
    constants.ZONES,
    constants.MAX_RUN_DURATION,
)


@dataclass(slots=True)
class Wanted:
    """A group of which something is there: pods, or a pool or the memory that refers to it."""

    #: Empty where nothing tells it.
    name: str
    pods: list[Pod] = field(default_factory=list)


class ListedGroup(NamedTuple):
    """One group that a workload's spec lists; they sort as they are listed there."""

    #: Of the pod group in the spec, and of the group among those that come from it.
    place: int
    number: int
    key: GroupKey
    name: str


def listed_groups(workload: Workload, wanted: Mapping[GroupKey, Wanted]) -> Iterator[ListedGroup]:
    """Yield those of the wanted groups that the spec lists."""
    groups = {group.name: (place, group) for place, group in enumerate(workload.groups)}
    unnamed: list[GroupKey] = []
    for key, each in wanted.items():
        if group_key(workload.namespace, each.name) != key:
            # Nothing tells its name, or a label has only the beginning of it.
            unnamed.append(key)
            continue
        name, index = _parts(workload.name, each.name)
        if index is None or name not in groups:
            continue
        place, group = groups[name]
        most = group.replicas + (group.surge if each.pods else 0)
        # What is taken apart has to come out the same again: "07" is no index.
        if index < most and each.name == name_of_group(workload.name, name, index, numbered=group.numbered):
            yield ListedGroup(place, index, key, each.name)
    if unnamed:
        by_key = _keys_of(workload)
        for key in unnamed:
            if key in by_key:
                group_name, index, name = by_key[key]
                yield ListedGroup(groups[group_name][0], index, key, name)


def slices_by_key(workloads: Iterable[Workload]) -> dict[tuple[str, GroupKey], SliceId]:
    """Return the slices of some workloads, by namespace and the key of their group."""
    return {(each.namespace, key): SliceId(each.uid, key) for each in workloads for key in _keys_of(each)}


def _keys_of(workload: Workload) -> Mapping[GroupKey, tuple[str, int, str]]:
    with_chips_first = sorted(workload.groups, key=lambda group: group.template.chips == 0)
    listed = tuple((group.name, group.replicas, group.numbered) for group in with_chips_first)
    return _groups_by_key(workload.namespace, workload.name, listed)


@lru_cache(maxsize=16384)
def _parts(workload_name: str, group_name: str) -> tuple[str, int | None]:
    """Take the name of a group apart: the name in the spec, and the index; None for a text of another form."""
    if group_name == workload_name:
        return "", 0
    name, _, digits = group_name.removeprefix(f"{workload_name}-").rpartition("-")
    return name, fields.index(digits)


@lru_cache(maxsize=128)
def _groups_by_key(
    namespace: str, workload_name: str, listed: tuple[tuple[str, int, bool], ...]
) -> Mapping[GroupKey, tuple[str, int, str]]:
    """Return the name of the entry in the spec, the index and the name of each group, by its key.

    `listed` are the name, the replicas and whether groups are numbered of each entry. Needed only for what names no
    group: what the memory holds of slices without pods, and pools with long names.
    """
    groups = (
        (name, index, name_of_group(workload_name, name, index, numbered=numbered))
        for name, replicas, numbered in listed
        for index in range(replicas)
    )
    return {group_key(namespace, each[2]): each for each in itertools.islice(groups, bounds.CHILD_JOBS)}


def representatives(workload: Workload, found: Collection[GroupKey]) -> Iterator[ListedGroup]:
    """Yield of each entry of the spec that has chips the first group that is not among those found already."""
    for place, group in enumerate(workload.groups):
        if group.template.chips == 0 or workload.problem:
            continue
        for index in range(group.replicas):
            name = name_of_group(workload.name, group.name, index, numbered=group.numbered)
            key = group_key(workload.namespace, name)
            if key not in found:
                yield ListedGroup(place, index, key, name)
                break


def name_of_group(workload_name: str, group: str, index: int, *, numbered: bool) -> str:
    """Return the name of one of the groups that come from an entry of a workload's spec."""
    if not numbered:
        return workload_name
    return f"{workload_name}-{group}-{index}" if group else f"{workload_name}-{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for; None or empty where nothing was, or where it cannot be read."""

    #: Best first.
    capacity: tuple[CapacityChoice, ...] = ()
    #: Best first.
    zones: tuple[Zone, ...] = ()
    same_zone: bool | None = None
    all_or_nothing: bool | None = None
    max_run_seconds: float | None = None
    #: By annotation: why it cannot be read, in words.
    problems: Mapping[str, str] = field(default_factory=dict)


def read_wishes(annotations: Mapping[str, str], of_workload: Mapping[str, str]) -> Wishes:
    """Read the annotations of a pod, and of its workload for those that the pod does not have."""
    return _read(tuple([annotations.get(key) or of_workload.get(key, "") for key in _KEYS]))


# Annotations are the same in every round, and alike in most pods of a workload.
@lru_cache(maxsize=512)
def _read(texts: tuple[str, ...]) -> Wishes:
    asked = dict(zip(_KEYS, texts, strict=True))
    problems: dict[str, str] = {}

    def read(key: str, parse: Callable[[str], _T]) -> _T | None:
        text = asked[key].strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as error:
            problems[key] = f"annotation {key}={bounds.quoted(asked[key])} {error}"
            return None

    wishes = Wishes(
        capacity=read(constants.CAPACITY, choices.parse_choices) or (),
        zones=read(constants.ZONES, choices.parse_zones) or (),
        same_zone=read(constants.SAME_ZONE, go_bool),
        all_or_nothing=read(constants.ALL_OR_NOTHING, go_bool),
        max_run_seconds=read(constants.MAX_RUN_DURATION, go_duration_seconds),
    )
    return replace(wishes, problems=problems)


# A tuple: it is the key of most maps, and hashed tens of thousands of times in one decision.
class SliceId(NamedTuple):
    """Identifies a slice over restarts of its workload, and apart from an earlier workload of the same name."""

    workload_uid: WorkloadUid
    group_key: GroupKey

    def __str__(self) -> str:
        return f"{self.workload_uid}/{self.group_key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one group of pods needs."""

    id: SliceId
    workload: Workload
    #: Of a JobSet the name of the child Job.
    group_name: str
    #: The leader pod's requirements, else the template's; without the marks of admission (`model.placement`).
    requirements: Requirements
    #: The key that admission marked the leader pod with, else any other pod; empty if no pod is marked.
    mark: str = ""
    #: The node that a marked leader pod selects by its hostname, as with Kueue's topology-aware scheduling; empty if it
    #: selects none.
    host: str = ""
    #: The unfinished leader pod that is not being deleted.
    leader: Pod | None
    #: All unfinished pods of the group, oldest incarnation included.
    pods: tuple[Pod, ...]
    parallelism: int
    #: Its Job ends after this time; 0: no such time.
    deadline_seconds: int
    #: Its child Job has succeeded: it wants no pool any more.
    ended: bool
    siblings: int
    wishes: Wishes
    #: The ProvisioningRequest that lives and asks for it; empty for none.
    request: str = ""
    served: bool
    #: None where the request is no valid slice.
    shape: tpu.Shape | None
    shape_problem: str

    @property
    def pending(self) -> bool:
        """Whether the slice has a leader that is served and cannot be scheduled, and asks for its pool itself."""
        waits = self.leader is not None and self.leader.unschedulable_since is not None
        return waits and self.served and not self.request

    @property
    def spare(self) -> bool:
        """Whether it is of a buffer: it has what nobody else needs."""
        return self.workload.kind is WorkloadKind.CAPACITY_BUFFER

    @property
    def title(self) -> str:
        """Its group of pods, as people call it."""
        return f"{self.workload.kind.group_title} {self.group_name}"

    @property
    def pods_field(self) -> str:
        """The field of its workload's specification that says how many pods it has."""
        return self.workload.kind.size_field

    @property
    def nodes(self) -> int:
        """Nodes that the slice needs; 0 where it has no shape."""
        return 0 if self.shape is None else self.shape.nodes(self.parallelism)


class Found(NamedTuple):
    """The slices of one workload, and all that they follow from beside the policy."""

    workload: Workload
    #: The key of each group of which something is there, its name where that is known, and its pods.
    wanted: tuple[tuple[GroupKey, str, tuple[Pod, ...]], ...]
    slices: Mapping[SliceId, Slice]


def all_slices(found: Mapping[WorkloadUid, Found]) -> dict[SliceId, Slice]:
    """Put the slices of all workloads together."""
    slices: dict[SliceId, Slice] = {}
    for each in found.values():
        slices.update(each.slices)
    return slices


def find_by_workload(
    workloads: Workloads,
    pods: Iterable[Pod],
    policy: ServingPolicy,
    referred: Mapping[SliceId, str] | None = None,
    *,
    keep_suspended: bool = False,
    last: Mapping[WorkloadUid, Found] = MappingProxyType({}),
) -> dict[WorkloadUid, Found]:
    """List the slices of each living workload; with `keep_suspended` of suspended ones those that something refers to.

    Those that have pods; those of `referred`, with the name of the group where it is known; and one of the others of
    each template, which says what that asks for. What was found last time, by the same policy, is taken over where
    nothing that it follows from has changed.
    """
    wanted: dict[WorkloadUid, dict[GroupKey, Wanted]] = defaultdict(dict)
    for slice_id, name in (referred or {}).items():
        wanted[slice_id.workload_uid][slice_id.group_key] = Wanted(name)
    for pod in pods:
        uid = None if pod.finished or not pod.group_key else workloads.uid_of(pod)
        if uid is None:
            continue
        entry = wanted[uid].get(pod.group_key)
        if entry is None:
            entry = wanted[uid][pod.group_key] = Wanted("")
        entry.name = entry.name or pod.group_name
        entry.pods.append(pod)
    found: dict[WorkloadUid, Found] = {}
    for uid, workload in workloads.by_uid.items():
        if workload.managed_by or not workload.keeps_pools(while_suspended=keep_suspended):
            continue
        there = wanted[uid]
        asked = tuple([(key, each.name, tuple(each.pods)) for key, each in there.items()])
        before = last.get(uid)
        # Equal objects are nearly always the same ones, so that comparing them costs little.
        if before is None or before.workload != workload or before.wanted != asked:
            before = Found(workload, asked, _slices_of(workload, there, policy))
        found[uid] = before
    return found


def _slices_of(workload: Workload, wanted: Mapping[GroupKey, Wanted], policy: ServingPolicy) -> dict[SliceId, Slice]:
    groups = workload.groups
    listed: list[ListedGroup] = []
    others = 0
    for each in listed_groups(workload, wanted):
        # Chips that only a webhook adds show on the pods alone, and a suspended workload has none.
        with_chips = bool(groups[each.place].template.chips)
        if with_chips or wanted[each.key].pods or workload.suspended:
            listed.append(each)
            others += not with_chips
    listed.sort()
    for place, group in enumerate(groups):
        if group.any_number:
            there = [each for each in listed if each.place == place]
            without = [each for each in there if not wanted[each.key].pods]
            with_pods = len(there) - len(without)
            surplus = set(without[max(0, group.replicas - with_pods) :])
            listed = [each for each in listed if each not in surplus]
    # Those without pods count as well: they will come.
    siblings = others
    for group in groups:
        siblings += group.replicas if group.template.chips else 0
    if len(listed) < siblings and not workload.suspended:
        listed += representatives(workload, {each.key for each in listed})
    groups_with_pods = Counter(each.place for each in listed if each.key in wanted and wanted[each.key].pods)
    slices: dict[SliceId, Slice] = {}
    for each in listed:
        pods = wanted[each.key].pods if each.key in wanted else []
        group = groups[each.place]
        # The status does not name the groups that have succeeded: it is all without pods, or it is unknown which.
        ended = not pods and 0 < group.replicas - groups_with_pods[each.place] <= group.succeeded
        slices[SliceId(workload.uid, each.key)] = _slice(workload, each, pods, siblings, policy, ended=ended)
    return slices


def slice_id_of(pod: Pod, workloads: Workloads) -> SliceId | None:
    """Tell which slice a pod belongs to; None where its workload cannot be told, or no Job controls it."""
    uid = workloads.uid_of(pod)
    return SliceId(workload_uid=uid, group_key=pod.group_key) if uid and pod.group_key else None


def _slice(
    workload: Workload, listed: ListedGroup, pods: list[Pod], siblings: int, policy: ServingPolicy, *, ended: bool
) -> Slice:
    group = workload.groups[listed.place]
    leader = _leader(pods, lowest=group.lowest_leads)
    if leader is not None and _is_outdated(leader, workload, group.template):
        leader = None
    # What a pod of the template asks for when GKE has added its toleration.
    admitted = replace(group.template, tolerations=(*group.template.tolerations, CHIP_TOLERATION))
    if group.selects_job_nodes:
        admitted = with_job_nodes(admitted, workload.namespace, listed.name)
    requirements, host = admitted, ""
    if leader is not None:
        requirements, host = without_marks(leader.requirements, leader.namespace)
    if requirements.claims:
        requirements = with_host_chips(requirements)
    # Pods from before the policy was installed are not marked, and those that follow them are.
    marks = (mark_of(pod.requirements, pod.namespace) for pod in (*filter(None, (leader,)), *pods))
    shape: tpu.Shape | None = None
    problem = requirements.problem
    try:
        shape = None if problem else shape_of(requirements)
    except tpu.ShapeError as error:
        problem = str(error)
    return Slice(
        id=SliceId(workload.uid, listed.key),
        workload=workload,
        group_name=listed.name,
        requirements=requirements,
        mark=next(filter(None, marks), ""),
        host=host,
        leader=leader,
        pods=tuple(pods),
        parallelism=(leader.group_size if leader is not None else 0) or group.parallelism,
        deadline_seconds=group.deadline_seconds,
        ended=ended,
        siblings=siblings,
        wishes=read_wishes(requirements.annotations, workload.annotations),
        # One that exceeds a bound is told once, on the workload, and not for each slice.
        served=not workload.problem and not workload.suspended and policy.serves(workload, requirements),
        shape=shape,
        shape_problem=problem,
    )


def _leader(pods: Iterable[Pod], *, lowest: bool) -> Pod | None:
    """Choose the leader pod: a restart may show two for a moment, and the one that waits is the one to serve.

    That of index 0; with `lowest` that of the lowest index that is left.
    """
    candidates = [
        pod
        for pod in pods
        if pod.deletion_deadline is None
        and (pod.completion_index == constants.LEADER_INDEX or (lowest and pod.completion_index is not None))
    ]
    return min(candidates, key=lambda pod: (pod.completion_index, pod.node_name != "", pod.name), default=None)


def _is_outdated(leader: Pod, workload: Workload, template: Requirements) -> bool:
    """Whether a pod is of before its workload was suspended and changed: a cache that is behind shows it still.

    That it asks for another slice than the template alone says nothing: a webhook may have changed that.
    """
    changed_at = workload.suspension_changed_at
    return (
        changed_at is not None
        and leader.created_at < changed_at - _CLOCKS_DIFFER_BY
        and _slice_asked_for(leader.requirements) != _slice_asked_for(template)
    )


def _slice_asked_for(requirements: Requirements) -> tuple[tuple[str, str], int]:
    return selected_machines(requirements)[:2], 0 if requirements.claims else requirements.chips


def with_host_chips(requirements: Requirements) -> Requirements:
    """Return the requirements with the chips that claims request by the catalogue of now: the cluster extends it."""
    if not requirements.claims:
        return requirements
    return replace(requirements, chips=tpu.chips_of_host(*selected_machines(requirements)))


def selected_machines(requirements: Requirements) -> tuple[str, str, str]:
    """Return the accelerator, the topology and the machine type that pods select, each empty if they select none."""
    find = requirements.node_selector.get
    return find(constants.TPU_ACCELERATOR, ""), find(constants.TPU_TOPOLOGY, ""), find(constants.INSTANCE_TYPE, "")


def shape_of(requirements: Requirements) -> tpu.Shape:
    """Return the shape that pods ask for; raise ShapeError where there is none."""
    accelerator, topology, machine_type = selected_machines(requirements)
    if constants.TPU_ACCELERATOR not in requirements.node_selector:
        valid = ", ".join(tpu.ACCELERATORS)
        raise tpu.ShapeError(f"the pod has no nodeSelector {constants.TPU_ACCELERATOR}; add it with one of {valid}")
    return tpu.resolve(accelerator, topology, requirements.chips, machine_type)
