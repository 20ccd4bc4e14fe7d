"""Completes requests with the node settings of administrator and pods; predicts nodes. Used by all suppliers. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, Taint
from provisioner.model.choices import reservation_parts
from provisioner.model.fit import NodeView
from provisioner.model.placement import job_labels
from provisioner.settings import OPTIONS, Settings, forms
from provisioner.settings.node_fields import ROWS, own_settings
from provisioner.slices.demand import Slice, allowlists
from provisioner.slices.supplier import ImpossibleError, UnmeetableError

#: Taint of spot nodes, which Google may reclaim. Only pods that tolerate the taint get spot capacity.
SPOT_TAINT = Taint(key=constants.SPOT, value="true")
CHIP_TAINT = Taint(key=constants.TPU_RESOURCE, value="present")
SANDBOX_TAINT = Taint(key=constants.SANDBOX_RUNTIME, value=constants.GVISOR)
#: Labels of nodes by their kind of capacity, as GKE sets them.
CAPACITY_LABELS: Mapping[CapacityKind, Mapping[str, str]] = {
    CapacityKind.ON_DEMAND: {constants.PROVISIONING: "standard"},
    CapacityKind.RESERVATION: {constants.PROVISIONING: "standard"},
    CapacityKind.SPOT: {constants.PROVISIONING: "spot", constants.SPOT: "true"},
    CapacityKind.FLEX_START: {constants.PROVISIONING: "flex-start", constants.FLEX_START: "true"},
}
#: Keys of node labels for the parts of a reservation's path, in the order of `reservation_parts`.
RESERVATION_LABELS = (
    constants.RESERVATION_PROJECT,
    constants.RESERVATION_NAME,
    constants.RESERVATION_BLOCK,
    constants.RESERVATION_SUB_BLOCK,
)
_VARIABLES = {option.field: option.variable for option in OPTIONS}
_READERS = {option.field: option.read for option in OPTIONS}


def complete(
    request: NodePoolRequest, slice_: Slice, shape: tpu.Shape, settings: Settings, *, gke: bool
) -> NodePoolRequest:
    """Return the request with node settings, labels, taints and maximum run duration. Raises UnmeetableError."""
    requirements, values = slice_.requirements, _node_values(slice_, shape, settings, gke=gke)
    labels, seconds = {**request.labels, **dict(values.get("node_labels", ()))}, request.max_run_seconds
    selected = requirements.node_selector.get(constants.MAX_RUN_SECONDS)
    if selected is not None and (gke or request.capacity is CapacityKind.FLEX_START):
        # `Candidates.choices` has checked that the selected value is a number.
        labels[constants.MAX_RUN_SECONDS], seconds = selected, int(selected)
    seconds = seconds or int(values.get("node_max_run_seconds", 0))
    if request.capacity is CapacityKind.FLEX_START:
        seconds = min(seconds, forms.LONGEST_RUN_SECONDS)
    if settings_text := own_settings(requirements.annotations, requirements.node_selector):
        labels[constants.POOL_OWN_SETTINGS] = settings_text
    taints = (*_spot_taints(request.capacity), *request.taints, *values.get("node_taints", ()))
    return replace(request, labels=labels, taints=tuple(dict.fromkeys(taints)), max_run_seconds=seconds, node=values)


def _node_values(slice_: Slice, shape: tpu.Shape, settings: Settings, *, gke: bool) -> dict[str, Any]:
    values = {}
    for name, row in ROWS.items():
        value, source = getattr(settings, name), _VARIABLES[name]
        wish = _requested_value(slice_, name, settings, gke=gke)
        if wish is not None:
            value, source = _merged(wish, value) if row.adds else wish, row.annotation
        if name == "node_disk_type" and not value and "pd-standard" not in shape.machine_type.disk_types:
            # Without a value, machine types without pd-standard get their first disk type; others get Google's default.
            value = shape.machine_type.disk_types[0]
        # Empty and false values are Google's defaults and left out, but the default of `node_private` is the cluster's.
        if value is None or not (value or name == "node_private") or not (gke or row.on_gce):
            continue
        if problem := row.problem(value, shape):
            raise UnmeetableError(f"{source} is {bounds.cut(str(value))}, but {problem}", "change or remove it")
        values[name] = value
    return values


def _requested_value(slice_: Slice, name: str, settings: Settings, *, gke: bool) -> Any:
    """Return the value that a slice's pods request for a node setting; None without one. Raises UnmeetableError."""
    requirements, row, default = slice_.requirements, ROWS[name], getattr(settings, name)
    key = row.annotation if requirements.annotations.get(row.annotation) else row.selector
    text = (requirements.annotations.get(key) or requirements.node_selector.get(key, "")) if key else ""
    if not text or text == default:
        return text or None
    if not (gke or row.on_gce):
        raise UnmeetableError(f"{key} chooses what a TPUNodeGroup (PROVIDER=gce) cannot have", "remove it")
    try:
        value = (row.reads or _READERS[name])(text)
    except ValueError as error:
        raise ImpossibleError(f"{key}={bounds.quoted(text)} {error.args[0]}", *error.args[1:]) from error
    match name:
        case "node_service_account":
            problem = allowlists.service_account_problem(value, settings)
        case "node_additional_networks":
            problem = allowlists.network_problem(value, settings)
        case _:
            setting = row.annotation.rpartition("/")[2]
            problem = () if value == default else allowlists.node_setting_problem(setting, text, settings)
    if problem:
        raise UnmeetableError(*problem)
    return value


