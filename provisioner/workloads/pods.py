"""Pods of workloads, of whichever kind, read whatever JSON comes in."""

from __future__ import annotations

from typing import Any

from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, WorkloadUid, group_key
from provisioner.workloads import KINDS, LEADER_WORKER_SET
from provisioner.workloads.kind import Claim

#: A pod is of the first kind that it may be of. Pods of LeaderWorkerSets are told by what controls them, whatever else
#: their labels say.
_CLAIMS = tuple(dict.fromkeys((LEADER_WORKER_SET, *KINDS.values())))


def parse_pod(raw: object) -> Pod | None:
    """Read a pod; None unless it belongs to a workload and asks for chips."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    claim = claim_of(metadata)
    if claim is None:
        return None
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity("pod", metadata)
    what = f"pod {namespace}/{name}"
    # First, because most pods of a cluster ask for none.
    if podspec.requested_chips(what, spec) == 0:
        return None
    requirements = podspec.requirements(what, spec, metadata)
    status = fields.mapping(fields.mapping(raw).get("status"))
    created_at = fields.parse_timestamp(metadata.get("creationTimestamp"))
    phase = fields.name(status.get("phase")) or "Pending"
    since, words, gated = None, "", False
    if phase == "Pending":
        for condition in fields.mappings(status.get("conditions")):
            if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
                continue
            if condition.get("reason") == "Unschedulable":
                since = fields.parse_timestamp(condition.get("lastTransitionTime")) or created_at
                words = bounds.cut(fields.text(condition.get("message")), bounds.SCHEDULER_MESSAGE)
        gang = fields.name(fields.mapping(spec.get("schedulingGroup")).get("podGroupName"))
        # The scheduler does not look at a gang before enough of its pods are there, and writes no condition.
        if gated := bool(gang) and not _is_scheduled(status):
            since, words = created_at, f"the scheduler waits for the other pods of PodGroup {gang}"
    return Pod(
        kind=claim.kind,
        namespace=namespace,
        name=name,
        uid=uid,
        workload_name=claim.name,
        workload_uid=WorkloadUid(claim.uid),
        group_name=claim.group_name,
        group_key=key_of(namespace, claim),
        completion_index=claim.index,
        group_size=claim.group_size,
        phase=phase,
        node_name=fields.name(spec.get("nodeName")),
        requirements=requirements,
        created_at=created_at or fields.UNKNOWN_TIME,
        unschedulable_since=since,
        unschedulable_message=words,
        gated=gated,
        deletion_deadline=fields.deletion_deadline(what, metadata),
    )


def _is_scheduled(status: dict[str, Any]) -> bool:
    return any(each.get("type") == "PodScheduled" for each in fields.mappings(status.get("conditions")))


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Return what a pod says of its workload, of the first kind that it is of; None where it is of none."""
    return next(filter(None, (kind.claim_of(metadata) for kind in _CLAIMS)), None)


def key_of(namespace: str, claim: Claim) -> GroupKey:
    """Return the key of the group that a pod is one of; empty where it is of none."""
    return group_key(namespace, claim.group_name) if claim.group_name else GroupKey("")
