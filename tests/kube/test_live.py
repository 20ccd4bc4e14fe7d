"""Tests of live reads before a delete, and of writes to nodes, which change only the provisioner's own fields."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube import errors, live
from provisioner.kube.protocol import DEFAULT_TIMEOUTS
from provisioner.model.capacity import PoolName
from provisioner.model.membership import Membership
from provisioner.model.workloads import Requirements, WorkloadKind
from provisioner.workloads.pods import get_workload, list_pods_of_workload, list_pods_on_node
from tests.support.kube import FakeKube
from tests.support.objects import raw_jobset, raw_node, raw_plain_pod, raw_pod, raw_request, reference

JOBSET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/train"
NODE = "/api/v1/nodes/n1"
CHIPS_IN_WORDS = {"resources": {"requests": {"google.com/tpu": "four"}}}


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


def test_jobset_is_read_live(kube: FakeKube) -> None:
    """No resourceVersion is sent, so the response is not from a cache."""
    kube.put_object(JOBSET, raw_jobset())
    jobset = get_workload(kube, WorkloadKind.JOBSET, "default", "train")
    assert jobset is not None
    assert jobset.uid == "uid-of-train"
    assert get_workload(kube, WorkloadKind.JOBSET, "default", "other") is None
    assert all("resourceVersion" not in call.query for call in kube.calls)


def test_missing_kind_raises_an_error_for_a_jobset(kube: FakeKube) -> None:
    """Otherwise, removing the CRD would cause the deletion of every pool."""
    kube.put_object(JOBSET, raw_jobset())
    kube.uninstall("/apis/jobset.x-k8s.io/v1alpha2")
    with pytest.raises(errors.NotFound):
        get_workload(kube, WorkloadKind.JOBSET, "default", "train")


@pytest.mark.parametrize("name", ["req", "r" * 200, "r" * 62 + "-1"], ids=["short", "cut", "cut at a hyphen"])
def test_request_with_a_long_name_is_found_by_its_uid(kube: FakeKube, name: str) -> None:
    kube.put_object(f"/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests/{name}", raw_request(name))
    label, uid = name[:63].rstrip("-"), f"uid-of-{name}"
    found = get_workload(kube, WorkloadKind.PROVISIONING_REQUEST, "default", label, uid)
    assert found is not None
    assert found.name == name
    assert get_workload(kube, WorkloadKind.PROVISIONING_REQUEST, "default", label, "uid-of-another") is None


def test_nodes_of_a_pool_are_listed_by_the_label_of_gke(kube: FakeKube) -> None:
    """Nodes count whether or not they have labels of the provisioner."""
    kube.put_object(NODE, raw_node("n1", pool="p"))
    kube.put_object("/api/v1/nodes/n2", raw_node("n2", pool="q"))
    kube.put_object("/api/v1/nodes/n3", raw_node("n3", pool="p"))
    live.cordon(kube, "n3")
    kube.put_object("/api/v1/nodes/n4", raw_node("n4", pool="p", spec={"unschedulable": True}))
    pool = PoolName("p")
    here = [
        live.PoolNode(name="n1", uid="uid-of-n1", pool_name=pool, open=True, marked=False, labelled=True),
        live.PoolNode(name="n3", uid="uid-of-n3", pool_name=pool, open=False, marked=True, labelled=True),
        live.PoolNode(name="n4", uid="uid-of-n4", pool_name=pool, open=False, marked=False, labelled=True),
    ]
    assert live.list_nodes_of_pool(kube, pool, Membership()) == here
    assert live.find_nodes_of_pool(kube, pool, 3, Membership()) == (here, frozenset())
    # Too few nodes have the label, so all nodes are listed: the name of gke-p-1f-abcd has the pool's prefix, and the
    # label of n5 names a pool that GKE does not list.
    membership = Membership(by_prefix={"gke-p-1f": pool}, listed={pool, PoolName("q")})
    kube.put_object("/api/v1/nodes/gke-p-1f-abcd", raw_node("gke-p-1f-abcd", pool="q"))
    kube.put_object("/api/v1/nodes/n5", raw_node("n5", pool="unknown"))
    other = live.PoolNode(
        name="gke-p-1f-abcd", uid="uid-of-gke-p-1f-abcd", pool_name=PoolName("q"), open=True, marked=False
    )
    assert live.find_nodes_of_pool(kube, pool, 4, membership) == ([other, *here], frozenset({"n5"}))


def test_unfinished_pods_of_a_node_are_listed_on_all_pages(kube: FakeKube) -> None:
    """Any pod that requests chips counts, not only pods of JobSets."""
    chips = {"nodeName": "n1", "containers": [{"resources": {"requests": {"google.com/tpu": "4"}}}]}
    for number in range(600):
        name = f"p{number:03}"
        kube.put_object(
            f"/api/v1/namespaces/default/pods/{name}",
            raw_pod(name, spec=chips, metadata={"labels": {}}, status={"phase": "Running"}),
        )
    kube.put_object("/api/v1/namespaces/default/pods/done", raw_pod("done", spec=chips, status={"phase": "Succeeded"}))
    kube.put_object("/api/v1/namespaces/default/pods/elsewhere", raw_pod("elsewhere"))
    kube.put_object(
        "/api/v1/namespaces/kube/pods/web",
        raw_pod(
            "web", namespace="kube", spec={"nodeName": "n1"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}
        ),
    )
    pods = list_pods_on_node(kube, "n1")
    assert len(pods) == 601
    assert all(pod.has_devices for pod in pods if pod.namespace == "default")
    (web,) = [pod for pod in pods if pod.name == "web"]
    assert (web.has_devices, web.finished) == (False, False)
    assert web.deletion_deadline is not None
    assert all("resourceVersion" not in call.query for call in kube.calls)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"spec": {"nodeName": "n1", "containers": [CHIPS_IN_WORDS]}}, id="chips"),
        pytest.param({"metadata": {"deletionTimestamp": 5}, "spec": {"nodeName": "n1"}}, id="deletion"),
    ],
)
def test_unreadable_pod_prevents_the_delete(kube: FakeKube, damage: dict[str, Any]) -> None:
    kube.put_object("/api/v1/namespaces/default/pods/p", raw_pod("p", **damage))
    with pytest.raises(errors.Malformed, match="pod default/p"):
        list_pods_on_node(kube, "n1")


def test_expired_list_is_repeated_twice(kube: FakeKube) -> None:
    kube.put_object(NODE, raw_node("n1", pool="p"))
    gone = errors.Gone("too old", status=410)
    kube.fail("GET", "nodes", gone, times=2)
    assert len(live.list_nodes_of_pool(kube, PoolName("p"), Membership())) == 1
    kube.fail("GET", "nodes", gone, times=3)
    with pytest.raises(errors.Gone):
        live.list_nodes_of_pool(kube, PoolName("p"), Membership())


@pytest.mark.parametrize("kind", [WorkloadKind.JOBSET, WorkloadKind.POD], ids=str)
def test_pods_that_are_listed_before_a_delete_take_little_memory(kube: FakeKube, kind: WorkloadKind) -> None:
    """With their affinities, 1,000 listed pods took 105 MB for each of 16 concurrent deletes."""
    long = {"key": "k", "operator": "NotIn", "values": [f"{number}" * 20 for number in range(60)]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [long]}]}
    for name in ("a", "b"):
        raw = raw_pod(name) if kind is WorkloadKind.JOBSET else raw_plain_pod(name, reference("ReplicaSet", "train"))
        raw["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        kube.put_object(f"/api/v1/namespaces/default/pods/{name}", raw)
    named = "train" if kind is WorkloadKind.JOBSET else "ReplicaSet.train"
    pods = list_pods_of_workload(kube, kind, "default", named)
    assert [(pod.name, pod.requirements) for pod in pods] == [("a", Requirements()), ("b", Requirements())]


def test_pods_of_a_jobset_are_listed_by_its_name(kube: FakeKube) -> None:
    for namespace in ("one", "two"):
        kube.put_object(f"/api/v1/namespaces/{namespace}/pods/p", raw_pod("p", namespace=namespace))
    pods = list_pods_of_workload(kube, WorkloadKind.JOBSET, "one", "train")
    assert [(pod.namespace, pod.name) for pod in pods] == [("one", "p")]
    assert list_pods_of_workload(kube, WorkloadKind.JOBSET, "one", "other") == []


def test_cordon_is_recorded_and_undone(kube: FakeKube) -> None:
    before = kube.put_object(NODE, raw_node("n1"))
    live.cordon(kube, "n1")
    raw = kube.object(NODE)
    assert raw is not None
    assert raw["spec"]["unschedulable"] is True
    assert raw["metadata"]["annotations"] == {"tpu-provisioner.cloud.google.com/cordoned": "true"}
    live.uncordon(kube, "n1")
    raw = kube.object(NODE)
    assert raw is not None
    assert (raw["spec"], raw["metadata"]["annotations"]) == (before["spec"], {})


def test_missing_node_causes_no_error(kube: FakeKube) -> None:
    live.cordon(kube, "n1")
    live.uncordon(kube, "n1")
    live.release(kube, "n1")
    kube.fail("PATCH", "nodes", errors.Forbidden("no", status=403))
    with pytest.raises(errors.Forbidden):
        live.cordon(kube, "n1")


def test_empty_name_is_rejected(kube: FakeKube) -> None:
    """A PATCH or DELETE of a collection would affect all its objects."""
    with pytest.raises(ValueError, match="is not the name of an object"):
        live.cordon(kube, "")


def test_cordon_without_the_annotation_is_kept(kube: FakeKube) -> None:
    """A user cordoned the node after the provisioner had undone its cordon; a cache still has the annotation."""
    raw: dict[str, Any] = raw_node("n1")
    kube.put_object(NODE, {**raw, "spec": {**raw.get("spec", {}), "unschedulable": True}})
    live.uncordon(kube, "n1")
    assert [call.method for call in kube.calls] == ["GET"]


def test_uncordon_is_repeated_after_conflicts(kube: FakeKube) -> None:
    """The patch has the resourceVersion of the read, so that it fails after another write; at most 5 attempts."""
    kube.put_object(NODE, raw_node("n1"))
    live.cordon(kube, "n1")
    closed = kube.object(NODE)
    assert closed is not None
    changed = errors.Conflict("the object has been modified", status=409)
    kube.fail("PATCH", "nodes", changed, times=5)
    with pytest.raises(errors.Conflict):
        live.uncordon(kube, "n1")
    kube.fail("PATCH", "nodes", changed, times=4)
    live.uncordon(kube, "n1")
    assert [call.method for call in kube.calls[1:]] == ["GET", "PATCH"] * 10
    body = kube.calls[-1].body
    assert body is not None
    assert body["metadata"]["resourceVersion"] == closed["metadata"]["resourceVersion"]


HELD = {"key": constants.HELD_LATE, "value": "true", "effect": "NoSchedule"}
CHIPS = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "want", "changed"),
    [
        pytest.param([CHIPS, HELD], [CHIPS], True, id="ours goes and others stay"),
        pytest.param([HELD], None, True, id="ours was the only one"),
        pytest.param([CHIPS], [CHIPS], False, id="ours is not there"),
        pytest.param(None, None, False, id="no taint at all"),
    ],
)
def test_release_removes_only_the_taint_of_the_provisioner(
    kube: FakeKube, *, taints: list[dict[str, str]] | None, want: list[dict[str, str]] | None, changed: bool
) -> None:
    kube.put_object(NODE, {**raw_node("n1"), "spec": {"taints": taints} if taints else {}})
    live.release(kube, "n1")
    node = kube.object(NODE)
    assert node is not None
    assert node["spec"].get("taints") == want
    assert [call.method for call in kube.calls] == (["GET", "PATCH"] if changed else ["GET"])


def test_uid_of_a_cluster_is_that_of_kube_system(kube: FakeKube) -> None:
    kube.put_object("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": "c-1"}})
    assert live.read_cluster_uid(kube, timeouts=DEFAULT_TIMEOUTS) == "c-1"


def test_invalid_uid_raises_malformed(kube: FakeKube) -> None:
    kube.put_object("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": 7}})
    with pytest.raises(errors.Malformed, match="kube-system has no uid"):
        live.read_cluster_uid(kube, timeouts=DEFAULT_TIMEOUTS)
