"""Reads LeaderWorkerSets and their pods, both recorded and invalid ones.

tests/data/leaderworkerset has objects that the controller created for a set of two groups, with names instead of UIDs.
tests/e2e/test_leaderworkersets.py checks that the current release creates the same fields.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.fields import mapping
from provisioner.model import bounds
from provisioner.model.workloads import WorkloadKind
from provisioner.workloads import LEADER_WORKER_SET
from provisioner.workloads.kind import Claim
from provisioner.workloads.leaderworkerset import parse_leaderworkerset
from provisioner.workloads.parse_pod import claim_of, parse_pod

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "leaderworkerset" / "objects.json").read_text(encoding="utf-8")
)


def recorded(kind: str, name: str) -> dict[str, Any]:
    found = [one for one in RECORDED if one["kind"] == kind and one["metadata"]["name"] == name]
    return copy.deepcopy(found[0])


def raw_set(**spec: Any) -> dict[str, Any]:
    raw = recorded("LeaderWorkerSet", "serve")
    raw["spec"] |= spec
    return raw


def raw_pod(
    name: str,
    *,
    owner: str,
    of: str = "a",
    kind: str = "StatefulSet",
    api_version: str = "apps/v1",
    controller: Any = True,
    **annotations: str,
) -> dict[str, Any]:
    """Return a pod with the label of a set, a reference to its owner, and a reference to another owner."""
    reference = {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner,
        "uid": f"uid-{owner}",
        "controller": controller,
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "serving",
            "uid": "uid",
            "labels": {constants.LWS_NAME: of},
            "annotations": annotations,
            "ownerReferences": [{"kind": "Other", "name": owner}, reference | {"controller": controller}],
        }
    }


def place_of(raw: Any) -> Claim | None:
    return LEADER_WORKER_SET.claim_of(mapping(mapping(raw).get("metadata")))


def test_recorded_set_is_read_completely() -> None:
    found = parse_leaderworkerset(recorded("LeaderWorkerSet", "serve"))
    assert found.full_name == (WorkloadKind.LEADER_WORKER_SET, "serving", "serve")
    assert (found.uid, found.suspended, found.finished, found.lives) == ("uid-of-lws-serve", False, False, True)
    (group,) = found.groups
    assert (group.name, group.replicas, group.surge, group.parallelism) == ("", 2, 0, 2)
    assert group.template.chips == 4
    assert group.template.node_selector[constants.TPU_TOPOLOGY] == "2x4"
    assert (found.deleting, found.problem) == (False, ())


def test_every_recorded_pod_has_its_group_and_index() -> None:
    places = {}
    for pod in (one for one in RECORDED if one["kind"] == "Pod"):
        claim = place_of(pod)
        assert claim is not None
        places[pod["metadata"]["name"]] = (claim.name, claim.group_name, claim.index, claim.group_size)
    assert places == {
        "serve-0": ("serve", "serve-0", 0, 2),
        "serve-0-1": ("serve", "serve-0", 1, 2),
        "serve-1": ("serve", "serve-1", 0, 2),
        "serve-1-1": ("serve", "serve-1", 1, 2),
    }


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(raw_pod("a-3", owner="a"), ("a", "a-3", 0), id="a leader"),
        pytest.param(raw_pod("a-3-12", owner="a-3"), ("a", "a-3", 12), id="a worker"),
        pytest.param(raw_pod("a-1-1", owner="a-1"), ("a", "a-1", 1), id="a worker whose name could be a leader's"),
        pytest.param(
            raw_pod("a-1-1", owner="a-1", of="a-1"), ("a-1", "a-1-1", 0), id="a leader whose name could be a worker's"
        ),
        pytest.param(raw_pod("a-1-0", owner="a-1"), None, id="a worker with the index of the leader"),
        pytest.param(raw_pod("b-1", owner="b"), None, id="a pod of another set than its label says"),
        pytest.param(raw_pod("c", owner="a"), None, id="a name that the StatefulSet would not give"),
        pytest.param(raw_pod("a-01", owner="a"), None, id="an ordinal with a leading zero"),
        pytest.param(raw_pod("a-1234567890", owner="a"), None, id="an ordinal beyond all bounds"),
        pytest.param(raw_pod("a-²", owner="a"), None, id="an ordinal of other digits"),
        pytest.param(raw_pod("a-b-1", owner="a-b"), None, id="a worker of no group"),
        pytest.param(raw_pod("a-1", owner="a", controller=False), None, id="an owner that is not the controller"),
        pytest.param(raw_pod("a-1", owner="a", kind="ReplicaSet"), None, id="a controller of another kind"),
        pytest.param(raw_pod("a-1", owner="a", api_version="v1"), None, id="a StatefulSet of another group"),
        pytest.param(raw_pod("a-1", owner="a", of=""), None, id="no label"),
        pytest.param({"metadata": {"labels": {constants.LWS_NAME: "a"}, "name": "a-1"}}, None, id="no owner"),
    ],
)
def test_claim_of_a_pod_needs_matching_owner_and_label(raw: dict[str, Any], want: tuple[str, str, int] | None) -> None:
    """The controller reference and the pod's name must match the label of the set; indexes in labels are ignored."""
    raw["metadata"]["labels"] |= {
        "leaderworkerset.sigs.k8s.io/group-index": "7",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    found = place_of(raw)
    assert (None if found is None else (found.name, found.group_name, found.index)) == want


@pytest.mark.parametrize(
    ("size", "want"),
    [
        pytest.param(str(bounds.PARALLELISM), bounds.PARALLELISM, id="a size"),
        pytest.param(str(bounds.PARALLELISM + 1), 0, id="more than any slice has"),
        pytest.param("0", 0, id="no pods"),
        pytest.param("four", 0, id="not a number"),
        pytest.param("9" * 400, 0, id="beyond all bounds"),
    ],
)
def test_size_of_a_group_is_that_of_the_pod(size: str, want: int) -> None:
    """During a rolling update, groups of one set may have different sizes."""
    raw = raw_pod("a-0", owner="a", **{constants.LWS_SIZE: size})
    claim = place_of(raw)
    assert claim is not None
    assert claim.group_size == want


@pytest.mark.parametrize(
    ("replicas", "surge", "want"),
    [
        pytest.param(4, 1, 1, id="a number"),
        pytest.param(4, "25%", 1, id="a percentage"),
        pytest.param(5, "25%", 2, id="a percentage is rounded up"),
        pytest.param(3, "100%", 3, id="all"),
        pytest.param(2, 7, 2, id="never more than the replicas"),
        pytest.param(0, 1, 0, id="none of none"),
        pytest.param(4, None, 0, id="not given"),
        pytest.param(4, "1", 0, id="a text that is not a percentage"),
        pytest.param(4, "-5%", 0, id="a negative percentage"),
        pytest.param(4, "1000%", 0, id="a percentage that the API does not take"),
        pytest.param(4, True, 0, id="not a number"),
    ],
)
def test_additional_groups_are_those_of_max_surge(replicas: int, surge: Any, want: int) -> None:
    """LeaderWorkerSet's controller counts maxSurge in the same way."""
    strategy = {"rollingUpdateConfiguration": {"maxSurge": surge}}
    (group,) = parse_leaderworkerset(raw_set(replicas=replicas, rolloutStrategy=strategy)).groups
    assert group.surge == want


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"replicas": bounds.CHILD_JOBS + 1}, "it has 4,097 groups that request chips", id="groups"),
        pytest.param({"size": bounds.PARALLELISM + 1}, "size is 65,537", id="pods of a group"),
        pytest.param({"selector": {f"k{n}": "v" for n in range(200)}}, "nodeSelector has 202 entries", id="selectors"),
    ],
)
def test_set_above_a_limit_has_a_problem(change: dict[str, Any], words: str) -> None:
    raw = raw_set(replicas=change.get("replicas", 2))
    template = raw["spec"]["leaderWorkerTemplate"]
    template["size"] = change.get("size", 2)
    template["workerTemplate"]["spec"]["nodeSelector"] |= change.get("selector", {})
    assert parse_leaderworkerset(raw).problem[0].startswith(words)
    del template["workerTemplate"]["spec"]["containers"][0]["resources"]
    assert parse_leaderworkerset(raw).problem == (), "a set without chips is no work"


