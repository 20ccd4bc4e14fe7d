"""Specifies the node pool for a slice: the facts of the slice, completed by the rules of the supplier. Pure.

Labels identify the owner of a pool; only this module writes them. Only pools of JobSets have all labels of the Go
provisioner, which knows only JobSets, and would delete any other pool with them.

Names are the same for every supplier. GKE allows 40 characters, `[a-z]([-a-z0-9]*[a-z0-9])?`; a TPUNodeGroup allows
more. A name consists of the shortened name of the workload, and a hash of workload UID, group key and attempt. The
topology and the zone are not in the hash, so a create of the same attempt with another choice of capacity, or by a
second process, has the same name: no second pool is created, and an existing pool is adopted.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, NodePoolRequest, PoolName, Taint, Zone
from provisioner.model.choices import CapacityChoice, CapacityKey, capacity_key, comma_items
from provisioner.model.fit import demand_key, is_system
from provisioner.model.placement import FREE, job_taints, labels_of
from provisioner.model.workloads import GroupKey, WorkloadKind, WorkloadName, WorkloadUid
from provisioner.settings import Settings
from provisioner.settings.node_fields import own_settings
from provisioner.slices.demand import Slice, SliceId, allowlists
from provisioner.slices.demand.slices import selected_machines
from provisioner.slices.planning.spec import capacity
from provisioner.slices.planning.spec.capacity import Choices, choices_of
from provisioner.slices.planning.spec.fit import check_fit
from provisioner.slices.supplier import ImpossibleError, PoolRules, UnmeetableError
from provisioner.workloads.plain import hosts_of

#: Taint of flex-start nodes until all slices of an all-or-nothing workload are ready. Labels of a free pool would not
#: work: GKE's cluster autoscaler adds nodes only for pods that fit the labels of the flex-start pool.
HELD_LATE_TAINT = Taint(key=constants.HELD_LATE, value="true")
_OWN_KEYS = frozenset({*constants.OWNER_LABELS, constants.NODE_POOL})
#: Maximum number of characters in the labels of one pool. config.labels of the GKE API: "supports up to 1,024 total
#: characters in a single request". Node groups have the same limit, so that both suppliers serve the same workloads.
LABEL_CHARACTERS = 1024
_DIGEST_DIGITS = 16
#: Number of characters that `stamped` adds: two keys, the digest, and an attempt of one digit.
_STAMP_CHARACTERS = len(constants.POOL_ATTEMPT + constants.NODEPOOL_HASH) + _DIGEST_DIGITS + 1
_MAX_LABEL_VALUE = 63
_KIND_OF_LABEL = {kind.value: kind for kind in WorkloadKind}
_MAX_LENGTH = 40
_HASH_DIGITS = 10
_PREFIX_LENGTH = _MAX_LENGTH - _HASH_DIGITS - 1


@lru_cache(maxsize=65536)
def pool_name(workload_name: str, slice_id: SliceId, attempt: int) -> PoolName:
    """Return the name of the pool for one attempt of a slice; equal arguments give equal names."""
    seed = f"{slice_id.workload_uid}/{slice_id.group_key}/{attempt}"
    digest = hashlib.sha256(seed.encode()).hexdigest()[:_HASH_DIGITS]
    # The name of a workload of kind POD may begin with the controller's kind (`ReplicaSet.`), which is left out.
    readable = re.sub(r"[^a-z0-9]+", "-", re.sub(r"^[A-Z]\w*\.", "", workload_name).lower()).strip("-")
    if not readable[:1].isalpha():
        readable = f"js-{readable}"
    return PoolName(f"{readable[:_PREFIX_LENGTH].rstrip('-')}-{digest}")


class Ownership(NamedTuple):
    """Owner of a pool by its labels; a field is empty if its label is missing."""

    workload: WorkloadName
    workload_uid: WorkloadUid
    group_key: GroupKey
    #: Name of the group, cut to the length of a label.
    group_name: str


def owner_labels(slice_: Slice) -> dict[str, str]:
    """Return the labels that identify a slice as the owner of a pool."""
    workload = slice_.workload
    if workload.kind is WorkloadKind.JOBSET:
        return {
            constants.NODEPOOL_MANAGER: constants.MANAGER,
            constants.PARENT_KIND: "job",
            constants.PARENT_NAME: _label_value(slice_.group_name),
            constants.PARENT_NAMESPACE: workload.namespace,
            constants.POOL_JOBSET_NAME: _label_value(workload.name),
            constants.POOL_JOBSET_NAMESPACE: workload.namespace,
            constants.POOL_JOBSET_UID: workload.uid,
            constants.POOL_JOB_KEY: slice_.id.group_key,
        }
    return {
        constants.NODEPOOL_MANAGER: constants.MANAGER,
        constants.POOL_WORKLOAD_KIND: workload.kind.value,
        constants.POOL_WORKLOAD_NAME: _label_value(workload.name),
        constants.POOL_WORKLOAD_NAMESPACE: workload.namespace,
        constants.POOL_WORKLOAD_UID: workload.uid,
        constants.POOL_GROUP_NAME: _label_value(slice_.group_name),
        constants.POOL_GROUP_KEY: slice_.id.group_key,
    }


def read_ownership(labels: Mapping[str, str]) -> Ownership | None:
    """Return the owner of a pool; None without an owner, or with another manager. Such pools are never changed."""
    if labels.get(constants.NODEPOOL_MANAGER) != constants.MANAGER:
        return None
    kind = _KIND_OF_LABEL.get(labels.get(constants.POOL_WORKLOAD_KIND, ""))
    if kind is not None and labels.get(constants.POOL_WORKLOAD_NAME):
        return Ownership(
            WorkloadName(kind, labels.get(constants.POOL_WORKLOAD_NAMESPACE, ""), labels[constants.POOL_WORKLOAD_NAME]),
            WorkloadUid(labels.get(constants.POOL_WORKLOAD_UID, "")),
            GroupKey(labels.get(constants.POOL_GROUP_KEY, "")),
            labels.get(constants.POOL_GROUP_NAME, ""),
        )
    name = _jobset_of(labels)
    if not name:
        return None
    namespace = labels.get(constants.POOL_JOBSET_NAMESPACE) or labels.get(constants.PARENT_NAMESPACE, "")
    return Ownership(
        WorkloadName(WorkloadKind.JOBSET, namespace, name),
        WorkloadUid(labels.get(constants.POOL_JOBSET_UID, "")),
        GroupKey(labels.get(constants.POOL_JOB_KEY, "")),
        labels.get(constants.PARENT_NAME, ""),
    )


def _jobset_of(labels: Mapping[str, str]) -> str:
    """Return the JobSet's name in a pool's labels; the Go provisioner before 2024-04 wrote it into LEGACY_POOL_ID."""
    if labels.get(constants.POOL_JOBSET_NAME):
        return labels[constants.POOL_JOBSET_NAME]
    # Without PARENT_NAMESPACE, the JobSet with this name could be in any namespace, so the name is ignored.
    return labels.get(constants.LEGACY_POOL_ID, "") if labels.get(constants.PARENT_NAMESPACE) else ""


def _label_value(text: str) -> str:
    return text[:_MAX_LABEL_VALUE].rstrip("-_.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Specification of a node pool without its owner; equal for slices with equal needs."""

    request: NodePoolRequest
    capacity: CapacityKey
    digest_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """Specification of one slice's node pool, without the name and the attempt."""

    blueprint: Blueprint
    labels: Mapping[str, str]
    #: Hash of the request without name and attempt.
    digest: str

    def stamped(self, name: PoolName, attempt: int) -> NodePoolRequest:
        """Return the request for the pool with this name and attempt."""
        labels = {**self.labels, constants.NODEPOOL_HASH: self.digest, constants.POOL_ATTEMPT: str(attempt)}
        return replace(self.blueprint.request, name=name, labels=labels)


