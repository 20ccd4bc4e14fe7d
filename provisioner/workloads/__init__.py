"""Kinds of workloads, with functions that read their objects and pods from raw JSON."""

from provisioner.model.workloads import WorkloadKind
from provisioner.settings import Settings
from provisioner.workloads.capacity_requests import CAPACITY_BUFFER, PROVISIONING_REQUEST
from provisioner.workloads.job import PLAIN_JOB
from provisioner.workloads.jobset import JOBSET
from provisioner.workloads.kind import Kind
from provisioner.workloads.leaderworkerset import LEADER_WORKER_SET
from provisioner.workloads.raycluster import RAY_CLUSTER

#: All kinds except POD, which has no objects. Plain Jobs come last, because pods of a JobSet also belong to a Job.
KINDS = {
    description.kind: description
    for description in (JOBSET, LEADER_WORKER_SET, RAY_CLUSTER, PROVISIONING_REQUEST, CAPACITY_BUFFER, PLAIN_JOB)
}


def kinds_served(settings: Settings) -> dict[WorkloadKind, Kind]:
    """Return the kinds that the settings select."""
    return {kind: description for kind, description in KINDS.items() if description.served(settings)}


__all__ = [
    "JOBSET",
    "KINDS",
    "LEADER_WORKER_SET",
    "PLAIN_JOB",
    "PROVISIONING_REQUEST",
    "RAY_CLUSTER",
    "Kind",
    "kinds_served",
]
