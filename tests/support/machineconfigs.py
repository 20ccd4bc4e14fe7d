"""MachineConfigs of fictitious TPU generations, in the form of GKE's autoscaler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provisioner.kube.machineconfigs import MACHINE_CONFIGS
from provisioner.kube.protocol import object_path

Json = dict[str, Any]


def machine_config_path(name: str = "tpu9x") -> str:
    return object_path(MACHINE_CONFIGS.resource, name, root=MACHINE_CONFIGS.root)


def raw_machine(name: str, label: str, chips: int = 4, alone: str = "2x2", **properties: Any) -> Json:
    """Return a machine type of a family; `alone` is its single-host topology, empty if it has none."""
    config = {"tpuConfig": {"singleHostTopology": alone}} if alone else {}
    return {
        "name": name,
        "resources": {"cpus": 64, "memory": 512 * 1024, "accelerator": {"name": label, "fixedCount": chips, **config}},
        "properties": properties,
    }


def raw_machine_config(
    label: str = "tpu9x",
    *,
    machines: Iterable[Json] | None = None,
    topologies: Iterable[str] = ("2x2", "4x4"),
    provider: str = "tpu",
    **fields: Any,
) -> Json:
    """Return a MachineConfig of one accelerator; `fields` add or replace fields of the machine family."""
    family = {
        "name": label,
        "machineTypes": [raw_machine(f"{label}-standard-4t", label)] if machines is None else list(machines),
        "accelerators": [{"name": label, "providerType": provider, "topologies": list(topologies)}],
        **fields,
    }
    return {
        "apiVersion": "cloud.google.com/v1",
        "kind": "MachineConfig",
        "metadata": {"name": label},
        "spec": {"machineFamily": family},
    }
