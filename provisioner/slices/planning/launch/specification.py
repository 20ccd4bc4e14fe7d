"""What a node pool is asked to be, and what its nodes will look like."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import (
    LATE,
    CapacityKind,
    Network,
    NodePool,
    NodePoolRequest,
    PoolName,
    PoolStatus,
    Taint,
)
from provisioner.model.choices import CapacityChoice, comma_items
from provisioner.settings import Settings, forms, parse_networks
from provisioner.slices.demand import Slice
from provisioner.slices.planning.launch import allowlists, wishes
from provisioner.slices.planning.launch.capacity import capacity_key
from provisioner.slices.planning.launch.wishes import UnmeetableError
from provisioner.slices.planning.match import node_labels
from provisioner.slices.planning.match.fit import NodeView, demand_key, misfit
from provisioner.slices.planning.ownership import owner_labels

#: config.labels of the GKE API: "supports up to 1,024 total characters in a single request".
_MAX_LABEL_CHARACTERS = 1024
_GIB = 1024**3
_CHIP_TAINT = Taint(key=constants.TPU_RESOURCE, value="present")
_SPOT_TAINT = Taint(key=constants.SPOT, value="true")
_QUEUED_TAINT = Taint(key=constants.QUEUED, value="true")
#: Queued capacity is that of pools which an earlier release made.
_CAPACITY_TAINTS = {CapacityKind.SPOT: (_SPOT_TAINT,), CapacityKind.QUEUED: (_QUEUED_TAINT,)}
#: Nodes carry one until the other slices of their workload are ready; then the provisioner takes it off.
HELD_TAINT = Taint(key=constants.HELD, value="true")
HELD_LATE_TAINT = Taint(key=constants.HELD_LATE, value="true")
#: Google's own selectors that the creator of a pool has to pass on as node labels.
_COPIED_SELECTORS = (constants.ICI_RESILIENCY, constants.LOCATION_HINT)
#: Google's own labels that a pod may have copied: they ask GKE for something, and say nothing that others rely on.
_COPYABLE_LABELS = frozenset({*_COPIED_SELECTORS, constants.AUTO_RESTART})
_WORKLOAD_POLICY_PREFIX = "tpu-provisioner-"


#: What the digest of a request is over, in this order.
_DIGEST_FIELDS = tuple(sorted(each.name for each in fields(NodePoolRequest)))
_content_of = attrgetter(*_DIGEST_FIELDS)
_LABELS_AT = _DIGEST_FIELDS.index("labels")
#: Labels that differ from slice to slice.
_OWN_KEYS = frozenset({*constants.OWNER_LABELS, constants.NODE_POOL})
#: Labels that say how often a slice was tried, and what was asked for: not part of what is asked for.
_STAMPS = frozenset({constants.POOL_ATTEMPT, constants.NODEPOOL_HASH})
_DIGEST_DIGITS = 16
#: Their keys, the digest, and an attempt of one digit.
_STAMP_CHARACTERS = sum(map(len, _STAMPS)) + _DIGEST_DIGITS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """What a node pool is asked to be, apart from what says whose it is: slices that ask for the same share it."""

    #: Without a name, and with the labels that do not say whose it is.
    request: NodePoolRequest
    #: The fields of the request that do not differ from slice to slice.
    shared: Mapping[str, Any]
    #: The capacity that it takes, as back-off names it.
    capacity: str
    #: The digest's text before and after the labels.
    digest_text: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Specification:
    """What a node pool for one slice is asked to be; only its name and its attempt are missing."""

    blueprint: Blueprint
    #: All but those that are stamped.
    labels: Mapping[str, str]
    #: Equal digests ask GKE for the same thing.
    digest: str

    def stamped(self, name: PoolName, attempt: int) -> NodePoolRequest:
        """Return the request of one attempt."""
        labels = {**self.labels, constants.NODEPOOL_HASH: self.digest, constants.POOL_ATTEMPT: str(attempt)}
        return NodePoolRequest(name=name, labels=labels, **self.blueprint.shared)


def blueprint_key(slice_: Slice, choice: CapacityChoice, copied: Mapping[str, str]) -> Hashable:
    """Return what a blueprint depends on beside the settings: equal keys, equal blueprints.

    Choices, wishes and shapes are found once a round, and are the same objects where they are equal.
    """
    asked = slice_.requirements
    # What looks at the labels that say whose a pool is fits the slice's own pool at most.
    own = slice_.id if asked.affinity_terms or not _OWN_KEYS.isdisjoint(asked.node_selector) else None
    return (
        id(choice),
        id(slice_.shape),
        id(slice_.wishes),
        slice_.nodes,
        slice_.siblings > 1,
        demand_key(asked),
        asked.annotations.get(constants.NODE_SERVICE_ACCOUNT),
        asked.annotations.get(constants.ADDITIONAL_NODE_NETWORKS),
        frozenset(copied.items()),
        own,
    )


def blueprint(slice_: Slice, settings: Settings, choice: CapacityChoice, copied: Mapping[str, str]) -> Blueprint:
    """Specify a node pool of a choice of capacity; raise UnmeetableError where there is none."""
    shape = check_shape(slice_)
    spot, flex_start = choice.kind is CapacityKind.SPOT, choice.kind is CapacityKind.FLEX_START
    policy_name = _workload_policy(shape, slice_.requirements.node_selector)
    labels = dict(copied)
    if policy_name not in ("", _default_policy(shape)):
        labels[constants.POOL_TOPOLOGY] = str(shape.topology)
    request = NodePoolRequest(
        name=PoolName(""),
        zone=choice.zone,
        machine_type=shape.machine_type.name,
        node_count=slice_.nodes,
        topology=_placed_topology(shape, settings),
        policy_name=policy_name,
        policy_topology=str(shape.topology) if policy_name else "",
        labels=labels,
        taints=_taints(slice_, settings, choice.kind),
        spot=spot,
        flex_start=flex_start,
        reservation=choice.reservation,
        max_run_seconds=wishes.max_run_seconds_of(slice_, settings) if flex_start else 0,
        disk_type=_disk_type(shape, settings),
        service_account=_service_account(slice_, settings),
        oauth_scopes=settings.node_oauth_scopes,
        auto_upgrade=bool(settings.auto_upgrade),
        tags=settings.node_tags,
        additional_networks=_networks(slice_, settings),
        max_pods_per_node=settings.max_pods_per_node,
        secure_boot=settings.node_secure_boot,
        secondary_boot_disk=settings.node_secondary_disk,
        confidential_storage=settings.node_confidential_storage,
        boot_disk_kms_key=settings.node_boot_disk_kms_key,
    )
    content = dict(zip(_DIGEST_FIELDS, _content_of(request), strict=True))
    shared = {name: value for name, value in content.items() if name not in ("name", "labels")}
    taken = capacity_key(choice, request.machine_type, topology_of_request(request), request.node_count)
    return Blueprint(request=request, shared=shared, capacity=taken, digest_text=_digest_text(request))


def specify(slice_: Slice, plan: Blueprint) -> Specification:
    """Say whose the pool of a blueprint is to be; raise UnmeetableError where GKE would not take its labels."""
    labels = {**plan.request.labels, **owner_labels(slice_)}
    _check_labels(labels)
    return Specification(blueprint=plan, labels=labels, digest=_digest(plan.digest_text, labels))


def check_fit(slice_: Slice, request: NodePoolRequest, settings: Settings) -> None:
    """Raise UnmeetableError where no node of the pool would take the slice's pods: what can't be used is not bought."""
    reason = misfit(slice_.requirements, expected_view(expected_pool(request)))
    if reason:
        hint = " (GCP_FORCE_ON_DEMAND is set)" if settings.force_on_demand else ""
        raise UnmeetableError(f"no node of a pool in {request.zone} would fit the pod: {reason}{hint}")


def is_held(request: NodePoolRequest) -> bool:
    """Whether the nodes wait for the other slices of their workload."""
    return any(taint.key in constants.HELD_KEYS for taint in request.taints)


def check_shape(slice_: Slice) -> tpu.Shape:
    """Return the slice's shape; raise UnmeetableError where it has none that its pods fit."""
    shape = slice_.shape
    if shape is None:
        raise UnmeetableError(slice_.shape_problem)
    if shape.multi_host and slice_.parallelism > slice_.nodes:
        raise UnmeetableError(
            f"{slice_.title} has {slice_.pods_field} {slice_.parallelism}, but a slice of topology {shape.topology} "
            f"has {slice_.nodes} hosts with one pod each; set {slice_.pods_field} to {slice_.nodes} or choose a larger "
            f"topology"
        )
    return shape