def test_set_at_its_limits_is_served_and_missing_numbers_are_one() -> None:
    raw = raw_set(replicas=bounds.CHILD_JOBS)
    raw["spec"]["leaderWorkerTemplate"]["size"] = bounds.PARALLELISM
    assert parse_leaderworkerset(raw).problem == ()
    raw = raw_set(replicas=None)
    del raw["spec"]["leaderWorkerTemplate"]["size"]
    (group,) = parse_leaderworkerset(raw).groups
    assert (group.replicas, group.parallelism) == (1, 1)


def test_template_of_workers_is_ignored_in_a_set_without_workers() -> None:
    """Groups of one pod have only a leader."""
    raw = raw_set()
    template = raw["spec"]["leaderWorkerTemplate"]
    template["leaderTemplate"] = copy.deepcopy(template["workerTemplate"])
    template["workerTemplate"]["spec"]["nodeSelector"] |= {f"k{n}": "v" for n in range(200)}
    template["size"] = 1
    assert parse_leaderworkerset(raw).problem == ()
    template["size"] = 2
    assert parse_leaderworkerset(raw).problem


_V4_16 = {constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x4"}


def divided(
    chips: tuple[int, int], size: int, subgroup_size: int, policy_type: str = "", leader: Any = None, **spec: Any
) -> dict[str, Any]:
    """Return a set whose leader and workers request `chips` of slices of four hosts; size 0 means no subgroups."""

    def template(count: int) -> dict[str, Any]:
        limits = {constants.TPU_RESOURCE: str(count)} if count else {}
        selector = {"nodeSelector": _V4_16} if count else {}
        return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **selector}}

    of_leader = template(chips[0])
    of_leader["spec"] |= leader or {}
    body: dict[str, Any] = {"size": size, "leaderTemplate": of_leader, "workerTemplate": template(chips[1])}
    if subgroup_size:
        body["subGroupPolicy"] = {"subGroupSize": subgroup_size}
    if policy_type:
        body["subGroupPolicy"]["subGroupPolicyType"] = policy_type
    raw = raw_set(leaderWorkerTemplate=body, **spec)
    raw["metadata"]["annotations"] = {}
    return raw


