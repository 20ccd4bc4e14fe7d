"""Tests of the slices of pods of any controller, and of the pools that are created for these slices."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.reflector import Collection, Reflector
from provisioner.model.workloads import Pod, Volumes, Workloads, uid_in
from provisioner.slices.demand import Slice
from provisioner.slices.demand.allowlists import ServingPolicy
from provisioner.slices.demand.owners import with_owners
from provisioner.slices.demand.slices import all_slices, find_by_workload
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.pipeline import decide
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.workloads.parse_pod import parse_pod
from tests.support.clock import NOW
from tests.support.counting import counted
from tests.support.models import make_jobset
from tests.support.objects import pod_spec, raw_plain_pod, reference
from tests.support.settings import settings


def pods_of(owner: dict[str, Any] | None, number: int, **parts: Any) -> list[Pod]:
    name = owner["name"] if owner is not None else "trial"
    found = (parse_pod(raw_plain_pod(f"{name}-{index}", owner, **parts), jobs=False) for index in range(number))
    return [pod for pod in found if pod is not None]


def planned(*pods: Pod, **changes: Any) -> Plan:
    workloads, found = with_owners({}, pods)
    snapshot = Snapshot(workloads=workloads, pods=found, pools_listed_at=NOW)
    return decide(snapshot, Memory(), settings(concurrency=64, **changes), GKE_RULES, NOW)


def slices(*pods: Pod) -> list[Slice]:
    workloads, found = with_owners({}, pods)
    by_workload = find_by_workload(Workloads.of(workloads), found, ServingPolicy())
    return sorted(all_slices(by_workload).values(), key=lambda slice_: slice_.group_name)


SET, STATEFUL = reference("ReplicaSet", "web"), reference("StatefulSet", "hosts")
JOB = reference("Job", "sweep", "batch/v1")


@pytest.mark.parametrize(
    ("owner", "number", "topology", "hosts", "problem"),
    [
        pytest.param(SET, 3, "2x2x1", [3], "", id="single hosts of a Deployment"),
        pytest.param(None, 1, "2x2x1", [1], "", id="single host of a pod without a controller"),
        pytest.param(STATEFUL, 2, "2x2x2", [2], "", id="StatefulSet with a pod for each host"),
        pytest.param(STATEFUL, 1, "2x2x2", [], "set replicas to 2, and podManagementPolicy to Parallel", id="too few"),
        pytest.param(
            STATEFUL,
            4,
            "2x2x2",
            [],
            "set replicas to 2, or use a JobSet",
            id="two slices",
        ),
        pytest.param(SET, 2, "2x2x2", [], "pods of a ReplicaSet have no index", id="several hosts of a Deployment"),
        pytest.param(JOB, 2, "2x2x2", [], "pods of a Job have no index", id="several hosts of a NonIndexed Job"),
        pytest.param(None, 1, "2x2x2", [], "pods without a controller have no index", id="several hosts of a pod"),
    ],
)
def test_pods_get_pools_if_they_are_hosts_of_whole_slices(
    owner: dict[str, Any] | None, number: int, topology: str, hosts: list[int], problem: str
) -> None:
    plan = planned(*pods_of(owner, number, topology=topology))
    assert [create.request.hosts for create in plan.creates] == hosts
    notices = [notice for notice in plan.notices if notice.reason == EventReason.INVALID_REQUEST]
    assert bool(notices) is bool(problem)
    for notice in notices:
        assert problem in notice.message
        assert owner is None or owner["kind"] in {ref.kind for ref in notice.objects}


def test_running_pod_of_an_incomplete_group_has_no_shape_problem() -> None:
    """An Indexed Job whose first pod has ended keeps its pool until the last pod ends."""
    metadata = {"annotations": {constants.COMPLETION_INDEX: "1"}}
    (pod,) = pods_of(JOB, 1, topology="2x2x2", metadata=metadata)
    (waiting,), (running,) = slices(pod), slices(replace(pod, node_name="host-1", unschedulable_since=None))
    assert "has pods for 1" in waiting.shape_problem[0]
    assert (running.shape_problem, running.nodes) == ((), 2)


def test_slices_of_pods_never_wait_for_each_other() -> None:
    """An OrderedReady StatefulSet creates its second pod only when the first is ready, so the first must not wait."""
    for slice_ in slices(*pods_of(STATEFUL, 3)):
        assert slice_.preferences.all_or_nothing is False


def test_pods_of_single_hosts_share_pools_only_if_they_are_equal() -> None:
    """All slices with an equal `share` may get one pool, also if their pods belong to two ReplicaSets."""
    shared = {slice_.share for slice_ in slices(*pods_of(SET, 2), *pods_of(reference("ReplicaSet", "web-2"), 1))}
    assert len(shared) == 1
    assert None not in shared
    (two_hosts,) = slices(*pods_of(STATEFUL, 2, topology="2x2x2"))
    assert two_hosts.share is None
    wishes = {"annotations": {constants.CAPACITY: "spot"}}
    cpu = pod_spec(topology="2x2x1")
    cpu["containers"][0]["resources"]["requests"]["cpu"] = "2"
    for other in ({"metadata": wishes}, {"spec": cpu}, {"namespace": "other"}):
        (slice_,) = slices(*pods_of(reference("ReplicaSet", "other"), 1, **other))
        assert slice_.share not in shared


def test_pods_with_own_claims_share_pools_if_the_claims_restrict_them_equally() -> None:
    """Each pod of a StatefulSet has its own claims, whose volumes may be in the same zone or in different zones."""
    zones = (("a",), ("a",), ("b",), None)
    volumes = [Volumes(claims=(f"data-{number}",), zones=allowed) for number, allowed in enumerate(zones)]
    pods = [
        replace(pod, requirements=replace(pod.requirements, volumes=pod_volumes))
        for pod, pod_volumes in zip(pods_of(STATEFUL, 4), volumes, strict=True)
    ]
    first, second, elsewhere, anywhere = slices(*pods)
    assert first.share == second.share
    assert len({first.share, elsewhere.share, anywhere.share}) == 3


def test_pods_of_two_owners_with_the_same_name_are_two_workloads() -> None:
    """A StatefulSet that was recreated has another UID, and pods of the old StatefulSet may still exist."""
    first, second = pods_of(STATEFUL, 1), pods_of({**STATEFUL, "uid": "newer"}, 1)
    found = slices(*first, *(replace(pod, name="other", uid="other") for pod in second))
    assert {slice_.id.workload_uid for slice_ in found} == {uid_in("default", uid) for uid in ("uid-of-hosts", "newer")}
    assert all(len(slice_.pods) == 1 for slice_ in found)


FORGED = {**SET, "apiVersion": "no.such/v1", "kind": "Foo", "name": "anything"}
FORGED_JOB = {**JOB, "name": "anything"}
OF_THE_SET = {**FORGED_JOB, "uid": uid_in("default", SET["uid"])}
OF_THE_POD = {**FORGED_JOB, "uid": pods_of(None, 1)[0].uid}


@pytest.mark.parametrize("hours", [pytest.param(-1, id="older"), pytest.param(1, id="younger")])
@pytest.mark.parametrize(
    ("owner", "forged"),
    [
        pytest.param(SET, FORGED, id="UID of a ReplicaSet"),
        pytest.param(SET, OF_THE_SET, id="derived UID of a ReplicaSet"),
        pytest.param(JOB, FORGED_JOB, id="UID of a Job"),
        pytest.param(None, OF_THE_POD, id="UID of a pod"),
    ],
)
def test_pod_with_the_owner_of_another_namespace_is_a_workload_of_its_own(
    owner: dict[str, Any] | None, forged: dict[str, Any], hours: int
) -> None:
    """Users can write any owner reference, which must not affect limits or pods of another namespace."""
    (own,), (other,) = pods_of(owner, 1), pods_of(forged, 1, namespace="evil")
    other = replace(other, created_at=own.created_at + timedelta(hours=hours))
    workloads, found = with_owners({}, (own, other))
    uids = [Workloads.of(workloads).uid_of(pod) for pod in found]
    assert [uid and workloads[uid].namespace for uid in uids] == ["default", "evil"]
    plan = planned(own, other, allowed_namespaces=("default",))
    assert [create.request.hosts for create in plan.creates] == [1]
    assert plan.creates[0].request.labels[constants.POOL_WORKLOAD_NAMESPACE] == "default"


@pytest.mark.parametrize("owner", [FORGED, FORGED_JOB], ids=["any kind", "Job"])
def test_pod_with_the_uid_of_a_jobset_of_another_namespace_does_not_join_it(owner: dict[str, Any]) -> None:
    jobset = make_jobset()
    (pod,) = pods_of({**owner, "uid": jobset.uid}, 1, namespace="evil")
    assert Workloads.of({jobset.uid: jobset}).uid_of(replace(pod, workload_uid=jobset.uid)) is None
    workloads, (found,) = with_owners({jobset.uid: jobset}, [pod])
    uid = Workloads.of(workloads).uid_of(found)
    assert uid is not None
    assert (workloads[uid].namespace, workloads[jobset.uid]) == ("evil", jobset)


def test_uid_of_a_job_does_not_change_when_a_younger_pod_of_another_namespace_has_it() -> None:
    """The workload keeps the UID of its Job; otherwise the pool would lose its slice when the Job is served later."""
    (own,), (other,) = pods_of(JOB, 1), pods_of(FORGED_JOB, 1, namespace="evil")
    _, (first, second) = with_owners({}, (own, replace(other, created_at=own.created_at + timedelta(hours=1))))
    assert (first.workload_uid, second.workload_uid) == (JOB["uid"], uid_in("evil", JOB["uid"]))


def test_pods_without_chips_cost_no_memory_and_little_time() -> None:
    """A cluster may have tens of thousands of pods, of which few request chips."""
    read = Reflector(Collection(name="pods", resource="pods"), parse=parse_pod, on_change=lambda: None)
    raws = [raw_plain_pod(f"web-{number}", SET, chips=0) for number in range(1000)]
    _, calls = counted(lambda: [read.take_event({"type": "ADDED", "object": raw}) for raw in raws])
    assert not read.records()
    assert calls < 300 * len(raws)