def fingerprint(request: NodePoolRequest) -> str:
    """Digest all of a request but its name and attempt: equal digests ask GKE for the same thing."""
    return _digest(_digest_text(request), request.labels)


def _digest_text(request: NodePoolRequest) -> tuple[str, str]:
    content = [*_content_of(request)]
    content[_DIGEST_FIELDS.index("name")] = ""
    items = [repr(item) for item in zip(_DIGEST_FIELDS, content, strict=True)]
    before, after = ", ".join(items[:_LABELS_AT]), ", ".join(items[_LABELS_AT + 1 :])
    return f"[{before}, ('labels', ", f"), {after}]"


def _digest(text: tuple[str, str], labels: Mapping[str, str]) -> str:
    kept = sorted([item for item in labels.items() if item[0] not in _STAMPS])
    before, after = text
    return hashlib.sha256(f"{before}{kept!r}{after}".encode()).hexdigest()[:_DIGEST_DIGITS]


def expected_pool(request: NodePoolRequest) -> NodePool:
    """Return the pool that GKE would list right after it accepted the request."""
    return NodePool(
        name=request.name,
        status=PoolStatus.PROVISIONING,
        labels=request.labels,
        taints=request.taints,
        machine_type=request.machine_type,
        node_count=0 if request.flex_start else request.node_count,
        max_node_count=request.node_count if request.flex_start else 0,
        zones=(request.zone,),
        topology=request.topology,
        policy_name=request.policy_name,
        spot=request.spot,
        flex_start=request.flex_start,
        reservation=request.reservation,
        disk_type=request.disk_type,
    )


