"""Tests of the provisioner with the admission policies of placement: each group of pods runs on its own pool.

The nightly tests repeat checks of lower levels on a real control plane: those of tests/simulation (`assigned.py` and
`guests.py`), of tests/slices/planning/test_assignment.py for decisions, and of test_placement_policy.py for marks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import ClusterError, NotFound
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.placement import FREE, MARKS, labels_of, slice_key
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads import LEADER_WORKER_SET, PLAIN_JOB
from rehearsal.demos import Rehearsal
from rehearsal.demos.story import is_ready
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.assigning import (
    RESTARTS,
    assert_each_on_a_pool_of_its_own,
    await_rival,
    bound,
    marks_of_nodes,
    nodes_of,
    of,
    remove,
    restart,
    running,
    template_of,
    train,
)
from tests.e2e.kit import Ground, await_round, has_mutating_policies, placement_policies
from tests.support.objects import Json, pod_spec, raw_job, raw_lws

pytestmark = [
    pytest.mark.e2e,
    # Workloads restart up to ten times, and each restart waits for several controllers.
    pytest.mark.timeout(300),
    pytest.mark.skipif(not has_mutating_policies(), reason="MutatingAdmissionPolicy needs Kubernetes 1.36"),
]

_TOLERATES_ALL = [{"operator": "Exists"}]


def post_pod(ground: Ground, namespace: str, name: str, spec: Json, **metadata: Any) -> None:
    body = {"metadata": {"name": name, **metadata}, "spec": spec}
    ground.api.post(collection_path("pods", namespace=namespace), body)


# --- Without the policies: this test is the first of the file, because the other tests share the policies ---


def test_slices_from_before_the_policies_keep_their_pools(alone: Ground, rehearsal: Rehearsal) -> None:
    """The slices get pools before the policies are installed, and restart on the same pools afterwards."""
    alone.assign()
    alone.provisioner()
    alone.post(train(alone, "before", slices=2))
    alone.wait(lambda: len(running(alone)) == 4, "the pods run")
    before = nodes_of(running(alone))
    assert len(alone.pools()) == 2
    assert set(map(len, marks_of_nodes(alone).values())) == {0}
    alone.apply("brief", run_for="1s")
    alone.await_completed("brief")
    with placement_policies(rehearsal):
        alone.post(train(alone, "after", exclusive=False))
        alone.wait(lambda: len(running(alone)) == 6, "the marked pods run also")
        groups = nodes_of(running(alone))
        labels = marks_of_nodes(alone)
        (after,) = groups.keys() - before.keys()
        assert groups == {**before, after: groups[after]}
        for key, names in groups.items():
            want = labels_of(key, alone.namespace) if key == after else {}
            assert [labels[name] for name in names] == [want] * 2
        # The restart replaces the pods without marks by pods with marks, which must run on the same nodes.
        restart(alone, "before")
        assert nodes_of(running(alone)) == groups
        assert_each_on_a_pool_of_its_own(alone, slices=3)
        # One create for each of the three slices, and one for the JobSet `brief`.
        assert alone.accepted("nodePools.create") == 4


# --- With the policies ---


@pytest.mark.nightly
def test_equal_jobsets_that_start_together_never_share_a_pool(assigned: Ground) -> None:
    """Without assignment, pods of a JobSet without exclusive placement would run on the pools of other JobSets."""
    assigned.provisioner()
    for name, slices, exclusive in (("a", 1, False), ("b", 2, False), ("c", 1, True), ("d", 2, True)):
        assigned.post(train(assigned, name, topology="2x2x4", hosts=4, slices=slices, exclusive=exclusive))
    assigned.wait(lambda: len(running(assigned)) == 24, "all pods run")
    assert_each_on_a_pool_of_its_own(assigned, slices=6)
    assert len(assigned.pools()) == assigned.accepted("nodePools.create") == 6


# A rival may take a node in any restart, so more restarts are tried at night.
@pytest.mark.parametrize("restarts", [3, pytest.param(RESTARTS, marks=pytest.mark.nightly)])
def test_jobsets_keep_their_nodes_in_restarts_despite_a_rival(assigned: Ground, restarts: int) -> None:
    """During a restart, the pools have no pods, so the rival would fit on each pool."""
    assigned.provisioner(environment={"MAX_CHIPS": "32"})
    owners = {"exclusive": True, "spread": False}
    for name, exclusive in owners.items():
        assigned.post(train(assigned, name, slices=2, exclusive=exclusive))
    assigned.wait(lambda: len(running(assigned)) == 8, "the owners run")
    before = nodes_of(running(assigned))
    assigned.post(train(assigned, "rival", exclusive=False))
    await_rival(assigned, "rival")
    for _ in range(restarts):
        restart(assigned, *owners)
        assert nodes_of(running(assigned)) == before
    assert [assigned.restarts(name) for name in owners] == [restarts] * 2
    assert bound(assigned, "rival") == []
    assert assigned.accepted("nodePools.create") == 4
    # The rival gets the first pool that is no longer needed.
    assigned.delete("spread")
    assigned.wait(lambda: len(running(assigned, **of("rival"))) == 2, "the rival runs")
    assert_each_on_a_pool_of_its_own(assigned, slices=3)
    assert assigned.accepted("nodePools.create") == 4


@pytest.mark.nightly
@pytest.mark.usefixtures("leaderworkersets")
def test_leader_without_chips_takes_no_pool_of_another_namespace(assigned: Ground) -> None:
    """The leader selects and tolerates the nodes of a TPU slice, and any node has room for a pod without chips."""
    assigned.provisioner(environment={"MAX_CHIPS": "8"})
    assigned.post(train(assigned, "train", exclusive=False))
    assigned.wait(lambda: len(running(assigned)) == 2, "the JobSet runs")
    before = nodes_of(running(assigned))
    others = []
    for name, labels in (("open", {}), ("labelled", {constants.PLACEMENT: constants.PLACEMENT_ASSIGN})):
        namespace = f"{assigned.namespace}-{name}"
        assigned.rehearsal.create_namespace(namespace, labels=labels)
        worker, tolerant = pod_spec(), pod_spec(chips=0, tolerations=_TOLERATES_ALL)
        lws = raw_lws(
            "front", namespace=namespace, uid="", replicas=1, size=3, pod=worker, metadata={"annotations": {}}
        )
        lws["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = {"spec": tolerant}
        assigned.api.post(collection_path("leaderworkersets", namespace=namespace, root=LEADER_WORKER_SET.root), lws)
        others.append(namespace)

    def waiting() -> list[Json]:
        listed = [assigned.rehearsal.objects(collection_path("pods", namespace=namespace)) for namespace in others]
        return [pod for pods in listed for pod in pods if pod["metadata"]["name"] == "front-0"]

    assigned.wait(lambda: len(waiting()) == 2, "both leaders exist")
    for _ in range(2):
        restart(assigned, "train")
        assert nodes_of(running(assigned)) == before
    assert [pod["spec"].get("nodeName") for pod in waiting()] == [None, None]
    assigned.delete("train")
    assigned.wait(lambda: any("nodeName" in pod["spec"] for pod in waiting()), "a leader runs on a pool of its own")


@pytest.mark.nightly
@pytest.mark.usefixtures("leaderworkersets")
def test_groups_and_jobs_keep_their_nodes_in_restarts_despite_a_rival(assigned: Ground) -> None:
    """Only the marks separate the groups of the LeaderWorkerSet, which has no exclusive placement."""
    assigned.provisioner(environment={"MAX_CHIPS": "24", "SERVE_JOBS": "true"})
    namespace, pod = assigned.namespace, pod_spec(terminationGracePeriodSeconds=1)
    lws = raw_lws("serve", namespace=namespace, uid="", pod=pod, metadata={"annotations": {}})
    assigned.api.post(collection_path("leaderworkersets", namespace=namespace, root=LEADER_WORKER_SET.root), lws)
    job = raw_job(namespace=namespace, uid="", pod=pod, spec={"backoffLimit": 6})
    job["spec"]["template"]["metadata"] = template_of(train(assigned, "any"))["metadata"]
    uid = assigned.api.post(collection_path("jobs", namespace=namespace, root=PLAIN_JOB.root), job)["metadata"]["uid"]
    assigned.wait(lambda: len(running(assigned)) == 6, "both groups and the Job run")
    assert_each_on_a_pool_of_its_own(assigned, slices=3)
    before = nodes_of(running(assigned))
    assert sorted(key[:2] for key in before) == ["b-", "l-", "l-"]
    assert f"b-{uid}" in before
    assigned.post(train(assigned, "rival", exclusive=False))
    await_rival(assigned, "rival")
    (of_job, _) = running(assigned, **{constants.CONTROLLER_UID: uid})
    remove(assigned, of_job)
    expected = {key: names for key, names in before.items() if key != f"b-{uid}"}
    for number in range(RESTARTS):
        pods = running(assigned, **{constants.LWS_NAME: "serve"})
        old = {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            # Only leaders are deleted: the controller then recreates the group, but may miss the deletion of a worker.
            if pod["metadata"]["labels"][constants.LWS_WORKER_INDEX] == "0":
                # The controller may have deleted the pod already, because it recreates the group in an earlier restart.
                with contextlib.suppress(NotFound):
                    remove(assigned, pod)

        def recreated(old: set[str] = old) -> bool:
            new = running(assigned, **{constants.LWS_NAME: "serve"})
            is_new = len(new) == 4 and old.isdisjoint(pod["metadata"]["uid"] for pod in new)
            return is_new and nodes_of(new) == expected

        assigned.wait(recreated, f"both groups run on their nodes after restart {number}")
    assigned.wait(lambda: len(running(assigned, **{constants.CONTROLLER_UID: uid})) == 2, "the Job runs again")
    assert nodes_of(running(assigned)) == before
    assert bound(assigned, "rival") == []
    assert assigned.accepted("nodePools.create") == 3


def test_pods_of_all_or_nothing_are_bound_only_when_all_pools_are_ready(assigned: Ground) -> None:
    """A node reports no chips at first, so one of three pools is not ready."""
    assigned.provisioner()
    assigned.gke.inject(Fault(kind=FaultKind.NODES_WITHOUT_CHIPS, hosts=1, count=1))
    annotations = {constants.ALL_OR_NOTHING: "true"}
    assigned.post(train(assigned, "together", slices=3, exclusive=False, annotations=annotations))
    assigned.wait(lambda: _held(assigned) == 2, "two of three pools are held")
    await_round(assigned.provisioners[0], assigned.api, after=datetime.now(UTC))
    assert sum(map(is_ready, assigned.nodes())) == 6
    assert list(marks_of_nodes(assigned).values()) == [dict(FREE)] * 6
    assert bound(assigned, "together") == []
    (late,) = [
        node["metadata"]["name"]
        for node in assigned.nodes()
        if constants.TPU_RESOURCE not in node["status"]["allocatable"]
    ]
    chips = {"status": {key: {constants.TPU_RESOURCE: "4"} for key in ("capacity", "allocatable")}}
    assigned.api.patch(f"{object_path('nodes', late)}/status", chips)
    assigned.wait(lambda: len(running(assigned)) == 6, "all pods run")
    assert_each_on_a_pool_of_its_own(assigned, slices=3)
    assert assigned.accepted("nodePools.create") == 3


def _held(ground: Ground) -> int:
    held = [event for event in ground.events("Pod") if event["reason"] == EventReason.HELD_FOR_OTHERS]
    return len({event["involvedObject"]["name"] for event in held})


_DAEMON: Mapping[str, Any] = {
    "containers": [{"name": "main", "image": "none"}],
    "nodeSelector": {constants.TPU_ACCELERATOR: "tpu-v4-podslice"},
    "tolerations": [{"key": constants.TPU_RESOURCE, "operator": "Exists"}],
}


@pytest.fixture
def daemons(assigned: Ground) -> Iterator[None]:
    template = {"metadata": {"labels": {"app": "monitor"}}, "spec": dict(_DAEMON)}
    spec = {"selector": {"matchLabels": {"app": "monitor"}}, "template": template}
    path, root = "daemonsets", "/apis/apps/v1"
    body = {"metadata": {"name": "monitor"}, "spec": spec}
    assigned.api.post(collection_path(path, namespace=assigned.namespace, root=root), body)
    yield
    assigned.api.delete(object_path(path, "monitor", namespace=assigned.namespace, root=root))


@pytest.fixture
def urgent(assigned: Ground) -> Iterator[str]:
    """Name of a PriorityClass with a higher priority than that of other pods."""
    name, root = f"urgent-{assigned.namespace}", "/apis/scheduling.k8s.io/v1"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    assigned.api.post(collection_path("priorityclasses", root=root), body)
    yield name
    assigned.api.delete(object_path("priorityclasses", name, root=root))


@pytest.mark.usefixtures("daemons")
def test_freed_pool_goes_to_the_first_in_the_line_and_to_no_intruder(assigned: Ground, urgent: str) -> None:
    """Intruders are pods without a workload that tolerate every taint; some copy the labels of the owner's pod."""
    assigned.provisioner(environment={"MAX_CHIPS": "8", "NODEPOOL_DELETION_DELAY": "30s"})
    assigned.post(train(assigned, "owner"))
    assigned.wait(lambda: len(running(assigned, **of("owner"))) == 2, "the owner runs")
    owner = running(assigned, **of("owner"))
    (nodes,) = nodes_of(owner).values()
    intruders = _intrude(assigned, owner[0])
    assigned.post(train(assigned, "older", exclusive=False))
    await_rival(assigned, "older")
    assigned.post(train(assigned, "younger", exclusive=False, priorityClassName=urgent))
    await_rival(assigned, "younger")
    # The scheduler does not preempt pods of other slices, because their nodes do not match.
    assert len(running(assigned, **of("owner"))) == 2
    for before, after in (("owner", "younger"), ("younger", "older")):
        assigned.delete(before)
        assigned.wait(lambda after=after: len(running(assigned, **of(after))) == 2, f"{after} runs")
        assert list(nodes_of(running(assigned, **of(after))).values()) == [nodes]
        assert after == "older" or bound(assigned, "older") == []
    monitored = [pod["spec"]["nodeName"] for pod in running(assigned, app="monitor")]
    assert sorted(monitored) == sorted(nodes)
    assigned.delete("older")
    # No pool is kept or created for an intruder.
    assigned.await_gone()
    assert assigned.accepted("nodePools.create") == 1
    for namespace, name in intruders:
        pod = assigned.api.get(object_path("pods", name, namespace=namespace))
        assert "nodeName" not in pod["spec"], name


