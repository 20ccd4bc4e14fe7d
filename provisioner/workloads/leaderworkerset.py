"""LeaderWorkerSets and their pods.

A group is a leader pod `<set>-<group>` and its workers `<set>-<group>-<worker>`. The StatefulSet `<set>` controls the
leaders, and a StatefulSet with the name of the leader, which the leader controls, the workers:

    LeaderWorkerSet a -> StatefulSet a -> Pod a-0 -> StatefulSet a-0 -> Pod a-0-1

Names stay over restarts, UIDs change. tests/data/leaderworkerset has what the controller makes, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.bounded import BoundedReader
from provisioner.kube.quantities import parse_timestamp
from provisioner.model import bounds
from provisioner.model.workloads import PodGroup, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.workloads.kind import Claim, Kind
from provisioner.workloads.owners import STATEFUL_SET, controller_of

KIND = WorkloadKind.LEADER_WORKER_SET.value

#: What a decision needs of a set that is rejected for having too many labels.
_KEPT_LABELS = (constants.DISABLE, constants.SLICE_AUTOPROVISIONING)
#: Digits of maxSurge as a percentage: the API takes at most 100 %.
_PERCENT_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWorkerSet:
    """A LeaderWorkerSet; it never ends, and it cannot be suspended."""

    namespace: str
    name: str
    uid: str
    #: Groups that it is to have.
    replicas: int
    #: Groups beyond these that a rolling update may have, with the indexes from `replicas` on.
    surge: int
    #: Pods of a group, the leader among them.
    size: int
    leader: Requirements
    #: What the workers ask for; the same as the leader where the set has one template.
    worker: Requirements
    #: Pods of a subgroup, 0 for none: a group of several subgroups may be several slices.
    subgroup_size: int = 0
    #: deletionTimestamp is set.
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Only those that are read.
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Which bound is exceeded, so that it is not served; empty for none.
    problem: str = ""
    created_at: datetime = fields.UNKNOWN_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The place of a pod in a group, by the pod's controller reference and names, which a template cannot set.

    As with JobSets, whoever may create pods in a namespace can claim a place in a set of that namespace, and of no
    other: owners are of the pod's own namespace.
    """

    set_name: str
    group: int
    #: 0 is the leader.
    worker: int
    #: Pods of the group when the pod was created; None where it does not say, or too many. Other groups may have
    #: another size.
    size: int | None

    @property
    def leader_name(self) -> str:
        """The name of the group's leader pod, and of the StatefulSet of its workers."""
        return f"{self.set_name}-{self.group}"


def parse_leaderworkerset(raw: object) -> LeaderWorkerSet:
    """Read a LeaderWorkerSet of API version v1; MalformedObject where it cannot be read without guessing."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    namespace, name, uid = fields.identity(KIND, metadata)
    what = f"{KIND} {namespace}/{name}"
    reader = BoundedReader(f"a {KIND}", most_characters=bounds.JOBSET)
    template = fields.mapping(spec.get("leaderWorkerTemplate"))
    own = fields.mapping(metadata.get("annotations"))
    labels = reader.labels("labels", metadata.get("labels"), keep=_KEPT_LABELS)
    annotations = reader.annotations(own, keep=constants.READ_ANNOTATIONS)
    worker = _template(what, template.get("workerTemplate"), reader)
    leader = _template(what, template["leaderTemplate"], reader) if template.get("leaderTemplate") else worker
    replicas = fields.count(spec.get("replicas"), default=1)
    size = fields.count(template.get("size"), default=1)
    subgroups = fields.mapping(template.get("subGroupPolicy"))
    return LeaderWorkerSet(
        namespace=namespace,
        name=name,
        uid=uid,
        replicas=replicas,
        surge=_surge(spec, replicas),
        size=size,
        leader=leader,
        worker=worker,
        subgroup_size=fields.count(subgroups.get("subGroupSize"), default=0),
        deleting=metadata.get("deletionTimestamp") is not None,
        labels=labels,
        annotations=annotations,
        problem=reader.problem or _too_much_work(leader, worker, replicas=replicas, size=size),
        created_at=parse_timestamp(metadata.get("creationTimestamp")) or fields.UNKNOWN_TIME,
    )


def parse_workload(raw: object) -> Workload:
    """Read a LeaderWorkerSet as a workload: each of its groups is a slice."""
    found = parse_leaderworkerset(raw)
    # A leader without chips starts nothing; what its workers ask for tells that the set is work here all the same.
    template = found.leader if found.leader.chips > 0 else found.worker
    group = PodGroup(name="", replicas=found.replicas, surge=found.surge, parallelism=found.size, template=template)
    return Workload(
        kind=WorkloadKind.LEADER_WORKER_SET,
        namespace=found.namespace,
        name=found.name,
        uid=WorkloadUid(found.uid),
        groups=(group,),
        deleting=found.deleting,
        labels=found.labels,
        annotations=found.annotations,
        problem=found.problem or _several_slices(found),
        created_at=found.created_at,
    )


def claim_of(_namespace: str, metadata: dict[str, Any]) -> Claim | None:
    """Read a pod's place by its controller reference and names. It carries no UID of its set."""
    member = member_of({"metadata": metadata})
    if member is None:
        return None
    return Claim(
        kind=WorkloadKind.LEADER_WORKER_SET,
        name=member.set_name,
        group_name=member.leader_name,
        index=member.worker,
        group_size=member.size or 0,
    )


