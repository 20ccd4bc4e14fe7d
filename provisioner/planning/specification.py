"""What a node pool is asked to be, and what its nodes will look like."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace

from provisioner import constants, tpu
from provisioner.demand import Slice
from provisioner.model.capacity import Network, NodePool, NodePoolRequest, PoolStatus, Taint
from provisioner.planning.fit import NodeView, misfit
from provisioner.planning.names import pool_name
from provisioner.settings import Settings, parse_networks, region_of

#: config.labels of the GKE API: "supports up to 1,024 total characters in a single request".
_MAX_LABEL_CHARACTERS = 1024
_MAX_LABEL_VALUE = 63
_GIB = 1024**3
_CHIP_TAINT = Taint(key=constants.TPU_RESOURCE, value="present")
_SPOT_TAINT = Taint(key=constants.SPOT, value="true")
#: Google's own selectors that the creator of a pool has to pass on as node labels.
_COPIED_SELECTORS = (constants.ICI_RESILIENCY, constants.LOCATION_HINT)
_WORKLOAD_POLICY_PREFIX = "tpu-provisioner-"
#: projects/P/reservations/R, which blocks may follow.
_RESERVATION_PATH_PARTS = 4


class UnmeetableError(ValueError):
    """No node pool can serve the slice as it is; the message says why and what to change."""


def pool_request(slice_: Slice, settings: Settings, attempt: int) -> NodePoolRequest:
    """Specify the node pool for one attempt of a slice; raise UnmeetableError where none would serve it.

    A pool is only ever specified when the leader pod would fit its nodes: what can't be used is not bought.
    """
    shape = slice_.shape
    if shape is None:
        raise UnmeetableError(slice_.shape_problem)
    if shape.multi_host and slice_.parallelism > slice_.nodes:
        raise UnmeetableError(
            f"job {slice_.job_name} has parallelism {slice_.parallelism}, but a slice of topology {shape.topology} has "
            f"{slice_.nodes} hosts with one pod each; set parallelism to {slice_.nodes} or choose a larger topology"
        )
    selector = slice_.requirements.node_selector
    spot, reservation = _capacity(selector, settings)
    request = NodePoolRequest(
        name=pool_name(slice_.jobset.name, slice_.id, attempt),
        zone=settings.zone,
        machine_type=shape.machine_type.name,
        node_count=slice_.nodes,
        topology=_placed_topology(shape, settings),
        policy_name=_workload_policy(shape, selector),
        labels=_labels(slice_, settings),
        taints=(_SPOT_TAINT,) if spot else (),
        spot=spot,
        reservation=reservation,
        disk_type=_disk_type(shape, settings),
        service_account=slice_.requirements.annotations.get(
            constants.NODE_SERVICE_ACCOUNT, settings.node_service_account
        ),
        tags=settings.node_tags,
        additional_networks=_networks(slice_, settings),
        max_pods_per_node=settings.max_pods_per_node,
        secure_boot=settings.node_secure_boot,
        secondary_boot_disk=settings.node_secondary_disk,
        confidential_storage=settings.node_confidential_storage,
        boot_disk_kms_key=settings.node_boot_disk_kms_key,
    )
    if request.policy_name and request.policy_name != _default_policy(shape):
        request = replace(request, labels={**request.labels, constants.POOL_TOPOLOGY: str(shape.topology)})
    digest = fingerprint(request)
    request = replace(
        request,
        labels={**request.labels, constants.NODEPOOL_HASH: digest, constants.POOL_ATTEMPT: str(attempt)},
    )
    _check_labels(request.labels)
    reason = misfit(slice_.requirements, expected_view(expected_pool(request)))
    if reason:
        hint = " (GCP_FORCE_ON_DEMAND is set)" if settings.force_on_demand else ""
        raise UnmeetableError(f"no node of a pool in {settings.zone} would take the pod: {reason}{hint}")
    return request


def fingerprint(request: NodePoolRequest) -> str:
    """Digest all of a request but its name and attempt: equal digests ask GKE for the same thing."""
    content = {each.name: getattr(request, each.name) for each in fields(request)}
    content["name"] = ""
    content["labels"] = sorted(
        (key, value)
        for key, value in request.labels.items()
        if key not in (constants.POOL_ATTEMPT, constants.NODEPOOL_HASH)
    )
    return hashlib.sha256(repr(sorted(content.items())).encode()).hexdigest()[:16]


def expected_pool(request: NodePoolRequest) -> NodePool:
    """Return the pool that GKE would list right after it accepted the request."""
    return NodePool(
        name=request.name,
        status=PoolStatus.PROVISIONING,
        labels=request.labels,
        taints=request.taints,
        machine_type=request.machine_type,
        node_count=request.node_count,
        zones=(request.zone,),
        topology=request.topology,
        policy_name=request.policy_name,
        spot=request.spot,
        reservation=request.reservation,
    )


def topology_of_pool(pool: NodePool) -> str:
    """Tell the topology of the slice that a pool makes; empty where it can't be told."""
    if pool.topology:
        return pool.topology
    if constants.POOL_TOPOLOGY in pool.labels:
        return pool.labels[constants.POOL_TOPOLOGY]
    if pool.policy_name.startswith(_WORKLOAD_POLICY_PREFIX):
        return pool.policy_name.removeprefix(_WORKLOAD_POLICY_PREFIX)
    known = tpu.machine_type(pool.machine_type)
    return known[1].single_host_topology if known else ""