def _intrude(ground: Ground, victim: Json) -> list[tuple[str, str]]:
    """Create pods that fit on a victim's nodes; return their names. Admission replaces or rejects forged marks."""
    labels = victim["metadata"]["labels"]
    shown = {"labels": labels, "annotations": victim["metadata"]["annotations"]}
    spec = pod_spec(tolerations=_TOLERATES_ALL)
    found = []
    for name, namespace_labels in (("open", {}), ("labelled", {constants.PLACEMENT: constants.PLACEMENT_ASSIGN})):
        namespace = f"{ground.namespace}-{name}"
        ground.rehearsal.create_namespace(namespace, labels=namespace_labels)
        accounts = collection_path("serviceaccounts", namespace=namespace)
        ground.wait(lambda path=accounts: ground.rehearsal.objects(path), f"{namespace} has a service account")
        post_pod(ground, namespace, "same-labels", spec, **shown)
        post_pod(ground, namespace, "bare", spec)
        found += [(namespace, "same-labels"), (namespace, "bare")]
        forged = pod_spec(tolerations=_TOLERATES_ALL)
        forged["nodeSelector"] |= labels_of(slice_key(labels), ground.namespace)
        if namespace_labels:
            post_pod(ground, namespace, "forged", forged)
            found.append((namespace, "forged"))
            continue
        with pytest.raises(ClusterError, match="tpu-provisioner-placement-guard"):
            post_pod(ground, namespace, "forged", forged)
    post_pod(ground, ground.namespace, "bare", spec)
    found.append((ground.namespace, "bare"))
    return found