def _several_slices(found: LeaderWorkerSet) -> str:
    """Say why a group is not one slice, empty where it is."""
    if found.size == 1 or found.worker.chips == 0 == found.leader.chips:
        return ""
    if found.leader.chips != found.worker.chips:
        return (
            f"its leader template requests {found.leader.chips} chips and its worker template {found.worker.chips}; "
            f"they are created only for groups whose pods are the hosts of one slice, and request the same number of "
            f"chips"
        )
    if 0 < found.subgroup_size < found.size:
        return (
            f"its groups of {found.size} pods have subgroups of {found.subgroup_size}; they are created "
            f"only for groups that are one slice: remove subGroupPolicy, or make each subgroup a group of its own"
        )
    return ""


def _without_templates(raw: dict[str, Any]) -> dict[str, Any]:
    spec = fields.mapping(raw.get("spec"))
    kept = {key: value for key, value in spec.items() if key != "leaderWorkerTemplate"}
    return {**raw, "spec": kept}


def member_of(raw: object) -> Member | None:
    """Tell which place of which set a pod has; None for a pod of no LeaderWorkerSet."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    set_name = fields.name(fields.mapping(metadata.get("labels")).get(constants.LWS_NAME))
    if not set_name:
        return None
    owner = controller_of(metadata, STATEFUL_SET)
    if owner is None or not owner.name or not owner.uid:
        return None
    ordinal = _ordinal(fields.name(metadata.get("name")), owner.name)
    if ordinal is None:
        return None
    if owner.name == set_name:
        group, worker = ordinal, 0
    else:
        # The name alone does not tell: a-1-1 is a worker of a, and a leader of a-1.
        found = _ordinal(owner.name, set_name)
        if found is None or ordinal == 0:
            return None
        group, worker = found, ordinal
    size = fields.index(fields.name(fields.mapping(metadata.get("annotations")).get(constants.LWS_SIZE)))
    known = size if size is not None and 0 < size <= bounds.PARALLELISM else None
    return Member(set_name=set_name, group=group, worker=worker, size=known)


def _template(what: str, raw: object, reader: BoundedReader) -> Requirements:
    template = fields.mapping(raw)
    return podspec.requirements(
        what,
        fields.mapping(template.get("spec")),
        fields.mapping(template.get("metadata")),
        reader=podspec.reader_of_pod(within=reader),
    )


def _surge(spec: dict[str, Any], replicas: int) -> int:
    """Read maxSurge, a number or a percentage of the replicas that is rounded up; never more than the replicas."""
    strategy = fields.mapping(spec.get("rolloutStrategy"))
    raw = fields.mapping(strategy.get("rollingUpdateConfiguration")).get("maxSurge")
    if isinstance(raw, str):
        digits = raw.removesuffix("%")
        percent = fields.index(digits) if raw.endswith("%") and len(digits) <= _PERCENT_DIGITS else None
        return min(-(-replicas * (percent or 0) // 100), replicas)
    return min(fields.count(raw, default=0), replicas)


def _too_much_work(leader: Requirements, worker: Requirements, *, replicas: int, size: int) -> str:
    """Say what there is too much of; a set without chips is no work here."""
    asked = leader if size == 1 else worker
    if leader.chips == 0 and asked.chips == 0:
        return ""
    if problem := leader.problem or asked.problem:
        return problem
    if size > bounds.PARALLELISM:
        return (
            f"its groups have {size:,} pods, and at most {bounds.PARALLELISM:,} pods of one group are served; no slice "
            f"has more hosts"
        )
    if replicas > bounds.CHILD_JOBS:
        return (
            f"it has {replicas:,} groups that request chips, and at most {bounds.CHILD_JOBS:,} are served; split it "
            f"into several LeaderWorkerSets"
        )
    return ""


def _ordinal(name: str, parent: str) -> int | None:
    """Return the ordinal with which a StatefulSet extends its own name; None where the name is not made so."""
    prefix, _, digits = name.rpartition("-")
    ordinal = fields.index(digits)
    return ordinal if prefix == parent and ordinal is not None and str(ordinal) == digits else None


LEADER_WORKER_SET = Kind(
    kind=WorkloadKind.LEADER_WORKER_SET,
    resource="leaderworkersets",
    plural="LeaderWorkerSets",
    pod_label=constants.LWS_NAME,
    installation="https://lws.sigs.k8s.io/docs/installation/",
    parse=parse_workload,
    without_templates=_without_templates,
    claim_of=claim_of,
    optional=True,
)
