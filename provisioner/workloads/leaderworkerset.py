"""Reads LeaderWorkerSets and their pods.

A group is a leader pod `<set>-<group>` and its workers `<set>-<group>-<worker>`. The StatefulSet `<set>` controls the
leaders, and a StatefulSet with the name of the leader, which the leader controls, the workers:

    LeaderWorkerSet a -> StatefulSet a -> Pod a-0 -> StatefulSet a-0 -> Pod a-0-1

Restarts change UIDs, but not names. tests/data/leaderworkerset has recordings of the controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Requirements, Workload, WorkloadKind
from provisioner.workloads.kind import STATEFUL_SET, Claim, Kind, begin, controller_of, template_of, too_much

KIND = WorkloadKind.LEADER_WORKER_SET.value

#: Maximum digits of maxSurge as a percentage, because the API allows at most 100 %.
_PERCENT_DIGITS = 3


def parse_leaderworkerset(raw: object) -> Workload:
    """Read a LeaderWorkerSet of API version v1. Each group is a slice. Sets do not end and are not suspended."""
    found, reader = begin(WorkloadKind.LEADER_WORKER_SET, raw)
    what = f"{KIND} {found.namespace}/{found.name}"
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    worker = template_of(what, pods.get("workerTemplate"), podspec.reader_of_pod(within=reader))
    leader = worker
    if pods.get("leaderTemplate"):
        leader = template_of(what, pods["leaderTemplate"], podspec.reader_of_pod(within=reader))
    replicas = fields.count(spec.get("replicas"))
    size = fields.count(pods.get("size"))
    subgroup_size = fields.count(fields.mapping(pods.get("subGroupPolicy")).get("subGroupSize"), default=0)
    # If the leader has no chips, the workers are the hosts.
    chipless = leader.chips == 0 < worker.chips and size > 1
    group = PodGroup(
        name="",
        replicas=replicas,
        surge=_surge(spec, replicas),
        lowest_leads=chipless,
        parallelism=size - chipless,
        template=worker if chipless else leader,
    )
    problem = (
        reader.problem
        or too_much(found.kind, [group])
        or _several_slices(leader, worker, size=size, subgroup_size=subgroup_size)
        or (_never_starts(leader, spec, found.annotations) if chipless else "")
        or _shares_pools(fields.mapping(pods.get("workerTemplate")))
    )
    return replace(found, groups=(group,), problem=problem)


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's group and index from its controller reference and names, which a template cannot set.

    The pod does not contain the UID of its set, so any user who may create pods in the namespace can forge a claim.
    """
    set_name = fields.name(fields.mapping(metadata.get("labels")).get(constants.LWS_NAME))
    owner = controller_of(metadata, STATEFUL_SET) if set_name else None
    if owner is None or not owner.name or not owner.uid:
        return None
    ordinal = _ordinal(fields.name(metadata.get("name")), owner.name)
    if ordinal is None:
        return None
    if owner.name == set_name:
        group, worker = ordinal, 0
    else:
        # The name is ambiguous: a-1-1 is a worker of set a, or a leader of set a-1.
        found = _ordinal(owner.name, set_name)
        if found is None or ordinal == 0:
            return None
        group, worker = found, ordinal
    # Size when the pod was created; newer groups may have another size.
    annotations = fields.mapping(metadata.get("annotations"))
    size = fields.index(fields.name(annotations.get(constants.LWS_SIZE))) or 0
    with_leader = size == 0 or constants.LWS_LEADER_REQUESTS_TPUS in annotations
    return Claim(
        kind=WorkloadKind.LEADER_WORKER_SET,
        name=set_name,
        # Name of the leader pod, and of the StatefulSet of its workers.
        group_name=f"{set_name}-{group}",
        index=worker,
        # Workers of a leader without chips are one less. If the leader has chips, its own size counts.
        group_size=size - (worker > 0 and not with_leader) if size <= bounds.PARALLELISM else 0,
    )


def _several_slices(leader: Requirements, worker: Requirements, *, size: int, subgroup_size: int) -> str:
    if size == 1 or worker.chips == 0 == leader.chips:
        return ""
    if problem := leader.problem or worker.problem:
        return problem
    if leader.chips not in (0, worker.chips) or worker.chips == 0:
        return (
            f"its leader template requests {leader.chips} chips and its worker template {worker.chips}; they are "
            f"created only for groups whose pods are the hosts of one slice, and request the same number of chips"
        )
    if 0 < subgroup_size < size:
        return (
            f"its groups of {size} pods have subgroups of {subgroup_size}; they are created only for groups that are "
            f"one slice: remove subGroupPolicy, or make each subgroup a group of its own"
        )
    return ""


def _never_starts(leader: Requirements, spec: dict[str, Any], annotations: Mapping[str, str]) -> str:
    """Return why the workers of a leader without chips are never bound to TPU nodes; empty if they may be."""
    on_slice = constants.TPU_ACCELERATOR in leader.node_selector
    if spec.get("startupPolicy") == "LeaderReady" and on_slice:
        return "its leader waits for a node of its slice, workers for the leader; set startupPolicy LeaderCreated"
    if constants.LWS_EXCLUSIVE_TOPOLOGY in annotations and not on_slice:
        return (
            "its leader requests no chips and selects no TPU node, and exclusive placement binds the workers to the "
            f"node pool of the leader; let the leader select {constants.TPU_ACCELERATOR} and "
            f"{constants.TPU_TOPOLOGY}, or remove the annotation {constants.LWS_EXCLUSIVE_TOPOLOGY}"
        )
    return ""


def _shares_pools(template: dict[str, Any]) -> str:
    """Return a message if a DisaggregatedSet places several groups on one node pool, which its pod affinity shows."""
    affinity = fields.mapping(fields.mapping(fields.mapping(template.get("spec")).get("affinity")).get("podAffinity"))
    for term in fields.mappings(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")):
        rules = fields.mappings(fields.mapping(term.get("labelSelector")).get("matchExpressions"))
        keys = {fields.name(rule.get("key")) for rule in rules}
        if term.get("topologyKey") == constants.NODE_POOL and constants.DISAGGREGATED_SET in keys:
            return (
                "placementPolicy of its DisaggregatedSet puts groups of several roles on one node pool, and each group "
                f"gets a node pool of its own; set its topology to {constants.ZONE}, or remove the policy"
            )
    return ""


def _surge(spec: dict[str, Any], replicas: int) -> int:
    """Read maxSurge, a number or a percentage of the replicas that is rounded up, limited to the replicas."""
    strategy = fields.mapping(spec.get("rolloutStrategy"))
    raw = fields.mapping(strategy.get("rollingUpdateConfiguration")).get("maxSurge")
    if isinstance(raw, str):
        digits = raw.removesuffix("%")
        percent = fields.index(digits) if raw.endswith("%") and len(digits) <= _PERCENT_DIGITS else None
        return min(-(-replicas * (percent or 0) // 100), replicas)
    return min(fields.count(raw, default=0), replicas)


def _ordinal(name: str, parent: str) -> int | None:
    """Return the number that a StatefulSet appended to its name; None if the name has another form."""
    prefix, _, digits = name.rpartition("-")
    ordinal = fields.index(digits)
    return ordinal if prefix == parent and ordinal is not None and str(ordinal) == digits else None


LEADER_WORKER_SET = Kind(
    kind=WorkloadKind.LEADER_WORKER_SET,
    pod_label=constants.LWS_NAME,
    installation="https://lws.sigs.k8s.io/docs/installation/",
    parse=parse_leaderworkerset,
    templates="leaderWorkerTemplate",
    claim_of=claim_of,
    optional=True,
)