def blueprint_key(slice_: Slice, settings: Settings, choice: CapacityChoice, copied: Mapping[str, str]) -> Hashable:
    """Return a key of all inputs of `blueprint` except settings and rules: equal keys lead to equal blueprints.

    The key has the `id` of choice, preferences and shape: equal values are usually the same object in one decision.
    """
    requirements = slice_.requirements
    return (
        id(choice),
        id(slice_.shape),
        id(slice_.preferences),
        slice_.nodes,
        starts_together(slice_, settings),
        slice_.id if _selects_own_pool(slice_) else demand_key(requirements),
        frozenset(requirements.annotations.items()),
        frozenset(copied.items()),
    )


def _selects_own_pool(slice_: Slice) -> bool:
    """Whether pods select labels that identify an owner, so that only a pool of their slice may fit the pods."""
    requirements = slice_.requirements
    keys = (expression.key for term in requirements.affinity_terms for expression in term)
    return not _OWN_KEYS.isdisjoint((*requirements.node_selector, *keys))


def blueprint(
    slice_: Slice, settings: Settings, rules: PoolRules, choice: CapacityChoice, copied: Mapping[str, str]
) -> Blueprint:
    """Return the blueprint of a slice's pool with a choice of capacity. Raises UnmeetableError if none is possible."""
    shape = check_shape(slice_)
    late = choice.kind is CapacityKind.FLEX_START
    facts = NodePoolRequest(
        name=PoolName(""),
        zone=choice.zone,
        machine_type=shape.machine_type.name,
        hosts=slice_.nodes,
        topology=str(shape.topology),
        capacity=choice.kind,
        reservation=choice.reservation,
        max_run_seconds=capacity.max_run_seconds_of(slice_, settings) if late else 0,
        labels=dict(copied),
        taints=(*_job_taints(slice_), *((HELD_LATE_TAINT,) if late and starts_together(slice_, settings) else ())),
    )
    request = replace(rules.complete(facts, slice_, shape, settings), own_inputs=_own_inputs(slice_))
    unlabelled = replace(request, labels={}, own_inputs="")
    return Blueprint(request=request, capacity=capacity_key(request), digest_text=repr(unlabelled))


