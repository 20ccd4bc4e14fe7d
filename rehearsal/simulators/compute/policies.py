"""Workload policies: what Compute Engine refuses of them.

By "About workload policies" a policy has a type, and may have either an accelerator topology or a maximum distance; a
topology needs HIGH_THROUGHPUT. Which topologies exist depends on the machine type, and so shows only in a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.simulators.compute import errors
from rehearsal.simulators.machines import parse_topology


def check_policy(body: Mapping[str, Any]) -> None:
    """Refuse a resource policy that can't be made."""
    policy = body.get("workloadPolicy")
    if policy is None:
        raise errors.invalid("resource", "", "Exactly one type of policy must be specified.")
    if "type" not in policy:
        raise errors.required("resource.workloadPolicy.type")
    topology, kind = policy.get("acceleratorTopology"), policy["type"]
    if topology is not None:
        field = "resource.workloadPolicy.acceleratorTopology"
        if parse_topology(topology) is None:
            raise errors.invalid(field, topology, "Must be a topology such as 4x4x4.")
        if kind != "HIGH_THROUGHPUT":
            raise errors.invalid(field, topology, "Can be specified only with type HIGH_THROUGHPUT.")
        if "maxTopologyDistance" in policy:
            raise errors.invalid(field, topology, "Can't be specified together with maxTopologyDistance.")
    elif "acceleratorTopologyMode" in policy:
        raise errors.required("resource.workloadPolicy.acceleratorTopology")