@pytest.mark.parametrize(
    ("chips", "subgroup_size", "want"),
    [
        pytest.param((4, 4), 0, "", id="all pods are hosts of one slice"),
        pytest.param((4, 8), 0, "request the same number of chips", id="workers with other machines"),
        pytest.param((4, 0), 1, "its worker template 0", id="workers without chips"),
        pytest.param((4, 4), 1, "", id="a leader and a worker in a subgroup each"),
        pytest.param((4, 4), 2, "", id="one subgroup"),
        pytest.param((0, 0), 7, "", id="no chips at all"),
    ],
)
def test_group_whose_pods_are_no_hosts_of_slices_has_a_problem(
    chips: tuple[int, int], subgroup_size: int, want: str
) -> None:
    problem = "; ".join(parse_leaderworkerset(divided(chips, 2, subgroup_size)).problem)
    assert want in problem
    assert bool(want) == bool(problem)


_EXTRA = {"subgroup-0": [1, 2, 3, 4], "subgroup-1": [5, 6, 7, 8]}


@pytest.mark.parametrize(
    ("chips", "size", "subgroup_size", "policy_type", "slices"),
    [
        pytest.param((4, 4), 4, 0, "", {"": [0, 1, 2, 3]}, id="no subgroups"),
        pytest.param((0, 4), 5, 0, "", {"": [1, 2, 3, 4]}, id="no subgroups, leader without chips"),
        pytest.param(
            (4, 4), 8, 4, "", {"subgroup-0": [0, 1, 2, 3], "subgroup-1": [4, 5, 6, 7]}, id="size is a multiple"
        ),
        pytest.param((0, 4), 9, 4, "LeaderWorker", _EXTRA, id="leader without chips joins subgroup 0"),
        pytest.param((0, 4), 9, 4, "LeaderExcluded", _EXTRA, id="leader without chips in no subgroup"),
        pytest.param((1, 4), 9, 4, "LeaderExcluded", {"leader": [0], **_EXTRA}, id="leader with chips in no subgroup"),
        pytest.param(
            (0, 4), 4, 2, "", {"subgroup-0": [1], "subgroup-1": [2, 3]}, id="leader without chips fills up subgroup 0"
        ),
        pytest.param(
            (4, 4), 3, 1, "", {"subgroup-0": [0], "subgroup-1": [1], "subgroup-2": [2]}, id="subgroups of one pod"
        ),
        pytest.param(
            (0, 4), 3, 1, "", {"subgroup-1": [1], "subgroup-2": [2]}, id="leader without chips is alone in subgroup 0"
        ),
        pytest.param((1, 4), 2, 1, "LeaderExcluded", {"leader": [0], "subgroup-1": [1]}, id="subgroups of one worker"),
        pytest.param((4, 4), 5, 2, "", {"subgroup-0": [0, 1, 2], "subgroup-1": [3, 4]}, id="leader is one pod more"),
        pytest.param((4, 4), 1, 1, "", {"subgroup-0": [0]}, id="only a leader"),
    ],
)
def test_each_subgroup_with_chips_is_a_slice(
    chips: tuple[int, int], size: int, subgroup_size: int, policy_type: str, slices: dict[str, list[int]]
) -> None:
    """The set and its pods give the same slices, as LeaderWorkerSet's webhook (getSubGroupIndex) numbers the pods."""
    workload = parse_leaderworkerset(divided(chips, size, subgroup_size, policy_type))
    assert workload.problem == ()
    assert {group.name: group.parallelism for group in workload.groups} == {
        name: len(pods) for name, pods in slices.items()
    }
    annotations = {constants.LWS_SIZE: str(size)}
    if subgroup_size:
        annotations[constants.LWS_SUBGROUP_SIZE] = str(subgroup_size)
    found: dict[str, list[int]] = {}
    for index in range(0 if chips[0] else 1, size):
        name, owner = (f"a-7-{index}", "a-7") if index else ("a-7", "a")
        own = {constants.LWS_SUBGROUP_POLICY_TYPE: policy_type} if policy_type and not index else {}
        claim = place_of(raw_pod(name, owner=owner, **annotations, **own))
        assert claim is not None
        assert (claim.name, claim.index) == ("a", index)
        found.setdefault(claim.group_name, []).append(index)
    assert found == {f"a-{name}-7" if name else "a-7": pods for name, pods in slices.items()}


