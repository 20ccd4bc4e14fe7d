"""Helpers for pools of the simulated GKE: owner, size, and the slices that fit a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioner import constants, tpu
from provisioner.model.workloads import WorkloadKind
from rehearsal.simulators.gke.records import Pool
from tests.simulation.objects import Shape, WorkloadRun


def is_ours(pool: Pool) -> bool:
    return are_ours(pool.body.get("config", {}).get("labels", {}))


def are_ours(labels: Mapping[str, Any]) -> bool:
    """Whether the labels of a pool or of a node show that the provisioner created the pool."""
    return constants.POOL_JOBSET_NAME in labels or constants.POOL_WORKLOAD_NAME in labels


def workload_name(pool: Pool) -> tuple[str, str]:
    labels = pool.body["config"]["labels"]
    if constants.POOL_WORKLOAD_NAME in labels:
        return labels[constants.POOL_WORKLOAD_KIND], labels[constants.POOL_WORKLOAD_NAME]
    return WorkloadKind.JOBSET, labels[constants.POOL_JOBSET_NAME]


def namespace_of(labels: Mapping[str, Any]) -> str:
    namespace: str = labels.get(constants.POOL_WORKLOAD_NAMESPACE) or labels[constants.POOL_JOBSET_NAMESPACE]
    return namespace


def owner_of(labels: dict[str, Any]) -> tuple[str, str]:
    """Return the workload's UID and the group's key in the labels of a pool."""
    if constants.POOL_WORKLOAD_NAME in labels:
        return labels.get(constants.POOL_WORKLOAD_UID, ""), labels.get(constants.POOL_GROUP_KEY, "")
    return labels.get(constants.POOL_JOBSET_UID, ""), labels.get(constants.POOL_JOB_KEY, "")


def fits(workload: WorkloadRun, job: int, pool: Pool) -> bool:
    return fits_shape(workload, workload.shape_of(job), pool)


def fits_shape(workload: WorkloadRun, shape: Shape, pool: Pool) -> bool:
    """Whether a pool is suitable for slices of a workload that have this shape."""
    plan = pool.plan
    spot = bool(pool.body["config"].get("spot"))
    return (
        plan.machine.accelerator == shape.accelerator
        and plan.topology == shape.topology
        and hosts(pool) == shape.hosts
        and (spot == shape.spot or (spot and shape.tolerant))
        and (not workload.separate or separate_label(pool) == workload.name)
    )


def separate_label(pool: Pool) -> str:
    """Return the label that pods of a `separate` workload select, empty if the pool has none."""
    label: str = pool.body["config"]["labels"].get(constants.LEGACY_POOL_ID, "")
    return label


def hosts(pool: Pool) -> int:
    return pool.plan.hosts_per_zone or pool.plan.scale_up_hosts


def chips_in(pool: Pool) -> int:
    return hosts(pool) * pool.plan.machine.chips


def chips_asked(body: dict[str, Any]) -> int:
    asked = body.get("initialNodeCount", 0) or body.get("autoscaling", {}).get("maxNodeCount", 0)
    known = tpu.machine_type(body["config"]["machineType"])
    return int(asked) * (known[1].chips if known is not None else 0)


def same_kind(one: Pool, other: Pool) -> bool:
    """Whether two pools are interchangeable for all pods."""
    return (
        one.plan.machine.name == other.plan.machine.name
        and one.plan.topology == other.plan.topology
        and hosts(one) == hosts(other)
        and one.body["config"].get("spot") == other.body["config"].get("spot")
        # The label must agree, because a recreated workload may select a label that the earlier pool does not have.
        and separate_label(one) == separate_label(other)
    )