def starts_together(slice_: Slice, settings: Settings) -> bool:
    """Whether no pod may be bound to the pool of a slice until all slices of its workload are ready."""
    controlled = slice_.mark != "" or not slice_.workload.kind.has_pods
    return controlled and slice_.siblings > 1 and capacity.wants_all_or_nothing(slice_, settings)


def placement_labels(slice_: Slice, choice: CapacityKind, settings: Settings) -> Mapping[str, str]:
    """Return the labels with which a pool is created so that it is assigned or free; empty for an open pool."""
    if not slice_.workload.kind.has_pods:
        return FREE
    if not slice_.mark:
        return {}
    late = choice is CapacityKind.FLEX_START
    held = starts_together(slice_, settings) and not late
    return FREE if held else labels_of(slice_.mark, slice_.workload.namespace)


def specify(slice_: Slice, plan: Blueprint, settings: Settings, rules: PoolRules) -> Specification:
    """Return the specification of a slice's pool. Raises UnmeetableError if its labels would be too long."""
    placed = placement_labels(slice_, plan.request.capacity, settings)
    labels = {**plan.request.labels, **owner_labels(slice_), **placed}
    total, limit = _STAMP_CHARACTERS + sum(map(len, labels)) + sum(map(len, labels.values())), LABEL_CHARACTERS
    if total > limit:
        raise UnmeetableError(
            f"the pool's labels would have {total} characters, {rules.supplier_name} allows {limit}",
            f"copy fewer labels ({constants.COPY_LABELS}, GCP_POD_TO_NODE_LABELS, nodeSelector)",
        )
    digest = hashlib.sha256(f"{plan.digest_text}{sorted(labels.items())!r}".encode()).hexdigest()[:_DIGEST_DIGITS]
    return Specification(blueprint=plan, labels=labels, digest=digest)