def expected_view(pool: NodePool) -> NodeView:
    """Predict how the scheduler will see a node of this pool.

    CPU and memory are the machine's own: what the system keeps of them is known only once nodes are there.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    accelerator, machine = known
    labels = dict(pool.labels)
    labels |= {
        constants.NODE_POOL: pool.name,
        constants.TPU_ACCELERATOR: accelerator.label,
        constants.TPU_TOPOLOGY: topology_of_pool(pool),
        constants.INSTANCE_TYPE: machine.name,
        constants.ACCELERATOR_COUNT: str(machine.chips),
        constants.OS: "linux",
        constants.ARCH: "amd64",
    }
    if pool.zones:
        labels |= {constants.ZONE: pool.zones[0], constants.REGION: region_of(pool.zones[0])}
    labels[constants.PROVISIONING] = "spot" if pool.spot else "standard"
    if pool.spot:
        labels[constants.SPOT] = "true"
    if pool.policy_name:
        labels[constants.PLACEMENT_POLICY] = pool.policy_name
    if pool.reservation:
        labels |= _reservation_labels(pool.reservation)
    spot_taint = (_SPOT_TAINT,) if pool.spot and _SPOT_TAINT not in pool.taints else ()
    return NodeView(
        labels=labels,
        taints=(*pool.taints, *spot_taint, _CHIP_TAINT),
        chips=machine.chips,
        cpu_millicores=machine.vcpus * 1000,
        memory_bytes=machine.memory_gib * _GIB,
    )


def capacity_type(*, spot: bool, reservation: str) -> str:
    """Name the kind of capacity: what back-off after a stockout is kept by."""
    if reservation:
        return f"reservation {reservation.rsplit('/', 1)[-1]}"
    return "spot" if spot else "on-demand"


def _capacity(selector: Mapping[str, str], settings: Settings) -> tuple[bool, str]:
    """Return (spot, reservation)."""
    if settings.force_on_demand:
        return False, ""
    name = selector.get(constants.RESERVATION_NAME, "")
    project = selector.get(constants.RESERVATION_PROJECT, "")
    if name and project:
        name = f"projects/{project}/reservations/{name}"
    spot = selector.get(constants.SPOT) == "true"
    if spot and name:
        raise UnmeetableError(
            f"the pod selects {constants.SPOT}=true and {constants.RESERVATION_NAME}={name}; spot capacity cannot "
            f"come from a reservation, remove one of the two"
        )
    return spot, name


def _reservation_labels(reservation: str) -> dict[str, str]:
    parts = reservation.split("/")
    if parts[0] == "projects" and len(parts) >= _RESERVATION_PATH_PARTS:
        return {constants.RESERVATION_PROJECT: parts[1], constants.RESERVATION_NAME: parts[3]}
    return {constants.RESERVATION_NAME: parts[0]}


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
                f"{', '.join(allowed)}; whoever runs the provisioner has to change it or leave it empty"
            )
        return settings.node_disk_type
    # Where GKE's own default is accepted, GKE chooses.
    return "" if "pd-standard" in allowed else allowed[0]


def _networks(slice_: Slice, settings: Settings) -> tuple[Network, ...]:
    annotation = slice_.requirements.annotations.get(constants.ADDITIONAL_NODE_NETWORKS, "")
    if not annotation:
        return settings.node_additional_networks
    try:
        return parse_networks(annotation)
    except ValueError as error:
        raise UnmeetableError(f"annotation {constants.ADDITIONAL_NODE_NETWORKS} {error}") from error


def _labels(slice_: Slice, settings: Settings) -> dict[str, str]:
    copied = {
        key: value
        for key, value in slice_.requirements.node_selector.items()
        if key in _COPIED_SELECTORS or not _system_label(key)
    }
    annotation = slice_.requirements.annotations.get(constants.COPY_LABELS, "")
    keys = (*settings.pod_to_node_labels, *(key.strip() for key in annotation.split(",")))
    copied |= {key: slice_.requirements.labels[key] for key in keys if key in slice_.requirements.labels}
    forbidden = sorted(copied.keys() & constants.OWNER_LABELS)
    if forbidden:
        raise UnmeetableError(
            f"label {forbidden[0]} says whose pool it is and cannot be copied from a pod; remove it from the "
            f"annotation {constants.COPY_LABELS} and from GCP_POD_TO_NODE_LABELS"
        )
    jobset = slice_.jobset
    return copied | {
        constants.NODEPOOL_MANAGER: constants.MANAGER,
        constants.PARENT_KIND: "job",
        constants.PARENT_NAME: _label_value(slice_.job_name),
        constants.PARENT_NAMESPACE: jobset.namespace,
        constants.POOL_JOBSET_NAME: _label_value(jobset.name),
        constants.POOL_JOBSET_NAMESPACE: jobset.namespace,
        constants.POOL_JOBSET_UID: jobset.uid,
        constants.POOL_JOB_KEY: slice_.id.job_key,
    }


def _label_value(text: str) -> str:
    """Cut a name to what a label holds: it must end in a letter or digit."""
    return text[:_MAX_LABEL_VALUE].rstrip("-_.")


def _system_label(key: str) -> bool:
    prefix, separator, _ = key.rpartition("/")
    return bool(separator) and any(
        prefix == domain or prefix.endswith(f".{domain}") for domain in constants.SYSTEM_LABEL_DOMAINS
    )


def _check_labels(labels: Mapping[str, str]) -> None:
    total = sum(len(key) + len(value) for key, value in labels.items())
    if total > _MAX_LABEL_CHARACTERS:
        raise UnmeetableError(
            f"the pool's labels would have {total} characters, GKE takes {_MAX_LABEL_CHARACTERS}; copy fewer labels "
            f"({constants.COPY_LABELS}, GCP_POD_TO_NODE_LABELS, nodeSelector)"
        )
