"""The kinds of workloads, a file each: where their objects live, what these and their pods say, read from raw JSON.

`KINDS` lists all, `kinds_served` those that the settings ask for.
"""

from provisioner.model.workloads import WorkloadKind
from provisioner.settings import Settings
from provisioner.workloads.asks import CAPACITY_BUFFER, PROVISIONING_REQUEST
from provisioner.workloads.job import PLAIN_JOB
from provisioner.workloads.jobset import JOBSET
from provisioner.workloads.kind import Kind
from provisioner.workloads.leaderworkerset import LEADER_WORKER_SET
from provisioner.workloads.raycluster import RAY_CLUSTER

#: By their kind. Plain Jobs come last: pods of other kinds may be pods of Jobs too.
KINDS = {
    each.kind: each
    for each in (JOBSET, LEADER_WORKER_SET, RAY_CLUSTER, PROVISIONING_REQUEST, CAPACITY_BUFFER, PLAIN_JOB)
}


def kinds_served(settings: Settings) -> dict[WorkloadKind, Kind]:
    """Return the kinds that the settings ask for."""
    return {kind: each for kind, each in KINDS.items() if each.served(settings)}


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