def is_held(taints: Iterable[Taint]) -> bool:
    """Whether one of the taints keeps pods off a node until all slices of the workload are ready."""
    return any(taint.key in constants.HELD_KEYS for taint in taints)


def check_shape(slice_: Slice) -> tpu.Shape:
    """Return the slice's shape. Raises UnmeetableError for a `shape_problem`, or too many or too few pods."""
    shape = slice_.shape
    if shape is None or slice_.shape_problem:
        demand = slice_.requirements
        # A shape may be found later: machine types may be added, and the number of pods may change.
        unknown = demand.problem or tpu.may_be_sold(*selected_machines(demand)) or hosts_of(demand) > 1
        raise (UnmeetableError if unknown else ImpossibleError)(*slice_.shape_problem)
    if shape.multi_host and slice_.parallelism > slice_.nodes:
        raise ImpossibleError(
            f"{slice_.title} has {slice_.pods_field} {slice_.parallelism}, but a slice of topology {shape.topology} "
            f"has {slice_.nodes} hosts with one pod each",
            f"set {slice_.pods_field} to {slice_.nodes} or choose a larger topology",
        )
    unused = slice_.nodes - slice_.parallelism
    confirmed = {**slice_.workload.annotations, **slice_.requirements.annotations}.get(constants.ALLOW_UNUSED_HOSTS)
    if shape.multi_host and unused > slice_.parallelism and slice_.workload.kind.has_pods and confirmed != "true":
        raise UnmeetableError(
            f"{slice_.title} has {slice_.pods_field} {slice_.parallelism}, but a slice of topology {shape.topology} "
            f"has {slice_.nodes} hosts, so {unused} would not be used",
            f"choose a smaller topology, set {slice_.pods_field} to {slice_.nodes}, or set the annotation "
            f'{constants.ALLOW_UNUSED_HOSTS} to "true" for a node pool anyway',
        )
    return shape


def _job_taints(slice_: Slice) -> tuple[Taint, ...]:
    if slice_.workload.kind is not WorkloadKind.JOBSET:
        return ()
    taints = job_taints(slice_.requirements, slice_.workload.namespace, slice_.group_name)
    value = slice_.requirements.node_selector.get(constants.NAMESPACED_JOB, "")
    if taints and len(value) > _MAX_LABEL_VALUE:
        raise ImpossibleError(
            f"JobSet lets the pods select {constants.NAMESPACED_JOB}={bounds.cut(value)}, which has {len(value)} "
            f"characters, a label at most {_MAX_LABEL_VALUE}",
            f"choose a shorter name, or remove the annotation {constants.NODE_SELECTOR_STRATEGY}",
        )
    return taints


def _own_inputs(slice_: Slice) -> str:
    annotations, selector = slice_.requirements.annotations, slice_.requirements.node_selector
    # The hash is part of the capacity's key, so failed creates with these settings delay no creates without them.
    inputs = (own_settings(annotations, selector), selector.get(constants.PLACEMENT_POLICY, ""))
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:_DIGEST_DIGITS] if any(inputs) else ""


