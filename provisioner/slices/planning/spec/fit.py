"""Checks before the create of a pool whether its nodes will fit the pods of the slice. Pure."""

from provisioner import constants, tpu
from provisioner.model.capacity import NodePoolRequest, expected_pool
from provisioner.model.fit import misfit, room_misfit
from provisioner.model.workloads import Requirements
from provisioner.settings import Settings
from provisioner.slices.supplier import ImpossibleError, PoolRules, UnmeetableError, whole_machine


def check_fit(demand: Requirements, request: NodePoolRequest, settings: Settings, rules: PoolRules) -> None:
    """Raise UnmeetableError if no node of the requested pool would fit the pods of a slice.

    Requests of DaemonSets are unknown and are not subtracted, so the pods may not fit although no error is raised.
    """
    pool = expected_pool(request)
    view = rules.expected_node(pool)
    largest = whole_machine(view, pool)
    if demand.annotations.get(constants.IGNORE_NODE_ESTIMATE) == "true":
        view = largest
    too_large = room_misfit(demand, view)
    clauses = [*(too_large or misfit(demand, view) or _disk_misfit(demand, request.machine_type))]
    if clauses:
        if too_large:
            pages = f"set GCP_NODE_LINUX_CONFIG or the annotation {constants.NODE_SETTING_PREFIX}linux-config"
            clauses.append(pages if "hugepages-" in too_large[0] else "request less in each pod")
            if not room_misfit(demand, largest):
                clauses[-1] += f', or set the annotation {constants.IGNORE_NODE_ESTIMATE} to "true" if nodes offer more'
        kinds = (constants.SPOT, constants.FLEX_START)
        if settings.force_on_demand:
            clauses[-1] += " (GCP_FORCE_ON_DEMAND is set)"
        elif wrong := next((key for key in kinds if demand.node_selector.get(key, "true") != "true"), ""):
            clauses.append(f'write {wrong}: "true", or remove it')
        error = ImpossibleError if _exceeds_machine(demand, request.machine_type) else UnmeetableError
        raise error(*clauses)


def _disk_misfit(demand: Requirements, machine_type: str) -> tuple[str, ...]:
    entry, disks = tpu.machine_type(machine_type), demand.volumes.disks if demand.volumes is not None else ()
    # Machines that boot only from Hyperdisk attach no Persistent Disk (Google's pages on v6e and tpu7x).
    if entry is None or any(type_.startswith("pd-") for type_ in entry[1].disk_types):
        return ()
    disk = next((type_ for type_ in disks if type_.startswith("pd-")), "")
    return (f"a volume of the pod is a disk of type {disk}, which {machine_type} cannot attach",) if disk else ()


def _exceeds_machine(demand: Requirements, machine_type: str) -> bool:
    entry = tpu.machine_type(machine_type)
    if entry is None:
        return False
    _, machine = entry
    return (
        demand.chips > machine.chips
        or demand.cpu_millicores > machine.vcpus * 1000
        or demand.memory_bytes > machine.memory_gib << 30
    )
