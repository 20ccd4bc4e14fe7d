"""Derives slices from workloads and their pods. A slice is the TPU demand of a group, such as a child Job of a JobSet.

Slices are derived for groups that have pods, or that a node pool or the planner's memory refers to, and for at most one
more group of each entry of a spec (such as a replicated job), because a spec may have thousands of groups.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from provisioner import constants, tpu
from provisioner.model import bounds, choices
from provisioner.model.capacity import Zone
from provisioner.model.choices import CapacityChoice
from provisioner.model.fit import demand_key
from provisioner.model.placement import SHARED, mark_of, with_job_nodes, without_marks
from provisioner.model.workloads import (
    GroupKey,
    Pod,
    PodGroup,
    Requirements,
    Toleration,
    Workload,
    WorkloadKind,
    Workloads,
    WorkloadUid,
)
from provisioner.settings.forms import go_bool, go_duration_seconds
from provisioner.settings.node_fields import NODE_SETTING_KEYS
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.groups import ListedGroup, SliceId, Wanted, listed_groups, representatives
from provisioner.workloads.plain import misfit_of

#: Toleration that GKE's API server adds to every pod that requests chips, but not to templates.
CHIP_TOLERATION = Toleration(key=constants.TPU_RESOURCE, operator="Exists")
#: Assumed maximum difference between the clocks of the API server (creation) and of workload controllers (suspension).
_CLOCKS_DIFFER_BY = timedelta(seconds=5)
_T = TypeVar("_T")
_KEYS = (constants.SAME_ZONE, constants.ALL_OR_NOTHING, constants.CAPACITY, constants.ZONES, constants.MAX_RUN_DURATION)
#: Annotations of a workload that apply to its pods, unless a pod has the annotation itself.
_INHERITED = NODE_SETTING_KEYS | {constants.IGNORE_NODE_ESTIMATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPreferences:
    """Values of annotations; lists are in order of preference. Missing and invalid values have the default."""

    capacity: tuple[CapacityChoice, ...] = ()
    zones: tuple[Zone, ...] = ()
    same_zone: bool | None = None
    all_or_nothing: bool | None = None
    max_run_seconds: float | None = None
    #: Clauses of the errors of invalid annotations, by annotation.
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_preferences(annotations: Mapping[str, str], of_workload: Mapping[str, str]) -> PlacementPreferences:
    """Read the annotations of a pod. Missing or empty annotations are read from its workload instead."""
    return _read(tuple([annotations.get(key) or of_workload.get(key, "") for key in _KEYS]))


@lru_cache(maxsize=512)
def _read(texts: tuple[str, ...]) -> PlacementPreferences:
    text_of = dict(zip(_KEYS, texts, strict=True))
    problems: dict[str, tuple[str, ...]] = {}

    def read(key: str, parse: Callable[[str], _T]) -> _T | None:
        text = text_of[key].strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as error:
            problems[key] = f"annotation {key}={bounds.quoted(text_of[key])} {error.args[0]}", *error.args[1:]
            return None

    preferences = PlacementPreferences(
        capacity=read(constants.CAPACITY, choices.parse_choices) or (),
        zones=read(constants.ZONES, choices.parse_zones) or (),
        same_zone=read(constants.SAME_ZONE, go_bool),
        all_or_nothing=read(constants.ALL_OR_NOTHING, go_bool),
        max_run_seconds=read(constants.MAX_RUN_DURATION, go_duration_seconds),
    )
    return replace(preferences, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """TPU demand of one group of pods."""

    id: SliceId
    workload: Workload
    #: Name of the group, such as the name of a child Job.
    group_name: str
    #: Leader pod's requirements without marks; the template's if `leader` is None, or if only the template has chips.
    requirements: Requirements
    #: Key in the marks of the leader pod or, if the leader pod has no marks, of another pod; empty without marks.
    mark: str = ""
    #: Node that a marked pod selects by hostname, as Kueue's topology-aware scheduling does; empty if none.
    host: str = ""
    #: Leader pod; None if it does not exist, has finished, is being deleted or is outdated (`_is_outdated`).
    leader: Pod | None
    #: Unfinished pods of the group, including pods that are being deleted.
    pods: tuple[Pod, ...]
    parallelism: int
    #: `activeDeadlineSeconds` of the Job; 0 if it has no deadline.
    deadline_seconds: int
    #: Whether the group of pods has succeeded, so that the slice no longer wants a pool.
    ended: bool
    #: Number of slices in the workload's spec, including slices whose pods do not exist yet.
    siblings: int
    preferences: PlacementPreferences
    #: Name of the ProvisioningRequest that the leader pod consumes (`awaiting_request`); empty if none.
    request: str = ""
    served: bool
    #: None if the request of the pods is invalid or cannot be served (`shape_problem`).
    shape: tpu.Shape | None
    #: Why the slice takes no new pool: it has no shape, or the number of its pods of kind POD does not fit the shape.
    shape_problem: tuple[str, ...]
    #: Equal for slices that may share a new pool, each on its own node. None except for single-host slices of kind POD.
    share: Hashable = None

    @property
    def controlled(self) -> bool:
        """Whether the slice's pods run only on a node pool that the provisioner assigns to this slice."""
        return self.mark not in ("", SHARED)

    @property
    def pending(self) -> bool:
        """Whether the leader pod is served and unschedulable, and no ProvisioningRequest requests its pool."""
        waits = self.leader is not None and self.leader.unschedulable_since is not None
        return waits and self.served and not self.request

    @property
    def gang(self) -> tuple[str, str] | None:
        """Namespace and name of the PodGroup that the scheduler binds as a whole; None without one."""
        return (self.leader.namespace, self.leader.gang) if self.leader is not None and self.leader.gang else None

    @property
    def from_buffer(self) -> bool:
        """Whether the slice belongs to a CapacityBuffer, whose pools serve other workloads first."""
        return self.workload.kind is WorkloadKind.CAPACITY_BUFFER

    @property
    def title(self) -> str:
        """Kind and name of the group or workload, for messages."""
        if self.workload.kind is WorkloadKind.POD and self.parallelism > 1:
            return str(self.workload)
        return f"{self.workload.kind.group_title} {self.group_name}"

    @property
    def shown_id(self) -> str:
        """Id that users see and can type: kind/namespace/name/group."""
        return f"{self.workload.full_name.id}/{self.group_name}"

    @property
    def pods_field(self) -> str:
        """The field of the workload's specification with the number of pods."""
        subgroups = self.workload.kind is WorkloadKind.LEADER_WORKER_SET and self.workload.groups[0].name
        kind = WorkloadKind.JOB if self.workload.owner_kind == "Job" else self.workload.kind
        return "subGroupSize" if subgroups else kind.size_field

    @property
    def nodes(self) -> int:
        """Number of nodes that the slice needs; 0 if it has no shape."""
        return 0 if self.shape is None else self.shape.nodes(self.parallelism)

    @property
    def chips(self) -> int:
        """Number of chips of the slice's nodes; 0 if the slice has no shape."""
        return 0 if self.shape is None else self.shape.machine_type.chips * self.nodes


