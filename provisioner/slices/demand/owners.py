"""Completes the workloads of a snapshot by those that follow from pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner.model.workloads import Pod, Workload, WorkloadKind, WorkloadUid
from provisioner.workloads.plain import as_plain, workloads_of

_Workloads = Mapping[WorkloadUid, Workload]


def with_owners(
    workloads: _Workloads, pods: Iterable[Pod], *, serve_pods: str = "all"
) -> tuple[dict[WorkloadUid, Workload], tuple[Pod, ...]]:
    """Return the workloads with those of kind POD, and the pods.

    With SERVE_PODS=all, pods of Jobs that are not served become of kind POD. The UID of the Job is that of the workload
    in both cases, so a pool keeps its slice when the Job appears.
    """

    def is_plain(pod: Pod) -> bool:
        return serve_pods == "all" and pod.kind is WorkloadKind.JOB and pod.workload_uid not in workloads

    found = tuple(as_plain(pod) if is_plain(pod) else pod for pod in pods)
    return {**{each.uid: each for each in workloads_of(found)}, **workloads}, found