def topology_of_request(request: NodePoolRequest) -> str:
    """Tell the topology of the slice that a request makes: that of the pool which GKE would list."""
    return request.topology or request.policy_topology or _single_host_topology(request.machine_type)


def topology_of_pool(pool: NodePool) -> str:
    """Tell the topology of the slice that a pool makes; empty where it can't be told."""
    if pool.topology:
        return pool.topology
    if constants.POOL_TOPOLOGY in pool.labels:
        return pool.labels[constants.POOL_TOPOLOGY]
    if pool.policy_name.startswith(_WORKLOAD_POLICY_PREFIX):
        return pool.policy_name.removeprefix(_WORKLOAD_POLICY_PREFIX)
    return _single_host_topology(pool.machine_type)


def _single_host_topology(machine_type: str) -> str:
    known = tpu.machine_type(machine_type)
    return known[1].single_host_topology if known else ""


def expected_view(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of this pool.

    CPU and memory are the machine's own: what the system keeps of them is known only once nodes are there.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    accelerator, machine = known
    added = (_CHIP_TAINT, *_CAPACITY_TAINTS.get(pool.capacity, ()))
    taints = tuple(taint for taint in pool.taints if taint.key not in constants.HELD_KEYS)
    return NodeView(
        labels=node_labels.predicted(pool, accelerator.label, machine, topology_of_pool(pool)),
        taints=tuple(dict.fromkeys((*taints, *added))),
        predicted=True,
        chips=machine.chips,
        cpu_millicores=machine.vcpus * 1000,
        memory_bytes=machine.memory_gib * _GIB,
    )


def _placed_topology(shape: tpu.Shape, settings: Settings) -> str:
    if shape.accelerator.workload_policy and shape.multi_host:
        return ""
    return str(shape.topology) if shape.multi_host or settings.single_host_placement else ""


def _workload_policy(shape: tpu.Shape, selector: Mapping[str, str]) -> str:
    if not (shape.accelerator.workload_policy and shape.multi_host):
        return ""
    return selector.get(constants.PLACEMENT_POLICY) or _default_policy(shape)


def _default_policy(shape: tpu.Shape) -> str:
    return f"{_WORKLOAD_POLICY_PREFIX}{shape.topology}"


def _disk_type(shape: tpu.Shape, settings: Settings) -> str:
    allowed = shape.machine_type.disk_types
    if settings.node_disk_type:
        if settings.node_disk_type not in allowed:
            raise UnmeetableError(
                f"GCP_NODE_DISK_TYPE is {settings.node_disk_type}, but {shape.machine_type.name} boots only from "
                f"{', '.join(allowed)}; the administrator has to change it or leave it empty"
            )
        return settings.node_disk_type
    # Where GKE's own default is accepted, GKE chooses.
    return "" if "pd-standard" in allowed else allowed[0]


def _taints(slice_: Slice, settings: Settings, kind: CapacityKind) -> tuple[Taint, ...]:
    taints = [_SPOT_TAINT] if kind is CapacityKind.SPOT else []
    if wishes.wants_all_or_nothing(slice_, settings) and slice_.siblings > 1:
        taints.append(HELD_LATE_TAINT if kind in LATE else HELD_TAINT)
    return tuple(taints)


def _service_account(slice_: Slice, settings: Settings) -> str:
    account = slice_.requirements.annotations.get(constants.NODE_SERVICE_ACCOUNT, "")
    if not account:
        return settings.node_service_account
    if account != settings.node_service_account and not forms.SERVICE_ACCOUNT.fullmatch(account):
        raise UnmeetableError(
            f"annotation {constants.NODE_SERVICE_ACCOUNT}={bounds.quoted(account)} is not the e-mail address of a "
            f"Google service account, such as NAME@PROJECT.iam.gserviceaccount.com"
        )
    _refuse(allowlists.service_account_problem(account, settings))
    return account


def _networks(slice_: Slice, settings: Settings) -> tuple[Network, ...]:
    annotation = slice_.requirements.annotations.get(constants.ADDITIONAL_NODE_NETWORKS, "")
    if not annotation:
        return settings.node_additional_networks
    try:
        networks = parse_networks(annotation)
    except ValueError as error:
        raise UnmeetableError(f"annotation {constants.ADDITIONAL_NODE_NETWORKS} {error}") from error
    _refuse(allowlists.network_problem(networks, settings))
    return networks


def _refuse(problem: str) -> None:
    if problem:
        raise UnmeetableError(problem)


def copied_labels(slice_: Slice, settings: Settings, choice: CapacityChoice) -> dict[str, str]:
    """Return the labels that a pool of a choice gets from the pod; raise UnmeetableError for those it may not set."""
    requirements = slice_.requirements
    selected = {
        key: value
        for key, value in requirements.node_selector.items()
        if key in _COPIED_SELECTORS or not node_labels.is_system(key)
    }
    pod_labels = requirements.labels
    asked = _asked_labels(slice_)
    if selected or asked:
        asked = asked - _withheld_labels(slice_, settings)
        named = (selected.keys() | asked) - set(settings.pod_to_node_labels) - set(_COPIED_SELECTORS)
        if selected.get(constants.LEGACY_POOL_ID) == slice_.workload.name:
            # It only says whose pool it is.
            named -= {constants.LEGACY_POOL_ID}
        _refuse(allowlists.label_problem(named, settings))
    keys = (*settings.pod_to_node_labels, *sorted(asked))
    copied = selected | {key: pod_labels[key] for key in keys if key in pod_labels}
    # Of these GKE labels nodes only where the creator of the pool asks for it.
    if choice.reservation:
        copied[constants.RESERVATION_AFFINITY] = "specific"
    if choice.kind is CapacityKind.FLEX_START and constants.MAX_RUN_SECONDS in requirements.node_selector:
        copied[constants.MAX_RUN_SECONDS] = requirements.node_selector[constants.MAX_RUN_SECONDS]
    forbidden = sorted(copied.keys() & constants.OWNER_LABELS) if copied else ()
    if forbidden:
        raise UnmeetableError(
            f"label {forbidden[0]} identifies the owner of the pool and cannot be copied from a pod; remove it from "
            "the "
            f"annotation {constants.COPY_LABELS} and from GCP_POD_TO_NODE_LABELS"
        )
    return copied


def labels_left_out(slice_: Slice, settings: Settings) -> str:
    """Say which labels a pod asks to have copied and may not set on nodes; empty for none."""
    if constants.COPY_LABELS not in slice_.requirements.annotations:
        return ""
    keys = sorted(_withheld_labels(slice_, settings))
    if not keys:
        return ""
    return (
        f"{constants.COPY_LABELS} names {', '.join(keys)}: labels of {', '.join(constants.SYSTEM_LABEL_DOMAINS)} are "
        "not copied to nodes, because others rely on them; remove them, or ask the administrator to name them in "
        "GCP_POD_TO_NODE_LABELS"
    )


def _asked_labels(slice_: Slice) -> set[str]:
    """Return the labels of the pod that its annotation asks to have copied."""
    annotation = slice_.requirements.annotations.get(constants.COPY_LABELS, "")
    if not annotation:
        return set()
    try:
        named = comma_items(annotation, what="labels", most=bounds.COPIED_LABELS)
    except ValueError as error:
        raise UnmeetableError(f"annotation {constants.COPY_LABELS} {error}") from error
    return slice_.requirements.labels.keys() & set(named)


def _withheld_labels(slice_: Slice, settings: Settings) -> set[str]:
    """Return those of them that say to others what a node is: a pod may not set them, unless a setting names them.

    A pattern in a setting is not enough: who writes `*` thinks of the labels of teams. What says whose pool it is
    (`OWNER_LABELS`) is refused, not left out.
    """
    asked = _asked_labels(slice_)
    if not asked:
        return asked
    named = {*settings.pod_to_node_labels, *(settings.allowed_label_keys or ())}
    asked = asked - named - _COPYABLE_LABELS - constants.OWNER_LABELS
    return {key for key in asked if node_labels.is_system(key)}


def _check_labels(labels: Mapping[str, str]) -> None:
    total = _STAMP_CHARACTERS + sum(map(len, labels)) + sum(map(len, labels.values()))
    if total > _MAX_LABEL_CHARACTERS:
        raise UnmeetableError(
            f"the pool's labels would have {total} characters, GKE allows {_MAX_LABEL_CHARACTERS}; copy fewer labels "
            f"({constants.COPY_LABELS}, GCP_POD_TO_NODE_LABELS, nodeSelector)"
        )