class Found(NamedTuple):
    """Slices of one workload, and the objects from which they were derived."""

    workload: Workload
    #: Key, name (empty if unknown) and pods of each group with pods or in `find_by_workload`'s `named_by_pools`.
    wanted: tuple[tuple[GroupKey, str, tuple[Pod, ...]], ...]
    slices: Mapping[SliceId, Slice]


def all_slices(by_workload: Mapping[WorkloadUid, Found]) -> dict[SliceId, Slice]:
    """Return the slices of all workloads."""
    slices: dict[SliceId, Slice] = {}
    for entry in by_workload.values():
        slices.update(entry.slices)
    return slices


def find_by_workload(
    workloads: Workloads,
    pods: Iterable[Pod],
    policy: ServingPolicy,
    named_by_pools: Mapping[SliceId, str] | None = None,
    *,
    keep_suspended: bool = False,
    last: Mapping[WorkloadUid, Found] = MappingProxyType({}),
) -> dict[WorkloadUid, Found]:
    """Return the slices of each living workload without `managed_by`; with `keep_suspended`, also of suspended ones.

    Only slices with pods or in `named_by_pools` are returned, and at most one more for each entry of the spec. The
    values of `named_by_pools` are names of groups, empty if unknown. `last` is an earlier result with the same policy;
    its slices are reused for unchanged workloads with unchanged pods and names of groups.
    """
    wanted: dict[WorkloadUid, dict[GroupKey, Wanted]] = defaultdict(dict)
    for slice_id, name in (named_by_pools or {}).items():
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
        groups = wanted[uid]
        content = tuple([(key, group.name, tuple(group.pods)) for key, group in groups.items()])
        before = last.get(uid)
        if before is None or before.workload != workload or before.wanted != content:
            before = Found(workload, content, _slices_of(workload, groups, policy))
        found[uid] = before
    return found


