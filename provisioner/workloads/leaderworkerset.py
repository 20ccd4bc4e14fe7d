"""Reads LeaderWorkerSets and their pods.

A group is a leader pod `<set>-<group>` and its workers `<set>-<group>-<worker>`. The StatefulSet `<set>` controls the
leaders. Each leader controls a StatefulSet with the leader's name, which controls the workers:

    LeaderWorkerSet a -> StatefulSet a -> Pod a-0 -> StatefulSet a-0 -> Pod a-0-1

Restarts change UIDs, but not names (recordings of the controller: tests/data/leaderworkerset).

A group is a slice; with a subGroupPolicy, each subgroup is a slice (getSubGroupIndex in LWS's pod_webhook.go). The size
of a group is a multiple of subGroupSize, or a multiple plus one. The additional pod is the leader, which is then one
more pod of subgroup 0 or, with the policy LeaderExcluded, in no subgroup.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Requirements, Workload, WorkloadKind
from provisioner.workloads.kind import STATEFUL_SET_TYPE, Claim, Kind, begin, controller_of, template_of, too_much
from provisioner.workloads.plain import hosts_of

KIND = WorkloadKind.LEADER_WORKER_SET.value

#: subGroupPolicyType of sets whose leaders are in no subgroup, and the name of the slice of such a leader.
_EXCLUDED, _LEADER = "LeaderExcluded", "leader"
#: Maximum digits of a maxSurge in percent; the API allows at most 100 %.
_PERCENT_DIGITS = 3


def subgroup_of(worker: int, size: int, subgroup_size: int, *, with_leader: bool = True) -> tuple[int, range]:
    """Return number and worker indexes of the subgroup of `worker`. Index 0 is left out unless `with_leader`."""
    # Whether the leader is an additional pod. Never if `subgroup_size` is 1, because x % 1 is 0.
    one_more = size % subgroup_size == 1
    number = max(0, worker - one_more) // subgroup_size
    first = number * subgroup_size + one_more if number else int(not with_leader)
    return number, range(first, min(size, (number + 1) * subgroup_size + one_more))


def slices_of_group(template: Mapping[str, Any], *, leader_has_chips: bool) -> dict[str, range]:
    """Return the worker indexes of each slice of a group, by name of the slice; the name is empty without subgroups.

    `template` is the raw spec.leaderWorkerTemplate. The result has at most REPLICATED_JOBS + 1 slices.
    """
    size, subgroup_size, excluded = _sizes(template)
    if not subgroup_size:
        return {"": range(int(not leader_has_chips), size)}
    slices, end = ({_LEADER: range(1)} if excluded and leader_has_chips else {}), int(excluded)
    while end < size and len(slices) <= bounds.REPLICATED_JOBS:
        number, pods = subgroup_of(end, size, subgroup_size, with_leader=leader_has_chips and not excluded)
        slices |= {f"subgroup-{number}": pods} if pods else {}
        end = pods.stop
    return slices


def _sizes(template: Mapping[str, Any]) -> tuple[int, int, bool]:
    """Return the size of groups and of subgroups (0 without subgroups), and whether leaders are in no subgroup."""
    policy = fields.mapping(template.get("subGroupPolicy"))
    subgroup_size = fields.count(policy.get("subGroupSize"), default=0)
    return fields.count(template.get("size")), subgroup_size, policy.get("subGroupPolicyType") == _EXCLUDED


def is_excluded(metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a leader pod shows that the leader is in no subgroup."""
    return fields.mapping(metadata.get("annotations")).get(constants.LWS_SUBGROUP_POLICY_TYPE) == _EXCLUDED


