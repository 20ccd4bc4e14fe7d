"""Properties of nodes that settings and pods request from any supplier, and predictions of nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, Taint
from provisioner.model.choices import reservation_parts
from provisioner.model.fit import NodeView
from provisioner.model.placement import job_labels
from provisioner.settings import Settings, forms
from provisioner.slices.demand import Slice, allowlists
from provisioner.slices.supplier import ImpossibleError, UnmeetableError

#: Taint of nodes that Google may take back: pods without the toleration do not get such capacity.
SPOT_TAINT = Taint(key=constants.SPOT, value="true")
#: Taint that keeps pods without chips off the nodes.
CHIP_TAINT = Taint(key=constants.TPU_RESOURCE, value="present")
#: Labels that GKE puts on nodes, by their kind of capacity.
CAPACITY_LABELS: Mapping[CapacityKind, Mapping[str, str]] = {
    CapacityKind.ON_DEMAND: {constants.PROVISIONING: "standard"},
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard"},
    CapacityKind.SPOT: {constants.PROVISIONING: "spot", constants.SPOT: "true"},
    CapacityKind.FLEX_START: {constants.PROVISIONING: "flex-start", constants.FLEX_START: "true"},
}
#: Node labels with the parts of a reservation's path, in the order of the parts.
RESERVATION_LABELS = (
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_NAME,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
)
_GIB = 1024**3


def complete(request: NodePoolRequest, slice_: Slice, shape: tpu.Shape, settings: Settings) -> NodePoolRequest:
    """Add the labels and the taint of the capacity, and the disk, identity and tags that all suppliers set."""
    labels, seconds = request.labels, slice_.requirements.node_selector.get(constants.MAX_RUN_SECONDS)
    if request.capacity is CapacityKind.FLEX_START and seconds is not None:
        labels = {**labels, constants.MAX_RUN_SECONDS: seconds}
    return replace(
        request,
        labels=labels,
        taints=(*_spot_taints(request.capacity), *request.taints),
        disk_type=_disk_type(shape, settings),
        service_account=_service_account(slice_, settings),
        oauth_scopes=settings.node_oauth_scopes,
        tags=settings.node_tags,
    )


def expected_node(
    pool: NodePool,
    labels: Callable[[NodePool, tpu.Accelerator, tpu.MachineType], Mapping[str, str]],
    offer: Callable[[tpu.MachineType], tuple[int, int, Mapping[str, int]]],
) -> NodeView:
    """Predict how the scheduler will see a node of a pool, by the `labels` of its nodes and the resources in `offer`.

    `offer` returns the CPU in millicores, the memory in bytes and `NodeView.other_bytes`.
    """
    known = tpu.machine_type(pool.machine_type)
    if known is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    accelerator, machine = known
    cpu_millicores, memory_bytes, other_bytes = offer(machine)
    taints = tuple(taint for taint in pool.taints if taint.key not in constants.HELD_KEYS)
    return NodeView(
        labels={**labels(pool, accelerator, machine), **job_labels(pool.labels, pool.taints)},
        taints=tuple(dict.fromkeys((*taints, CHIP_TAINT, *_spot_taints(pool.capacity)))),
        predicted=True,
        chips=machine.chips,
        cpu_millicores=cpu_millicores,
        memory_bytes=memory_bytes,
        other_bytes=other_bytes,
    )


def whole_machine(machine: tpu.MachineType) -> tuple[int, int, Mapping[str, int]]:
    """Return the CPU and memory of a machine: the share of the system is known only once nodes exist."""
    return machine.vcpus * 1000, machine.memory_gib * _GIB, {}


def _spot_taints(kind: CapacityKind) -> tuple[Taint, ...]:
    return (SPOT_TAINT,) if kind is CapacityKind.SPOT else ()


def machine_labels(pool: NodePool, accelerator: tpu.Accelerator, machine: tpu.MachineType) -> dict[str, str]:
    """Return the labels of a pool's machines by which pods select them."""
    return {
        constants.TPU_ACCELERATOR: accelerator.label,
        constants.TPU_TOPOLOGY: pool.topology,
        constants.ACCELERATOR_COUNT: str(machine.chips),
        constants.INSTANCE_TYPE: machine.name,
        constants.MACHINE_FAMILY: machine.name.partition("-")[0],
    }


def topology_of_machine(machine_type: str) -> str:
    """Return the topology of a slice of one such machine; empty if the type is unknown or has no such slice."""
    known = tpu.machine_type(machine_type)
    return known[1].single_host_topology if known else ""


def reservation_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels with the reservation of a pool; empty if the pool is not in a reservation."""
    if not pool.reservation:
        return {}
    parts = zip(RESERVATION_LABELS, reservation_parts(pool.reservation), strict=True)
    return {label: name for label, name in parts if name}


def _disk_type(shape: tpu.Shape, settings: Settings) -> str:
    """Return the boot disk's type, empty for Google's default; raise UnmeetableError if the machine lacks it."""
    allowed = shape.machine_type.disk_types
    if settings.node_disk_type:
        if settings.node_disk_type not in allowed:
            raise UnmeetableError(
                f"GCP_NODE_DISK_TYPE is {settings.node_disk_type}, but {shape.machine_type.name} boots only from "
                f"{', '.join(allowed)}; the administrator has to change it or leave it empty"
            )
        return settings.node_disk_type
    # Google chooses the disk if the machine accepts Google's default.
    return "" if "pd-standard" in allowed else allowed[0]


def _service_account(slice_: Slice, settings: Settings) -> str:
    """Return the service account, empty for Compute Engine's default; raise UnmeetableError if not allowed."""
    account = slice_.requirements.annotations.get(constants.NODE_SERVICE_ACCOUNT, "")
    if not account:
        return settings.node_service_account
    if account != settings.node_service_account and not forms.SERVICE_ACCOUNT.fullmatch(account):
        raise ImpossibleError(
            f"annotation {constants.NODE_SERVICE_ACCOUNT}={bounds.quoted(account)} is not the e-mail address of a "
            f"Google service account, such as NAME@PROJECT.iam.gserviceaccount.com"
        )
    problem = allowlists.service_account_problem(account, settings)
    if problem:
        raise UnmeetableError(problem)
    return account
