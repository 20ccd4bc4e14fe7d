"""Pools as they really are: whose they are, and what fits them."""

from __future__ import annotations

from typing import Any

from provisioner import constants, tpu
from provisioner.simulators.gke.records import Pool
from tests.simulation.objects import JobSetRun, Shape


def is_ours(pool: Pool) -> bool:
    """Whether a pool says that the provisioner made it."""
    return constants.POOL_JOBSET_NAME in pool.body.get("config", {}).get("labels", {})


def workload_name(pool: Pool) -> str:
    """Return the name of the JobSet that a pool of ours was made for."""
    name: str = pool.body["config"]["labels"][constants.POOL_JOBSET_NAME]
    return name


def owner_of(labels: dict[str, Any]) -> tuple[str, str]:
    """Return the JobSet's UID and the job key on a pool."""
    return labels.get(constants.POOL_JOBSET_UID, ""), labels.get(constants.POOL_JOB_KEY, "")


def fits(workload: JobSetRun, pool: Pool) -> bool:
    """Whether a pool is what the slices of a JobSet need."""
    return fits_shape(workload, workload.shape, pool)


def fits_shape(workload: JobSetRun, shape: Shape, pool: Pool) -> bool:
    """Whether a pool is what the slices of a JobSet need, if they have that shape."""
    plan = pool.plan
    spot = bool(pool.body["config"].get("spot"))
    return (
        plan.machine.accelerator == shape.accelerator
        and plan.topology == shape.topology
        and hosts(pool) == shape.hosts
        and (spot == shape.spot or (spot and shape.tolerant))
        and (not workload.gang or separate_label(pool) == workload.name)
    )


def separate_label(pool: Pool) -> str:
    """Return the label that keeps other JobSets off the nodes, empty for none."""
    label: str = pool.body["config"]["labels"].get(constants.LEGACY_POOL_ID, "")
    return label


def hosts(pool: Pool) -> int:
    """Return how many hosts a pool has, or is going to have."""
    return pool.plan.hosts_per_zone or pool.plan.scale_up_hosts


def chips_asked(body: dict[str, Any]) -> int:
    """Return the chips that a request to create a pool asks for."""
    asked = body.get("initialNodeCount", 0) or body.get("autoscaling", {}).get("maxNodeCount", 0)
    known = tpu.machine_type(body["config"]["machineType"])
    return int(asked) * (known[1].chips if known is not None else 0)


def same_kind(one: Pool, other: Pool) -> bool:
    """Whether two pools are the same to all pods."""
    return (
        one.plan.machine.name == other.plan.machine.name
        and one.plan.topology == other.plan.topology
        and hosts(one) == hosts(other)
        and one.body["config"].get("spot") == other.body["config"].get("spot")
        # A JobSet that was made again may select what the pool of its namesake does not have.
        and separate_label(one) == separate_label(other)
    )