def parse_leaderworkerset(raw: object) -> Workload:
    """Read a LeaderWorkerSet, which never ends and is never suspended. Raises MalformedObject."""
    workload, reader = begin(WorkloadKind.LEADER_WORKER_SET, raw)
    title = f"{KIND} {workload.namespace}/{workload.name}"
    spec = fields.at(raw, "spec")
    pods = fields.mapping(spec.get("leaderWorkerTemplate"))
    worker = template_of(title, pods.get("workerTemplate"), podspec.reader_of_pod(within=reader))
    leader = worker
    if pods.get("leaderTemplate"):
        leader = template_of(title, pods["leaderTemplate"], podspec.reader_of_pod(within=reader))
    replicas = fields.count(spec.get("replicas"))
    # If the leader has no chips, only the workers are hosts of the slice.
    chipless = leader.chips == 0 < worker.chips and fields.count(pods.get("size")) > 1
    slices = slices_of_group(pods, leader_has_chips=not chipless)
    groups = tuple(
        PodGroup(
            name=name,
            replicas=replicas,
            surge=_surge(spec, replicas),
            # The lowest index may be above 0: a leader without chips does not count, and subgroups share the numbering.
            lowest_leads=chipless or name != "",
            parallelism=len(indexes),
            template=worker if indexes.start else leader,
        )
        for name, indexes in slices.items()
    )
    problem = (
        reader.problem
        or too_much(workload.kind, groups)
        or _not_slices(leader, worker, pods, workload.annotations, slices)
        or (_never_starts(leader, spec, workload.annotations) if chipless else ())
        or _shares_pools(fields.mapping(pods.get("workerTemplate")))
    )
    return replace(workload, groups=groups, problem=problem)