def _slices_of(workload: Workload, wanted: Mapping[GroupKey, Wanted], policy: ServingPolicy) -> dict[SliceId, Slice]:
    groups = workload.groups
    listed: list[ListedGroup] = []
    without_chips = 0
    for entry in listed_groups(workload, wanted):
        # A webhook may add chips to pods of a template without chips; a suspended workload has no pods that show this.
        with_chips = bool(groups[entry.place].template.chips)
        if with_chips or wanted[entry.key].pods or workload.suspended:
            listed.append(entry)
            without_chips += not with_chips
    listed.sort()
    for place, group in enumerate(groups):
        if group.any_number:
            of_place = [entry for entry in listed if entry.place == place]
            without = [entry for entry in of_place if not wanted[entry.key].pods]
            with_pods = len(of_place) - len(without)
            surplus = set(without[max(0, group.replicas - with_pods) :])
            listed = [entry for entry in listed if entry not in surplus]
    siblings = without_chips
    for group in groups:
        siblings += group.replicas if group.template.chips else 0
    if len(listed) < siblings and not workload.suspended:
        listed += representatives(workload, {entry.key for entry in listed})
    jobs_with_pods: Counter[int] = Counter()
    for entry in listed:
        if entry.key in wanted:
            jobs_with_pods[entry.place] += _jobs_of_pods(groups[entry.place], wanted[entry.key].pods)
    slices: dict[SliceId, Slice] = {}
    for entry in listed:
        pods = wanted[entry.key].pods if entry.key in wanted else []
        group = groups[entry.place]
        # If the number of succeeded Jobs in the status covers all Jobs without pods, these Jobs have succeeded.
        ended = not pods and 0 < group.replicas * group.jobs - jobs_with_pods[entry.place] <= group.succeeded
        slices[SliceId(workload.uid, entry.key)] = _slice(workload, entry, pods, siblings, policy, ended=ended)
    return slices