@pytest.mark.parametrize(
    ("raw", "annotation", "want"),
    [
        pytest.param(divided((0, 4), 9, 4), "", "", id="no annotation"),
        pytest.param(divided((4, 4), 8, 3), "", "subGroupSize 3 divides neither its size 8", id="no whole subgroups"),
        pytest.param(divided((4, 4), 9, 4), "", "has 5 pods for 4 hosts", id="leader on a fifth of four hosts"),
        pytest.param(divided((4, 4), 258, 1), "", "has 257 subgroups, and at most 256", id="too many subgroups"),
        pytest.param(
            divided((4, 4), 8, 4), "exclusive", "binds all subgroups of a group to one node pool", id="one pool for all"
        ),
        pytest.param(divided((4, 4), 8, 4), "subgroup-exclusive", "", id="a pool for each subgroup"),
        pytest.param(divided((4, 4), 4, 4), "exclusive", "", id="one pool for one subgroup"),
        pytest.param(
            divided((0, 4), 9, 4), "subgroup-exclusive", "selects no TPU node", id="leader elsewhere, but in subgroup 0"
        ),
        pytest.param(
            divided((0, 4), 9, 4, leader={"nodeSelector": _V4_16}), "subgroup-exclusive", "", id="leader on a host"
        ),
        pytest.param(
            divided((0, 4), 9, 4, "LeaderExcluded"), "subgroup-exclusive", "", id="leader elsewhere, in no subgroup"
        ),
        pytest.param(
            divided((0, 4), 5, 4, "LeaderExcluded", leader={"nodeSelector": _V4_16}),
            "exclusive",
            "is in no subgroup",
            id="workers that wait for a leader in no subgroup",
        ),
    ],
)
def test_subgroups_that_are_no_slices_have_a_problem(raw: dict[str, Any], annotation: str, want: str) -> None:
    keys = {f"leaderworkerset.sigs.k8s.io/{annotation}-topology": constants.NODE_POOL} if annotation else {}
    clauses = parse_leaderworkerset({**raw, "metadata": {**raw["metadata"], "annotations": keys}}).problem
    problem = "; ".join(clauses)
    assert want in problem
    assert bool(want) == bool(problem)


@pytest.mark.parametrize(
    ("policy_type", "want"), [("LeaderWorker", "a-subgroup-0-1"), ("LeaderExcluded", None)], ids=str
)
def test_leader_without_chips_is_a_pod_of_subgroup_0_only_if_the_policy_includes_it(
    policy_type: str, want: str | None
) -> None:
    raw = raw_pod(
        "a-1",
        owner="a",
        **{
            constants.LWS_SIZE: "5",
            constants.LWS_SUBGROUP_SIZE: "2",
            constants.LWS_SUBGROUP_POLICY_TYPE: policy_type,
        },
    )
    raw["spec"] = {"containers": [{"name": "head"}], "nodeSelector": _V4_16}
    pod = parse_pod(raw)
    assert (pod.group_name if pod is not None else None) == want