def copied_labels(slice_: Slice, settings: Settings, rules: PoolRules) -> dict[str, str]:
    """Return the labels that a pool copies from the pod. Raises UnmeetableError for labels that the pod may not set."""
    requirements, requestable_labels = slice_.requirements, rules.requestable_labels
    selected = {
        key: value
        for key, value in requirements.node_selector.items()
        if key in requestable_labels or not is_system(key)
    }
    for key, _ in settings.node_labels:
        # All nodes have the administrator's values of these labels, so the selected values are left out.
        selected.pop(key, None)
    pod_labels = requirements.labels
    requested = _requested_labels(slice_)
    if selected or requested:
        requested = requested - _withheld_labels(slice_, settings, rules)
        named = (selected.keys() | requested) - set(settings.pod_to_node_labels) - requestable_labels
        if selected.get(constants.LEGACY_POOL_ID) == slice_.workload.name:
            # If the value is the workload's name, this label only identifies the owner of the pool, and is allowed.
            named -= {constants.LEGACY_POOL_ID}
        problem = allowlists.label_problem(named, settings)
        if problem:
            raise UnmeetableError(*problem)
    keys = (*settings.pod_to_node_labels, *sorted(requested))
    copied = selected | {key: pod_labels[key] for key in keys if key in pod_labels}
    forbidden = sorted(copied.keys() & constants.OWNER_LABELS) if copied else ()
    if forbidden:
        raise ImpossibleError(
            f"label {forbidden[0]} identifies the owner of the pool and cannot be copied from a pod",
            f"remove it from the annotation {constants.COPY_LABELS} and from GCP_POD_TO_NODE_LABELS",
        )
    return copied


def uncopied_labels(slice_: Slice, settings: Settings, rules: PoolRules) -> str:
    """Return a message about requested labels that are not copied to nodes; empty without such labels."""
    if constants.COPY_LABELS not in slice_.requirements.annotations:
        return ""
    keys = sorted(_withheld_labels(slice_, settings, rules))
    if not keys:
        return ""
    return (
        f"{constants.COPY_LABELS} names {', '.join(keys)}: labels of {', '.join(constants.SYSTEM_LABEL_DOMAINS)} are "
        "not copied to nodes, because others rely on them; remove them, or ask the administrator to name them in "
        "GCP_POD_TO_NODE_LABELS"
    )


def _requested_labels(slice_: Slice) -> set[str]:
    annotation = slice_.requirements.annotations.get(constants.COPY_LABELS, "")
    if not annotation:
        return set()
    try:
        named = comma_items(annotation, noun="labels", limit=bounds.COPIED_LABELS)
    except ValueError as error:
        raise ImpossibleError(f"annotation {constants.COPY_LABELS} {error.args[0]}", *error.args[1:]) from error
    return slice_.requirements.labels.keys() & set(named)


def _withheld_labels(slice_: Slice, settings: Settings, rules: PoolRules) -> set[str]:
    """Return the requested labels that are not copied, because other programs rely on them and no setting names them.

    A setting such as `*` does not name these labels, because `*` is meant for labels of teams. `OWNER_LABELS` are not
    returned: a pod that requests one of them gets an error from `copied_labels`.
    """
    requested = _requested_labels(slice_)
    if not requested:
        return requested
    named = {*settings.pod_to_node_labels, *(settings.allowed_label_keys or ())}
    requested = requested - named - rules.requestable_labels - rules.copyable - constants.OWNER_LABELS
    return {key for key in requested if is_system(key)}