def claim_of(metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's group and index from its controller reference and names, which a template cannot set.

    The pod does not contain the UID of its set, so any user who may create pods in the namespace can forge a claim.
    """
    set_name = fields.name(fields.mapping(metadata.get("labels")).get(constants.LWS_NAME))
    owner = controller_of(metadata, STATEFUL_SET_TYPE) if set_name else None
    if owner is None or not owner.name or not owner.uid:
        return None
    ordinal = _ordinal(fields.name(metadata.get("name")), owner.name)
    if ordinal is None:
        return None
    if owner.name == set_name:
        group, worker = ordinal, 0
    else:
        # The controller decides, because names are ambiguous: a-1-1 is a worker of set a, or a leader of set a-1.
        of_owner = _ordinal(owner.name, set_name)
        if of_owner is None or ordinal == 0:
            return None
        group, worker = of_owner, ordinal
    # The annotation has the size of the pod's group; newer groups of the set may have another size.
    annotations = fields.mapping(metadata.get("annotations"))
    size = fields.index(fields.name(annotations.get(constants.LWS_SIZE))) or 0
    with_leader = size == 0 or constants.LWS_LEADER_REQUESTS_TPUS in annotations
    # A leader without chips is no host: here the size is reduced by 1 for workers, in `parse_pod` for the leader.
    group_size = size - (worker > 0 and not with_leader) if size <= bounds.PARALLELISM else 0
    part = ""
    if subgroup_size := fields.index(fields.name(annotations.get(constants.LWS_SUBGROUP_SIZE))):
        alone = worker == 0 and is_excluded(metadata)
        part = f"{_LEADER}-" if alone else f"subgroup-{subgroup_of(worker, size, subgroup_size)[0]}-"
        # The size of subgroups never changes, so the set determines it.
        group_size = 0
    return Claim(
        kind=WorkloadKind.LEADER_WORKER_SET,
        name=set_name,
        # Without subgroups, the group has the name of the leader pod.
        group_name=f"{set_name}-{part}{group}",
        index=worker,
        group_size=group_size,
    )


def _not_slices(
    leader: Requirements,
    worker: Requirements,
    template: dict[str, Any],
    annotations: Mapping[str, str],
    slices: Mapping[str, range],
) -> tuple[str, ...]:
    """Return why the pods of a group that request chips are not the hosts of its slices; empty if they are."""
    size, subgroup_size, _ = _sizes(template)
    if size == 1 or worker.chips == 0 == leader.chips:
        return ()
    if problem := leader.problem or worker.problem:
        return problem
    if (leader.chips not in (0, worker.chips) and _LEADER not in slices) or worker.chips == 0:
        return f"its leader template requests {leader.chips} chips and its worker template {worker.chips}", (
            "they are created only for groups whose pods are the hosts of one slice, and request the same number of "
            "chips"
        )
    if subgroup_size and size % subgroup_size and (size - 1) % subgroup_size:
        return f"its subGroupSize {subgroup_size} divides neither its size {size} nor size - 1", "change one of them"
    if len(slices) > bounds.REPLICATED_JOBS:
        return bounds.too_many("subgroups", len(slices), bounds.REPLICATED_JOBS, "each of its groups")
    if len(slices) > 1 and annotations.get(constants.LWS_EXCLUSIVE_TOPOLOGY) == constants.NODE_POOL:
        fact = (
            f"the annotation {constants.LWS_EXCLUSIVE_TOPOLOGY} binds all subgroups of a group to one node pool, and "
            f"each gets a node pool of its own"
        )
        return fact, f"use {constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY} in its place"
    first, hosts = len(slices.get("subgroup-0", ())), hosts_of(worker)
    if first > max(subgroup_size, hosts) and hosts > 1 and subgroup_size:
        return (
            f"its leader requests chips and is one more pod of subgroup 0, which has {first} pods for {hosts} hosts",
            "set size to a multiple of subGroupSize, or let the leader request no chips",
        )
    return ()


def _never_starts(leader: Requirements, spec: dict[str, Any], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return why workers can never be bound to TPU nodes if their leader requests no chips; empty if they can."""
    on_slice = constants.TPU_ACCELERATOR in leader.node_selector
    if spec.get("startupPolicy") == "LeaderReady" and on_slice:
        return "its leader waits for a node of its slice, workers for the leader", "set startupPolicy LeaderCreated"
    *_, excluded = _sizes(fields.mapping(spec.get("leaderWorkerTemplate")))
    keys = (constants.LWS_EXCLUSIVE_TOPOLOGY, *(() if excluded else (constants.LWS_SUBGROUP_EXCLUSIVE_TOPOLOGY,)))
    key = next((key for key in keys if key in annotations), "")
    if key and (excluded or not on_slice):
        fact = (
            f"its leader requests no chips and {'is in no subgroup' if excluded else 'selects no TPU node'}, and "
            f"exclusive placement binds the workers to the node pool of the leader"
        )
        selectors = f"{constants.TPU_ACCELERATOR} and {constants.TPU_TOPOLOGY}"
        return fact, f"let the leader select {selectors}, or remove the annotation {key}"
    return ()


def _shares_pools(template: dict[str, Any]) -> tuple[str, ...]:
    """Return a message if a DisaggregatedSet's pod affinity binds several groups to one node pool; otherwise empty."""
    affinity = fields.at(template, "spec", "affinity", "podAffinity")
    for term in fields.mappings(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")):
        rules = fields.mappings(fields.mapping(term.get("labelSelector")).get("matchExpressions"))
        keys = {fields.name(rule.get("key")) for rule in rules}
        if term.get("topologyKey") == constants.NODE_POOL and constants.DISAGGREGATED_SET in keys:
            fact = (
                "placementPolicy of its DisaggregatedSet puts groups of several roles on one node pool, and each group "
                "gets a node pool of its own"
            )
            return fact, f"set its topology to {constants.ZONE}, or remove the policy"
    return ()


def _surge(spec: dict[str, Any], replicas: int) -> int:
    """Return maxSurge as a number of groups: percentages are rounded up, and the maximum is `replicas`."""
    raw = fields.at(spec, "rolloutStrategy", "rollingUpdateConfiguration").get("maxSurge")
    if isinstance(raw, str):
        digits = raw.removesuffix("%")
        percent = fields.index(digits) if raw.endswith("%") and len(digits) <= _PERCENT_DIGITS else None
        return min(-(-replicas * (percent or 0) // 100), replicas)
    return min(fields.count(raw, default=0), replicas)


def _ordinal(name: str, parent: str) -> int | None:
    """Return the number that `name` has after `parent` and a hyphen; None if `name` has another form."""
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