def _merged(added: tuple[Any, ...], base: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the administrator's entries (`base`), then the pods' entries (`added`) whose names are not in `base`."""
    names = set(map(_name_of, base))
    return (*base, *(entry for entry in added if _name_of(entry) not in names))


def _name_of(entry: Any) -> str:
    return str(entry[0] if isinstance(entry, tuple) else getattr(entry, "key", entry))


def expected_node(
    pool: NodePool,
    labels: Callable[[NodePool, tpu.Accelerator, tpu.MachineType], Mapping[str, str]],
    offer: Callable[[NodePool, tpu.MachineType], tuple[int, int, Mapping[str, int]]],
) -> NodeView:
    """Predict how the scheduler will see a node of a pool. `labels` predicts the labels of the node.

    `offer` predicts the resources of the node: CPU in millicores, memory in bytes, and `NodeView.other_bytes`.
    """
    entry = tpu.machine_type(pool.machine_type)
    if entry is None:
        return NodeView(labels=pool.labels, taints=pool.taints, chips=0, cpu_millicores=0, memory_bytes=0)
    accelerator, machine = entry
    cpu_millicores, memory_bytes, other_bytes = offer(pool, machine)
    taints = tuple(taint for taint in pool.taints if taint.key not in constants.HELD_KEYS)
    sandboxed = (SANDBOX_TAINT,) if "node_sandbox" in pool.node else ()
    return NodeView(
        labels={**labels(pool, accelerator, machine), **job_labels(pool.labels, pool.taints)},
        taints=tuple(dict.fromkeys((*taints, CHIP_TAINT, *_spot_taints(pool.capacity), *sandboxed))),
        predicted=True,
        chips=machine.chips,
        cpu_millicores=cpu_millicores,
        memory_bytes=memory_bytes,
        other_bytes=other_bytes,
    )


def whole_machine(_: NodePool, machine: tpu.MachineType) -> tuple[int, int, Mapping[str, int]]:
    """Return all CPU and memory of a machine, because the system's share is unknown; for `offer` of `expected_node`."""
    return machine.vcpus * 1000, machine.memory_gib << 30, {}


def _spot_taints(kind: CapacityKind) -> tuple[Taint, ...]:
    return (SPOT_TAINT,) if kind is CapacityKind.SPOT else ()


def machine_labels(pool: NodePool, accelerator: tpu.Accelerator, machine: tpu.MachineType) -> dict[str, str]:
    """Return the labels of a pool's nodes for accelerator, topology and machine type."""
    return {
        constants.TPU_ACCELERATOR: accelerator.label,
        constants.TPU_TOPOLOGY: pool.topology,
        constants.ACCELERATOR_COUNT: str(machine.chips),
        constants.INSTANCE_TYPE: machine.name,
        constants.MACHINE_FAMILY: machine.name.partition("-")[0],
    }


def topology_of_machine(machine_type: str) -> str:
    """Return the topology of a slice of one machine; empty if the type is unknown or has no such slice."""
    entry = tpu.machine_type(machine_type)
    return entry[1].single_host_topology if entry else ""


def reservation_labels(pool: NodePool) -> dict[str, str]:
    """Return the node labels for the reservation of a pool; empty if the pool is in no reservation."""
    if not pool.reservation:
        return {}
    parts = zip(RESERVATION_LABELS, reservation_parts(pool.reservation), strict=True)
    return {label: name for label, name in parts if name}