@pytest.mark.parametrize(
    ("key", "label", "served"),
    [
        pytest.param(constants.NODE_POOL, constants.DISAGGREGATED_SET, False, id="roles on one node pool"),
        pytest.param(constants.ZONE, constants.DISAGGREGATED_SET, True, id="roles in one zone"),
        pytest.param(constants.NODE_POOL, constants.LWS_GROUP_KEY, True, id="groups on node pools of their own"),
    ],
)
def test_roles_of_a_disaggregatedset_that_share_a_node_pool_are_not_served(
    key: str, label: str, *, served: bool
) -> None:
    """The affinity is that of LeaderWorkerSet 0.10 for its placementPolicy."""
    raw = raw_set()
    rules = [{"key": name, "operator": "In", "values": ["x"]} for name in (label, "disaggregatedset.x-k8s.io/slice")]
    term = {"labelSelector": {"matchExpressions": rules}, "topologyKey": key}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    raw["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["affinity"] = affinity
    problem = "; ".join(parse_leaderworkerset(raw).problem)
    assert ("placementPolicy" in problem) is not served


def test_group_of_a_pod_is_that_of_its_controller() -> None:
    leader, worker = recorded("Pod", "serve-1"), recorded("Pod", "serve-1-1")
    for raw, index in ((leader, 0), (worker, 1)):
        pod = parse_pod(raw)
        assert pod is not None
        assert (pod.kind, pod.workload_name, pod.workload_uid) == (WorkloadKind.LEADER_WORKER_SET, "serve", "")
        assert (pod.group_name, pod.completion_index) == ("serve-1", index)
        assert pod.group_key == raw["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-key"]


def test_pod_of_a_set_with_a_label_of_a_jobset_belongs_to_the_set() -> None:
    """A template may have any label, including those of JobSets; the pod's controller decides."""
    raw = recorded("Pod", "serve-1-1")
    raw["metadata"]["labels"][constants.JOBSET_NAME] = "train"
    claim = claim_of(raw["metadata"])
    assert claim is not None
    assert (claim.kind, claim.group_name, claim.index) == (WorkloadKind.LEADER_WORKER_SET, "serve-1", 1)


def test_pod_of_a_jobset_with_a_label_of_a_set_belongs_to_the_jobset() -> None:
    raw = raw_pod("serve-1", owner="serve-1", kind="Job", api_version="batch/v1", of="serve")
    raw["metadata"]["labels"][constants.JOBSET_NAME] = "train"
    claim = claim_of(raw["metadata"])
    assert claim is not None
    assert (claim.kind, claim.name, claim.group_name) == (WorkloadKind.JOBSET, "train", "serve-1")


@pytest.mark.parametrize(
    ("exclusive", "on_slice", "startup", "problem"),
    [
        pytest.param(True, True, "LeaderCreated", "", id="leader on a host of the slice"),
        pytest.param(False, False, "LeaderCreated", "", id="leader elsewhere"),
        pytest.param(True, False, "LeaderCreated", "selects no TPU node", id="leader elsewhere, exclusive placement"),
        pytest.param(False, True, "LeaderReady", "set startupPolicy LeaderCreated", id="workers after the leader"),
    ],
)
def test_workers_of_a_leader_without_chips_are_the_hosts(
    *, exclusive: bool, on_slice: bool, startup: str, problem: str
) -> None:
    """With exclusive placement, the workers are bound after their leader, so the leader must select a TPU node."""
    raw = raw_set()
    raw["metadata"]["annotations"] = {constants.LWS_EXCLUSIVE_TOPOLOGY: constants.NODE_POOL} if exclusive else {}
    selector = {constants.TPU_ACCELERATOR: "tpu-v6e-slice", constants.TPU_TOPOLOGY: "4x4"}
    limits = {"limits": {constants.TPU_RESOURCE: "4"}}
    body = {
        "size": 5,
        "leaderTemplate": {"spec": {"containers": [{"name": "head"}], "nodeSelector": selector if on_slice else {}}},
        "workerTemplate": {"spec": {"containers": [{"name": "w", "resources": limits}], "nodeSelector": selector}},
    }
    raw["spec"] |= {"leaderWorkerTemplate": body, "startupPolicy": startup}
    workload = parse_leaderworkerset(raw)
    assert problem in "; ".join(workload.problem)
    assert bool(problem) == bool(workload.problem)
    (group,) = workload.groups
    assert (group.parallelism, group.template.chips, group.lowest_leads) == (4, 4, True)
