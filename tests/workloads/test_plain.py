"""Pods of any controller: their workload, group and index, and which of them are served."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.kube import podspec
from provisioner.model.workloads import Pod, Workload, WorkloadKind, uid_in, workload_ref
from provisioner.slices.demand.owners import with_owners
from provisioner.workloads.parse_pod import parse_pod
from tests.support.models import make_job
from tests.support.objects import raw_plain_pod, reference

REPLICA_SET, STATEFUL_SET = reference("ReplicaSet", "web-5d9"), reference("StatefulSet", "hosts")
INDEXED = {constants.COMPLETION_INDEX: "1"}
ASKED = {"annotations": {constants.SERVE: "true"}}


def parsed(raw: dict[str, Any], **how: Any) -> Pod:
    pod = parse_pod(raw, **how)
    assert pod is not None
    return pod


def chips_of(raw: dict[str, Any]) -> int:
    return podspec.requested_chips("pod", raw["spec"])


def test_pod_of_a_controller_belongs_to_the_controller() -> None:
    """Users write owner references, so the UID is hashed with the namespace. Events have the UID of the controller."""
    pod = parsed(raw_plain_pod("web-5d9-x", REPLICA_SET))
    uid = uid_in("default", "uid-of-web-5d9")
    assert (pod.kind, pod.workload_name, pod.workload_uid) == (WorkloadKind.POD, "ReplicaSet.web-5d9", uid)
    (workload,) = with_owners({}, [pod])[0].values()
    assert workload_ref(workload).uid == "uid-of-web-5d9"
    assert (str(workload), workload.full_name.text) == ("ReplicaSet web-5d9", "ReplicaSet default/web-5d9")


def test_pod_without_a_controller_is_its_own_workload() -> None:
    pod = parsed(raw_plain_pod("trial"))
    (workload,) = with_owners({}, [pod])[0].values()
    assert (workload.uid, str(workload), workload.controller) == (pod.uid, "Pod trial", None)


@pytest.mark.parametrize(
    ("raw", "serve_pods", "want"),
    [
        pytest.param(raw_plain_pod("a"), "all", True, id="all pods"),
        pytest.param(raw_plain_pod("a"), "annotated", False, id="pod without the annotation"),
        pytest.param(raw_plain_pod("a", metadata=ASKED), "annotated", True, id="pod with the annotation"),
        pytest.param(raw_plain_pod("a", metadata=ASKED), "none", False, id="no pods"),
        pytest.param(raw_plain_pod("a", chips=0), "all", False, id="pod without chips"),
        pytest.param(raw_plain_pod("a", reference("DaemonSet", "a")), "all", False, id="pod of a DaemonSet"),
        pytest.param(raw_plain_pod("a", reference("Node", "a", "v1")), "all", False, id="static pod"),
    ],
)
def test_pod_is_read_depending_on_the_setting_and_its_controller(
    raw: dict[str, Any], serve_pods: str, want: bool
) -> None:
    """Pods of DaemonSets and static pods run on existing nodes, so they need no pool.

    A bound pod with chips occupies its node even if it is not served; otherwise the scheduler would seem to refuse the
    node.
    """
    assert (parse_pod(raw, serve_pods=serve_pods) is not None) is want
    raw["spec"]["nodeName"] = "node"
    bound = parse_pod(raw, serve_pods=serve_pods)
    if bound is None:
        assert not chips_of(raw)
        return
    assert (bound.node_name, bool(bound.group_key)) == ("node", want)
    workloads, pods = with_owners({}, [bound], serve_pods=serve_pods)
    assert (len(workloads), len(pods)) == (int(want), 1)


def test_claim_of_a_daemonset_is_no_request_for_chips() -> None:
    """In the past, a slice whose nodes had pods with such claims for monitoring got a second pool."""
    raw = raw_plain_pod("monitor", reference("DaemonSet", "monitor"), chips=0)
    raw["spec"] |= {"nodeName": "node", "resourceClaims": [{"name": "all", "resourceClaimTemplateName": "all"}]}
    assert parse_pod(raw) is None
    del raw["metadata"]["ownerReferences"]
    bound = parse_pod(raw)
    assert bound is not None
    assert bound.requirements.has_chips


@pytest.mark.parametrize(
    ("owner", "metadata", "topology", "group", "index"),
    [
        pytest.param(REPLICA_SET, {}, "2x2x1", "p-1", 0, id="single host"),
        pytest.param(STATEFUL_SET, {}, "2x2x1", "hosts-1", 0, id="single host of a StatefulSet"),
        pytest.param(STATEFUL_SET, {}, "2x2x2", "hosts", 1, id="StatefulSet by its name"),
        pytest.param(
            STATEFUL_SET, {"labels": {constants.POD_INDEX: "7"}}, "2x2x2", "hosts", 7, id="StatefulSet by its label"
        ),
        pytest.param(reference("Job", "sweep"), {"annotations": INDEXED}, "2x2x2", "sweep", 1, id="Indexed Job"),
        pytest.param(reference("Job", "sweep"), {}, "2x2x2", "p-1", 0, id="Job without an index"),
        pytest.param(REPLICA_SET, {}, "2x2x2", "p-1", 0, id="several hosts without an index"),
        pytest.param(REPLICA_SET, {}, "no-topology", "p-1", 0, id="topology that does not exist"),
    ],
)
def test_pods_of_several_hosts_are_one_group_if_they_have_an_index(
    owner: dict[str, Any], metadata: dict[str, Any], topology: str, group: str, index: int
) -> None:
    name = "hosts-1" if owner is STATEFUL_SET else "p-1"
    pod = parsed(raw_plain_pod(name, owner, topology=topology, metadata=metadata), jobs=False)
    assert (pod.kind, pod.group_name, pod.completion_index) == (WorkloadKind.POD, group, index)


def test_pod_of_a_job_is_of_kind_pod_unless_its_job_is_served() -> None:
    """The SliceId is the same in both cases, so a pool keeps its slice if the Job is read after its pods."""
    job: Workload = make_job("sweep", uid="uid-of-sweep")
    metadata = {"labels": {constants.JOB_NAME: "sweep"}, "annotations": INDEXED}
    pod = parsed(raw_plain_pod("sweep-1", reference("Job", "sweep", "batch/v1"), topology="2x2x2", metadata=metadata))
    served, (of_job,) = with_owners({job.uid: job}, [pod])
    other, (plain,) = with_owners({}, [pod])
    unasked, (left,) = with_owners({}, [pod], serve_pods="annotated")
    assert (of_job.kind, plain.kind, left.kind) == (WorkloadKind.JOB, WorkloadKind.POD, WorkloadKind.JOB)
    assert [*served] == [*other] == [plain.workload_uid]
    assert not unasked
    assert of_job.group_key == plain.group_key


def test_finished_pods_have_no_workload() -> None:
    """A workload of kind POD has ended when all its pods have ended."""
    raw = {**raw_plain_pod("a", REPLICA_SET), "status": {"phase": "Succeeded"}}
    assert with_owners({}, [parsed(raw)])[0] == {}
