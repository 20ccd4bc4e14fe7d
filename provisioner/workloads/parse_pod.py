"""Reads pods of workloads of all kinds from raw JSON. Pure."""

from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import GroupKey, Pod, WorkloadKind, WorkloadUid, group_key
from provisioner.workloads import KINDS, LEADER_WORKER_SET
from provisioner.workloads.kind import Claim
from provisioner.workloads.leaderworkerset import is_excluded
from provisioner.workloads.plain import as_plain, index_of, is_asked_for, is_for_nodes, owner_of

#: The first kind that matches a pod counts. LeaderWorkerSets are first: they need a controller, JobSets only a label.
_CLAIMS = tuple(dict.fromkeys((LEADER_WORKER_SET, *KINDS.values())))


def parse_pod(raw: object, *, serve_pods: str = "all", jobs: bool = True) -> Pod | None:
    """Read a pod with chips, or a LeaderWorkerSet's leader without chips on TPU nodes; None for other pods.

    A pod that no other kind claims has kind POD; if `jobs` is false, pods of Jobs also have it. A pod of kind POD that
    `serve_pods` (SERVE_PODS) does not select has no workload if it is bound to a node; otherwise None is returned.
    """
    metadata = fields.at(raw, "metadata")
    claim = claim_of(metadata)
    plain = claim is None or (claim.kind is WorkloadKind.JOB and not jobs)
    owner = None
    if plain or (claim is not None and claim.kind is WorkloadKind.JOB):
        owner = owner_of(metadata)
    spec = fields.at(raw, "spec")
    served = not plain or is_asked_for(metadata, owner, serve_pods)
    if not served and not spec.get("nodeName"):
        return None
    title = f"pod {fields.name(metadata.get('namespace'))}/{fields.name(metadata.get('name'))}"
    # Chips are checked before the requirements are read, because most pods of a cluster request none. Claims of a
    # DaemonSet are for monitoring, with access to devices that other pods use.
    chips_of = podspec.counted_chips if is_for_nodes(owner) else podspec.requested_chips
    if chips_of(title, spec) == 0:
        if claim is None or not _is_chipless_leader(claim, metadata, spec):
            return None
        claim = replace(claim, group_size=max(0, claim.group_size - 1))
    namespace, name, uid = fields.identity("pod", metadata)
    requirements = podspec.requirements(title, spec, metadata)
    status = fields.at(raw, "status")
    created_at = fields.parse_timestamp(metadata.get("creationTimestamp"))
    phase = fields.name(status.get("phase")) or "Pending"
    since, words, gated = None, "", False
    gang = fields.name(fields.mapping(spec.get("schedulingGroup")).get("podGroupName"))
    if phase == "Pending":
        scheduled = fields.conditions(status).get("PodScheduled", {})
        if (scheduled.get("status"), scheduled.get("reason")) == ("False", "Unschedulable"):
            since = fields.parse_timestamp(scheduled.get("lastTransitionTime")) or created_at
            words = bounds.cut(fields.text(scheduled.get("message")), bounds.SCHEDULER_MESSAGE)
        # The scheduler ignores a gang until enough of its pods exist, and writes no condition.
        if gated := bool(gang) and not scheduled:
            since, words = created_at, f"the scheduler waits for the other pods of PodGroup {gang}"
    if claim is None or plain:
        claim = Claim(kind=WorkloadKind.POD, name=name if served else "", index=index_of(metadata, owner))
    pod = Pod(
        kind=claim.kind,
        namespace=namespace,
        name=name,
        uid=uid,
        workload_name=claim.name,
        workload_uid=WorkloadUid(claim.uid),
        group_name=claim.group_name,
        group_key=key_of(namespace, claim),
        owner=owner,
        completion_index=claim.index,
        group_size=claim.group_size,
        phase=phase,
        node_name=fields.name(spec.get("nodeName")),
        requirements=requirements,
        priority=fields.priority(spec),
        created_at=created_at or fields.UNKNOWN_TIME,
        unschedulable_since=since,
        unschedulable_message=words,
        gang=gang,
        gated=gated,
        deletion_deadline=fields.deletion_deadline(title, metadata),
    )
    return as_plain(pod) if plain and served else pod


def _is_chipless_leader(claim: Claim, metadata: dict[str, Any], spec: dict[str, Any]) -> bool:
    """Whether a pod on TPU nodes leads a LeaderWorkerSet's group, and is not excluded from its subgroups.

    The workers may be created only when the leader is bound.
    """
    leads = claim.kind is WorkloadKind.LEADER_WORKER_SET and claim.index == constants.LEADER_INDEX
    return leads and not is_excluded(metadata) and constants.TPU_ACCELERATOR in podspec.node_selector_of(spec)


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Return the claim of a pod by the first kind that matches; None if no kind matches."""
    return next(filter(None, (kind.claim_of(metadata) for kind in _CLAIMS)), None)


def key_of(namespace: str, claim: Claim) -> GroupKey:
    """Return the key of the group in a claim; empty if the pod has no group."""
    return group_key(namespace, claim.group_name) if claim.group_name else GroupKey("")
