"""Reads GKE's MachineConfigs: objects in the cluster with the available machine types, accelerators and topologies.

Google does not document MachineConfigs. GKE's autoscaler reads the same fields (GoogleCloudPlatform/cluster-autoscaler,
apis/machineconfig/cloud.google.com/v1). docs/develop/reality.md lists the assumptions.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import structlog

from provisioner import tpu
from provisioner.kube import fields
from provisioner.kube.kept import Key
from provisioner.kube.reflector import Collection
from provisioner.tpu.catalogue import GENERATION_LABEL

_log = structlog.get_logger(__name__)

MACHINE_CONFIGS = Collection(
    name="MachineConfigs", resource="machineconfigs", root="/apis/cloud.google.com/v1", optional=True
)
#: Types of TPUs that each MachineConfig lists, by namespace and name of the MachineConfig.
Listed: TypeAlias = Mapping[Key, tuple[tpu.Accelerator, ...]]
#: Modes of usagePolicy in which GKE's autoscaler ignores the machine types of a family.
_INACTIVE_MODES = frozenset({"Legacy", "WeightsOnly"})
_ARCHITECTURES = frozenset({"amd64", "arm64"})
#: Maximum number of entries that are read of one list, and maximum number of chips of a VM that is accepted.
_MAX_ENTRIES, _MAX_CHIPS = 1024, 64


def parse_machine_config(raw: Any) -> tuple[tpu.Accelerator, ...] | None:
    """Return the types of TPUs in a MachineConfig; None if it is inactive or lists no TPUs. Raises MalformedObject."""
    try:
        family = raw["spec"].get("machineFamily") or {}
        if (family.get("usagePolicy") or {}).get("mode") in _INACTIVE_MODES:
            return None
        tpus = [entry for entry in _entries(family, "accelerators") if entry.get("providerType") == "tpu"]
        return tuple(_accelerator(accelerator, family) for accelerator in tpus) or None
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        name = fields.name(fields.at(raw, "metadata").get("name"))
        raise fields.MalformedObject(f"MachineConfig {name} cannot be read: {error!r}") from error


def _entries(raw: Mapping[str, Any], key: str) -> list[Any]:
    return list(raw.get(key) or ())[:_MAX_ENTRIES]


def _accelerator(raw: Mapping[str, Any], family: Mapping[str, Any]) -> tpu.Accelerator:
    label, defaults = raw["name"], family.get("defaultProperties") or {}
    machines = tuple(
        _machine_type(entry, defaults)
        for entry in _entries(family, "machineTypes")
        if (entry["resources"].get("accelerator") or {}).get("name") == label
    )
    alone = (machine.single_host_topology for machine in machines if machine.single_host_topology)
    return tpu.Accelerator(
        label=label,
        generation=label,
        machine_types=machines,
        listed_topologies=tuple(
            str(tpu.Topology.parse(topology)) for topology in (*_entries(raw, "topologies"), *alone)
        ),
        workload_policy=GENERATION_LABEL.fullmatch(label) is not None,
    )


def _machine_type(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> tpu.MachineType:
    name, resources, own_properties = str(raw["name"]), raw["resources"], raw.get("properties") or {}
    # A property that the machine type does not set has the value of the machine family.
    properties = {**defaults, **{key: value for key, value in own_properties.items() if value is not None}}
    accelerator, disks = resources["accelerator"], properties.get("bootDiskConfig") or {}
    alone = (accelerator.get("tpuConfig") or {}).get("singleHostTopology") or ""
    chips, cpus, memory_gib = int(accelerator["fixedCount"]), int(resources["cpus"]), int(resources["memory"]) // 1024
    matches = not alone or tpu.Topology.parse(alone).chips == chips
    if not (1 <= chips <= _MAX_CHIPS and matches and min(cpus, memory_gib) > 0):
        raise ValueError(f"{name} has {chips} chips, topology {alone!r}, {cpus} CPUs and {memory_gib} GiB")
    named = dict.fromkeys(str(entry) for entry in (disks.get("defaultType"), *_entries(disks, "types")) if entry)
    # If no disk type is listed, assume Hyperdisk Balanced, the only type that the newest generations support.
    boot, on_request = tuple(named) or ("hyperdisk-balanced",), properties.get("napDisabled") is True
    arch = str(properties.get("systemArchitecture")).lower()
    arch = arch if arch in _ARCHITECTURES else ""
    return tpu.MachineType(name, chips, alone, cpus, memory_gib, boot, only_on_request=on_request, arch=arch)


def extend_catalogue(listed: Listed, before: Listed) -> Listed:
    """Extend the catalogue of TPUs by `listed`; return `before`, the last result, with `listed` added.

    Keeps types of deleted MachineConfigs, because CRD upgrades recreate the objects. Call only between decisions.
    """
    every = {**before, **listed}
    if every == before:
        return before
    for contradiction in tpu.extend(offer for _, offers in sorted(every.items()) for offer in offers):
        _log.warning("machineconfigs.contradiction", problem=contradiction)
    return every