@pytest.mark.nightly
def test_assignment_survives_restarts_edited_labels_and_recreated_nodes(assigned: Ground) -> None:
    """The pool was created for an earlier JobSet, so a recreated node begins with the labels of that JobSet."""
    environment = {"MAX_CHIPS": "8", "NODEPOOL_DELETION_DELAY": "60s"}
    process = assigned.provisioner(environment=environment)
    assigned.gke.set(repair_seconds=1.0)
    assigned.post(train(assigned, "first", run_for="1s"))
    assigned.await_completed("first")
    assigned.post(train(assigned, "second", exclusive=False))
    assigned.wait(lambda: len(running(assigned)) == 2, "the second JobSet runs")
    assert_each_on_a_pool_of_its_own(assigned, slices=1)
    (body,) = assigned.sent().values()
    ((key, nodes),) = nodes_of(running(assigned)).items()
    assert body["config"]["labels"][constants.SLICE] not in (key, constants.SLICE_FREE)
    assigned.post(train(assigned, "rival", exclusive=False))
    await_rival(assigned, "rival")
    want = {name: labels_of(key, assigned.namespace) for name in nodes}
    uids = {pod["metadata"]["uid"] for pod in running(assigned)}

    # A new provisioner process does not change the labels of the nodes.
    assert process.stop() == 0
    process = assigned.provisioner(environment=environment)
    await_round(process, assigned.api, after=datetime.now(UTC))
    assert marks_of_nodes(assigned) == want

    # Edited labels are corrected.
    for edited in (
        {constants.SLICE: "j-of-nobody"},
        dict.fromkeys(MARKS),
        dict(FREE),
        {constants.SLICE_NAMESPACE: "other"},
    ):
        assigned.api.patch(object_path("nodes", min(nodes)), {"metadata": {"labels": edited}})
        assigned.wait(lambda: marks_of_nodes(assigned) == want, f"the labels are restored after {edited}")
    assert {pod["metadata"]["uid"] for pod in running(assigned)} == uids

    # A recreated node gets the labels of the slice.
    (victim, _) = running(assigned)
    assigned.api.delete(object_path("nodes", victim["spec"]["nodeName"]))
    remove(assigned, victim, at_once=True)
    assigned.wait(
        lambda: len({pod["metadata"]["uid"] for pod in running(assigned)} - uids) == 2, "the pods of the restart run"
    )
    assert nodes_of(running(assigned)) == {key: nodes}
    assert marks_of_nodes(assigned) == want
    assert bound(assigned, "rival") == []
    assert assigned.accepted("nodePools.create") == 1
    assert assigned.accepted("nodePools.delete") == 0