_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class Candidates:
    """Finds choices and specifications, or raises UnmeetableError. Caches save 250 ms per decision of 1,000 slices."""

    def __init__(self, settings: Settings, rules: PoolRules) -> None:
        self._settings = settings
        self._rules = rules
        self._choices: dict[Hashable, Choices | UnmeetableError] = {}
        self._blueprints: dict[Hashable, Blueprint | UnmeetableError] = {}
        #: Specifications by slice, number of nodes, and `id` of the choice: `choices` returns the same objects again.
        self._specifications: dict[tuple[SliceId, int, int], Specification | UnmeetableError] = {}
        #: Number of blueprints that only one slice can use, by namespace.
        self._own: Counter[str] = Counter()
        #: Number of pairs of a slice and a choice, by namespace.
        self._pairs: Counter[str] = Counter()
        self._within: dict[SliceId, bool] = {}

    def choices(self, slice_: Slice, zone: Zone | None = None) -> Choices:
        """Return the choices for a slice; only choices in `zone` if it is set and the workload must be in one zone."""
        settings = self._settings
        capacity.max_run_seconds_of(slice_, settings)
        check_shape(slice_)
        problem = allowlists.namespace_problem(slice_.workload.namespace, settings)
        if problem:
            raise UnmeetableError(*problem)
        key = (frozenset(slice_.requirements.node_selector.items()), id(slice_.preferences), id(slice_.shape))
        choices = _cached(self._choices, key, lambda: choices_of(slice_, settings))
        kind = slice_.workload.kind
        if self._rules.flex_start_needs_pods and not kind.has_pods:
            others = tuple(choice for choice in choices.open if choice.kind is not CapacityKind.FLEX_START)
            if not others:
                raise UnmeetableError(
                    f"{self._rules.supplier_name} adds flex-start nodes only for pods, and a {kind} has none",
                    "allow another capacity",
                )
            choices = Choices(open=others, rejected=choices.rejected)
        if slice_.id not in self._within:
            self._pairs[slice_.workload.namespace] += len(choices.open)
            self._within[slice_.id] = self._pairs[slice_.workload.namespace] <= bounds.NAMESPACE_CHOICES
        if not self._within[slice_.id]:
            raise UnmeetableError(
                f"namespace {slice_.workload.namespace} has more than {bounds.NAMESPACE_CHOICES:,} pairs of a waiting "
                "slice and a choice of capacity: name fewer choices or zones"
            )
        if zone is None or not capacity.wants_one_zone(slice_, settings):
            return choices
        in_zone = tuple(choice for choice in choices.open if choice.zone == zone)
        if not in_zone:
            raise UnmeetableError(
                f"all pools of {slice_.workload} must be in one zone, {zone}, but this slice may only be "
                f"in {', '.join(sorted({choice.zone for choice in choices.open}))}"
            )
        return Choices(open=in_zone, rejected=choices.rejected)

    def specification(self, slice_: Slice, choice: CapacityChoice) -> Specification:
        """Return the specification of a slice's pool for one of its choices."""
        key = slice_.id, slice_.nodes, id(choice)
        return _cached(self._specifications, key, lambda: self._specified(slice_, choice))

    def _specified(self, slice_: Slice, choice: CapacityChoice) -> Specification:
        rules, copied = self._rules, copied_labels(slice_, self._settings, self._rules)
        key = blueprint_key(slice_, self._settings, choice, copied)

        def draw() -> Blueprint:
            namespace = slice_.workload.namespace
            self._own[namespace] += _selects_own_pool(slice_)
            if self._own[namespace] > bounds.NAMESPACE_OWN_POOLS:
                raise UnmeetableError(
                    f"namespace {namespace} has more than {bounds.NAMESPACE_OWN_POOLS:,} pairs of a slice and a choice "
                    "of capacity whose pods select labels of their own node pool: name fewer choices, or remove the "
                    "selectors"
                )
            drawn = blueprint(slice_, self._settings, rules, choice, copied)
            # No attempt has this name, so pods that select a node pool by its name fit no new pool.
            name = pool_name(slice_.workload.name, slice_.id, -1)
            request = specify(slice_, drawn, self._settings, rules).stamped(name, 0)
            check_fit(slice_.requirements, request, self._settings, rules)
            return drawn

        return specify(slice_, _cached(self._blueprints, key, draw), self._settings, rules)


def _cached(results: dict[_K, _T | UnmeetableError], key: _K, find: Callable[[], _T]) -> _T:
    result = results.get(key)
    if result is None:
        try:
            result = find()
        except UnmeetableError as error:
            # The copy lacks the traceback, whose frames would take kilobytes for each slice and choice.
            result = type(error)(*error.args)
        results[key] = result
    if isinstance(result, UnmeetableError):
        raise type(result)(*result.args)
    return result