def _jobs_of_pods(group: PodGroup, pods: Collection[Pod]) -> int:
    """Return the number of child Jobs to which the pods of one slice belong."""
    if group.jobs == 1:
        return 1 if pods else 0
    # `with_owners` numbers the pods of all child Jobs of the slice consecutively.
    return len({(pod.completion_index or 0) // (group.parallelism // group.jobs) for pod in pods})


def slice_id_of(pod: Pod, workloads: Workloads) -> SliceId | None:
    """Return the slice that a pod belongs to; None if its workload is unknown, or if the pod is in no group."""
    uid = workloads.uid_of(pod)
    return SliceId(workload_uid=uid, group_key=pod.group_key) if uid and pod.group_key else None


def _slice(
    workload: Workload, listed: ListedGroup, pods: list[Pod], siblings: int, policy: ServingPolicy, *, ended: bool
) -> Slice:
    group = workload.groups[listed.place]
    leader = _leader(pods, lowest=group.lowest_leads)
    if leader is not None and _is_outdated(leader, workload, group.template):
        leader = None
    # A leader pod without chips is no host of the slice, so the workers' template has the requirements.
    if leader is not None and (leader.requirements.has_chips or not group.template.chips):
        requirements, host = without_marks(leader.requirements, leader.namespace)
    else:
        # The template of a workload of kind POD is copied from one of its pods, which may have marks.
        requirements, host = without_marks(group.template, workload.namespace)
        requirements = replace(requirements, tolerations=(*requirements.tolerations, CHIP_TOLERATION))
        if group.selects_job_nodes:
            requirements = with_job_nodes(requirements, workload.namespace, listed.name)
    if requirements.claims:
        requirements = with_host_chips(requirements)
    if workload.annotations:
        inherited = {key: text for key, text in workload.annotations.items() if key in _INHERITED}
        if inherited:
            requirements = replace(requirements, annotations={**inherited, **requirements.annotations})
    # Pods that are older than the admission policy have no mark, so the mark of any pod counts.
    marks = (mark_of(pod.requirements, pod.namespace) for pod in (*filter(None, (leader,)), *pods))
    mark = next(filter(None, marks), "")
    shape: tpu.Shape | None = None
    problem = requirements.problem
    try:
        shape = None if problem else shape_of(requirements)
    except tpu.ShapeError as error:
        problem = error.args
    annotations = requirements.annotations
    if workload.kind is WorkloadKind.POD:
        # The number of pods may still grow, so slices of a workload of kind POD never wait for each other.
        annotations = {**annotations, constants.ALL_OR_NOTHING: "false"}
        if shape is not None and (misfit := misfit_of(pods, workload.controller, shape)):
            # A pod without an index is its own group, and gets no shape. Indexed pods keep it: their number may change.
            problem, shape = misfit, None if listed.name in {pod.name for pod in pods} else shape
    if group.jobs > 1 and mark and not problem:
        shape = None
        problem = (
            f"{group.jobs} child Jobs are one slice, and the placement policy keeps each child Job on its own nodes",
            f"use one Job with parallelism {group.parallelism}",
        )
    return Slice(
        id=SliceId(workload.uid, listed.key),
        workload=workload,
        group_name=listed.name,
        requirements=requirements,
        mark=mark,
        host=host,
        leader=leader,
        pods=tuple(pods),
        parallelism=(leader.group_size if leader is not None else 0) or group.parallelism,
        deadline_seconds=group.deadline_seconds,
        ended=ended,
        siblings=siblings,
        preferences=read_preferences(annotations, workload.annotations),
        # If a workload has a problem, its slices are not served, and the problem is reported once, on the workload.
        served=not workload.problem and not workload.suspended and policy.serves(workload, requirements),
        shape=shape,
        shape_problem=problem,
        share=_share(workload, requirements, (mark, host), shape) if workload.kind is WorkloadKind.POD else None,
    )


def _share(workload: Workload, demand: Requirements, target: tuple[str, str], shape: tpu.Shape | None) -> Hashable:
    if shape is None or shape.multi_host:
        return None
    if demand.volumes is not None:
        # Pods of a StatefulSet have PersistentVolumeClaims with different names, so the names are not compared.
        demand = replace(demand, volumes=replace(demand.volumes, claims=()))
    return (workload.namespace, target, demand_key(demand), demand.claims, frozenset(demand.annotations.items()))


def _leader(pods: Iterable[Pod], *, lowest: bool) -> Pod | None:
    """Return the pod of index 0 or, with `lowest`, of the lowest index. Among equal indexes, an unbound pod leads."""
    candidates = [
        pod
        for pod in pods
        if pod.deletion_deadline is None
        and (pod.completion_index == constants.LEADER_INDEX or (lowest and pod.completion_index is not None))
    ]
    return min(candidates, key=lambda pod: (pod.completion_index, pod.node_name != "", pod.name), default=None)


def _is_outdated(leader: Pod, workload: Workload, template: Requirements) -> bool:
    """Return whether a leader pod is older than the last suspend or resume and requests another slice than `template`.

    Such a pod may still be cached after a user changed the suspended workload. Newer pods may differ due to a webhook.
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
    """Return the requirements; with resource claims, they get the chips of a host in the current catalogue."""
    if not requirements.claims:
        return requirements
    return replace(requirements, chips=tpu.chips_of_host(*selected_machines(requirements)))


def selected_machines(requirements: Requirements) -> tuple[str, str, str]:
    """Return the selected accelerator, topology and machine type, each empty if the pods select none."""
    find = requirements.node_selector.get
    return find(constants.TPU_ACCELERATOR, ""), find(constants.TPU_TOPOLOGY, ""), find(constants.INSTANCE_TYPE, "")


def shape_of(requirements: Requirements) -> tpu.Shape:
    """Return the shape that pods request. Raises ShapeError if the request is not valid."""
    accelerator, topology, machine_type = selected_machines(requirements)
    if constants.TPU_ACCELERATOR not in requirements.node_selector:
        valid = ", ".join(tpu.ACCELERATORS)
        raise tpu.ShapeError(f"the pod has no nodeSelector {constants.TPU_ACCELERATOR}", f"add it with one of {valid}")
    return tpu.resolve(accelerator, topology, requirements.chips, machine_type)
