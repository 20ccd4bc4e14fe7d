"""Tests of the gate before a delete: live reads confirm the reason, nodes are cordoned, and no pod is on them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import ClusterError, Unavailable
from provisioner.kube.live import cordon, uncordon
from provisioner.kube.protocol import object_path
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.model.workloads import WorkloadKind, WorkloadName
from provisioner.slices.demand import group_key
from provisioner.slices.gate import BINDING_SECONDS, DeletionBlockedError, SettlingError, WorkloadNeedsPoolError
from provisioner.slices.planning.plan import Delete, DeleteReason
from provisioner.workloads import JOBSET, LEADER_WORKER_SET, PLAIN_JOB, PROVISIONING_REQUEST
from provisioner.workloads.parse_pod import parse_pod
from tests.support.controller import (
    NAMESPACE,
    World,
    a_delete,
    jobset_of,
    jobset_path,
    leader_of,
    node_of,
    seconds_from,
)
from tests.support.objects import (
    job_reference,
    raw_foreign_pod,
    raw_job,
    raw_lws,
    raw_plain_pod,
    raw_request,
    reference,
)

NODE = "gke-test-train-pool-0"
SECOND = "gke-test-train-pool-1"


@pytest.fixture
def world() -> World:
    world = World()
    pool = NodePool(name=PoolName("train-pool"), status=PoolStatus.RUNNING)
    for name in (NODE, SECOND):
        world.kube.put_object(object_path("nodes", name), node_of(pool, name, world.clock))
    return world


def put_jobset(world: World, *, uid: str = "uid-of-train", **changes: Any) -> None:
    """Put the JobSet that the pool was created for, or, with another `uid`, a second JobSet of the same name."""
    world.kube.put_object(jobset_path("train"), jobset_of("train", uid=uid, **changes))


def put_pod(world: World, name: str = "stray", **changes: Any) -> None:
    status = {"status": changes.pop("status")} if "status" in changes else {}
    raw = raw_foreign_pod(name, NODE, **changes) | status
    world.kube.put_object(object_path("pods", name, namespace="other"), raw)


def cordoned(world: World, node: str = NODE) -> tuple[bool, bool]:
    """Return whether a node is cordoned, and whether its annotation says that the provisioner cordoned it."""
    raw = world.kube.object(object_path("nodes", node))
    assert raw is not None
    ours = constants.CORDONED in raw["metadata"].get("annotations", {})
    return raw["spec"].get("unschedulable") is True, ours


OF_DAEMON_SET = {"ownerReferences": [job_reference("agent", apiVersion="apps/v1", kind="DaemonSet")]}
COMPLETED = {"status": {"terminalState": "Completed"}}
FAILED = {"status": {"terminalState": "Failed"}}
SUSPENDED = {"spec": {"suspend": True}}
DELETING = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("reason", "workload"),
    [
        pytest.param(DeleteReason.WORKLOAD_GONE, None, id="reason gone, JobSet missing"),
        pytest.param(DeleteReason.WORKLOAD_GONE, {"uid": "another"}, id="reason gone, another JobSet has the name"),
        pytest.param(DeleteReason.WORKLOAD_GONE, DELETING, id="reason gone, JobSet being deleted"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, COMPLETED, id="reason finished, JobSet completed"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, FAILED, id="reason finished, JobSet failed"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, None, id="reason finished, JobSet missing"),
        pytest.param(DeleteReason.WORKLOAD_GONE, SUSPENDED, id="reason gone, JobSet suspended"),
        pytest.param(DeleteReason.WORKLOAD_GONE, COMPLETED, id="reason gone, JobSet completed but not watched"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, SUSPENDED, id="reason finished, JobSet recreated and suspended"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, DELETING, id="reason finished, JobSet being deleted"),
        pytest.param(DeleteReason.WORKLOAD_SUSPENDED, SUSPENDED, id="reason suspended, JobSet suspended"),
        pytest.param(DeleteReason.WORKLOAD_SUSPENDED, None, id="reason suspended, JobSet missing"),
        pytest.param(DeleteReason.WORKLOAD_SUSPENDED, COMPLETED, id="reason suspended, JobSet completed"),
        pytest.param(DeleteReason.SLICE_ELSEWHERE, {}, id="slice on another pool, JobSet living"),
        pytest.param(DeleteReason.NOT_NEEDED, {}, id="pool not needed, JobSet living"),
        pytest.param(DeleteReason.POOL_FAILED, {}, id="pool failed, JobSet living"),
    ],
)
def test_confirmed_reason_permits_the_delete(
    world: World, reason: DeleteReason, workload: dict[str, Any] | None
) -> None:
    if workload is not None:
        put_jobset(world, **workload)
    world.gate.verify_deletable(a_delete(reason=reason))
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(True, True), (True, True)]


@pytest.mark.parametrize(
    ("reason", "workload", "want"),
    [
        pytest.param(DeleteReason.WORKLOAD_GONE, {}, "lives", id="reason gone, JobSet living"),
        pytest.param(DeleteReason.WORKLOAD_FINISHED, {}, "lives", id="reason finished, JobSet living"),
        pytest.param(DeleteReason.WORKLOAD_SUSPENDED, {}, "lives", id="reason suspended, JobSet resumed"),
    ],
)
def test_unconfirmed_reason_keeps_the_pool(
    world: World, reason: DeleteReason, workload: dict[str, Any], want: str
) -> None:
    put_jobset(world, **workload)
    with pytest.raises(WorkloadNeedsPoolError, match=want):
        world.gate.verify_deletable(a_delete(reason=reason))
    assert cordoned(world) == (False, False)
    assert world.calls("PATCH") == []


@pytest.mark.parametrize("reason", [DeleteReason.WORKLOAD_GONE, DeleteReason.WORKLOAD_FINISHED])
def test_suspended_jobset_keeps_its_pool_if_the_setting_says_so(world: World, reason: DeleteReason) -> None:
    """A process that does not watch the namespace may decide the delete; the gate permits it after the JobSet's end."""
    gate = replace(world.gate, settings=replace(world.settings, keep_suspended=True))
    put_jobset(world, **SUSPENDED)
    with pytest.raises(WorkloadNeedsPoolError, match="is suspended and keeps it"):
        gate.verify_deletable(a_delete(reason=reason))
    assert cordoned(world) == (False, False)
    put_jobset(world, **SUSPENDED, **COMPLETED)
    gate.verify_deletable(a_delete(reason=reason))
    assert cordoned(world) == (True, True)


def test_booked_pool_is_kept_until_the_end_of_the_booking(world: World) -> None:
    """Outside SERVED_NAMESPACES the provisioner does not write the end of a booking into the status."""
    since = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    provisioned = {"type": constants.PROVISIONED, "status": "True", "lastTransitionTime": since}
    path = object_path(PROVISIONING_REQUEST.resource, "req", namespace=NAMESPACE, root=PROVISIONING_REQUEST.root)
    world.kube.put_object(path, {**raw_request("req", 4), "status": {"conditions": [provisioned]}})
    kind = WorkloadKind.PROVISIONING_REQUEST
    delete = a_delete(kind=kind, workload_name="req", workload_uid="uid-of-req")
    world.clock.advance(599.0)
    with pytest.raises(WorkloadNeedsPoolError, match="lives"):
        world.gate.verify_deletable(delete)
    world.clock.advance(2.0)
    world.gate.verify_deletable(delete)
    assert cordoned(world) == (True, True)


def test_pool_of_a_request_without_booking_is_deleted_outside_the_served_namespaces(world: World) -> None:
    """The request will never be provisioned there, so it would keep the pool until it is deleted."""
    path = object_path(PROVISIONING_REQUEST.resource, "req", namespace=NAMESPACE, root=PROVISIONING_REQUEST.root)
    world.kube.put_object(path, raw_request("req", 4))
    kind = WorkloadKind.PROVISIONING_REQUEST
    delete = a_delete(kind=kind, workload_name="req", workload_uid="uid-of-req")
    with pytest.raises(WorkloadNeedsPoolError, match="lives"):
        world.gate.verify_deletable(delete)
    replace(world.gate, settings=replace(world.settings, namespaces=("another",))).verify_deletable(delete)
    assert cordoned(world) == (True, True)


def test_pool_without_uid_is_kept_while_any_jobset_of_the_name_lives(world: World) -> None:
    """Pools of the Go provisioner have no label with a UID."""
    put_jobset(world, uid="any")
    with pytest.raises(DeletionBlockedError, match="lives"):
        world.gate.verify_deletable(a_delete(workload_uid=""))


def test_pool_of_an_ended_jobset_with_malformed_templates_is_deleted(world: World) -> None:
    spoilt = {"containers": [{"resources": {"requests": {constants.TPU_RESOURCE: "many"}}}]}
    template = {"spec": {"template": {"spec": spoilt}}}
    put_jobset(world, spec={"replicatedJobs": [{"name": "workers", "template": template}]}, **COMPLETED)
    world.gate.verify_deletable(a_delete())
    assert cordoned(world) == (True, True)


def test_pool_without_namespace_is_kept(world: World) -> None:
    """A live read without the namespace finds no JobSet, as if the JobSet were deleted."""
    with pytest.raises(DeletionBlockedError, match="in which namespace"):
        world.gate.verify_deletable(a_delete(namespace=""))


def put_helper(world: World, *, workload: str = "train", uid: str = "uid-of-train", namespace: str = NAMESPACE) -> None:
    """Put a pod without chips on the pool: a Job controls it, and its labels name a JobSet."""
    labels = {constants.JOBSET_NAME: workload, constants.JOBSET_UID: uid}
    metadata = {"namespace": namespace, "labels": labels, "ownerReferences": [job_reference("train-driver-0")]}
    raw = raw_foreign_pod("driver", NODE, requests={"cpu": "1"}, metadata=metadata)
    world.kube.put_object(object_path("pods", "driver", namespace=namespace), raw)


LIVING = [DeleteReason.NOT_NEEDED, DeleteReason.SLICE_ELSEWHERE, DeleteReason.POOL_FAILED, DeleteReason.NO_READY_NODES]


@pytest.mark.parametrize("reason", LIVING)
def test_pod_without_chips_of_the_living_jobset_keeps_the_pool(world: World, reason: DeleteReason) -> None:
    put_jobset(world)
    put_helper(world)
    with pytest.raises(DeletionBlockedError, match=f"{NAMESPACE}/driver on {NODE}"):
        world.gate.verify_deletable(a_delete(reason=reason))
    assert cordoned(world) == (False, False)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"namespace": "elsewhere"}, id="another namespace"),
        pytest.param({"workload": "other"}, id="another JobSet"),
        pytest.param({"uid": "uid-of-an-earlier-one"}, id="an earlier JobSet of the name"),
    ],
)
def test_pod_without_chips_of_another_workload_does_not_keep_the_pool(world: World, changes: dict[str, str]) -> None:
    put_jobset(world)
    put_helper(world, **changes)
    world.gate.verify_deletable(a_delete(reason=DeleteReason.NOT_NEEDED))
    assert cordoned(world) == (True, True)


@pytest.mark.parametrize(("namespace", "keeps"), [(NAMESPACE, True), ("elsewhere", False)])
def test_leader_without_chips_keeps_only_the_pool_of_its_living_workload(
    world: World, namespace: str, keeps: bool
) -> None:
    path = object_path("leaderworkersets", "serve", namespace=NAMESPACE, root=LEADER_WORKER_SET.root)
    world.kube.put_object(path, raw_lws(namespace=NAMESPACE))
    labels, owner = {constants.LWS_NAME: "serve"}, reference("StatefulSet", "serve", "apps/v1")
    leader = raw_plain_pod("serve-0", owner, chips=0, metadata={"labels": labels, "namespace": namespace})
    leader["spec"]["nodeName"] = NODE
    world.kube.put_object(object_path("pods", "serve-0", namespace=namespace), leader)
    kind = WorkloadKind.LEADER_WORKER_SET
    delete = a_delete(reason=DeleteReason.NOT_NEEDED, kind=kind, workload_name="serve", workload_uid="uid-of-serve")
    with pytest.raises(DeletionBlockedError, match=f"{NAMESPACE}/serve-0 on {NODE}") if keeps else nullcontext():
        world.gate.verify_deletable(delete)


def test_pod_without_chips_of_an_ended_jobset_does_not_keep_the_pool(world: World) -> None:
    put_jobset(world, **COMPLETED)
    put_helper(world)
    world.gate.verify_deletable(a_delete(reason=DeleteReason.WORKLOAD_FINISHED))


_CLASSES = "deviceclass.resource.kubernetes.io/"
_INIT = {"name": "init", "resources": {"limits": {f"{_CLASSES}tpu.google.com": "4"}}}
#: Status of a pod for which the scheduler created a claim, because a DeviceClass defines the resource name.
_CLAIMED = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "stray-x", "requestMappings": []}}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({}, id="running"),
        pytest.param({"phase": "Pending"}, id="bound but not started"),
        pytest.param({"phase": "Unknown"}, id="phase unknown"),
        pytest.param({"grace": 20.0}, id="terminating, within its grace period"),
        pytest.param({"requests": {}, "resourceClaims": [{"name": "any"}]}, id="claim"),
        pytest.param({"requests": {f"{_CLASSES}tpu.google.com": "4"}}, id="devices of a class"),
        pytest.param({"requests": {}, "initContainers": [_INIT]}, id="devices of a class in an init container"),
        pytest.param(
            {"requests": {"example.com/tpu": "4"}, "status": _CLAIMED}, id="resource with a name of the administrator"
        ),
    ],
)
def test_unfinished_pod_with_chips_keeps_the_pool(world: World, pod: dict[str, Any]) -> None:
    if "grace" in pod:
        pod = {"metadata": {"deletionTimestamp": seconds_from(world.clock, pod["grace"])}}
    put_pod(world, **pod)
    with pytest.raises(DeletionBlockedError, match=f"other/stray on {NODE}"):
        world.gate.verify_deletable(a_delete())
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(False, False), (False, False)]
    assert steps(world) == ["pods", "pods"], "no node is cordoned, not even for a moment"


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"phase": "Succeeded"}, id="succeeded"),
        pytest.param({"phase": "Failed"}, id="failed"),
        pytest.param({"requests": {"cpu": "1"}}, id="no chips"),
        pytest.param(
            {"requests": {}, "resourceClaims": [{"name": "any"}], "metadata": OF_DAEMON_SET},
            id="claim of a DaemonSet pod",
        ),
        pytest.param(
            {
                "requests": {},
                "resourceClaims": [{"name": "any"}],
                "metadata": OF_DAEMON_SET,
                "nodeSelector": {constants.TPU_ACCELERATOR: "tpu-v4-podslice", constants.TPU_TOPOLOGY: "2x2x2"},
            },
            id="claim of a DaemonSet pod that selects the accelerator",
        ),
        pytest.param({"grace": -5.0}, id="terminating, past its grace period"),
    ],
)
def test_ended_pods_and_pods_without_chips_do_not_keep_the_pool(world: World, pod: dict[str, Any]) -> None:
    if "grace" in pod:
        pod = {"metadata": {"deletionTimestamp": seconds_from(world.clock, pod["grace"])}}
    put_pod(world, **pod)
    world.gate.verify_deletable(a_delete())
    assert cordoned(world) == (True, True)


def steps(world: World) -> list[str]:
    return [
        "cordon" if call.method == "PATCH" else "pods"
        for call in world.kube.calls
        if call.method == "PATCH" or call.path == "/api/v1/pods"
    ]


def test_pods_are_listed_before_and_after_the_nodes_are_cordoned(world: World) -> None:
    """The first list avoids cordons on a pool that a pod keeps; the second list finds pods bound in between."""
    world.gate.verify_deletable(a_delete())
    assert steps(world) == ["pods", "pods", "cordon", "cordon", "pods", "pods"]


def test_pods_of_a_cordoned_pool_are_listed_once(world: World) -> None:
    world.gate.verify_deletable(a_delete())
    world.kube.calls.clear()
    world.gate.verify_deletable(a_delete())
    assert steps(world) == ["pods", "pods"]


def test_repeated_check_of_a_kept_pool_takes_one_read_and_one_list(world: World) -> None:
    """A pool may have thousands of nodes, so the node of the pod that kept the pool is checked first."""
    put_pod(world)
    with pytest.raises(DeletionBlockedError):
        world.gate.verify_deletable(a_delete())
    world.kube.remove_object(object_path("pods", "stray", namespace="other"))
    put_pod(world, "another")
    world.kube.calls.clear()
    with pytest.raises(DeletionBlockedError, match=f"other/another on {NODE}"):
        world.gate.verify_deletable(a_delete())
    assert world.calls("GET") == [jobset_path("train"), "/api/v1/pods"]
    world.kube.remove_object(object_path("pods", "another", namespace="other"))
    world.gate.verify_deletable(a_delete())
    assert cordoned(world) == (True, True)


def test_pod_that_tolerates_the_cordon_and_is_bound_in_between_keeps_the_pool(world: World) -> None:
    """The pod tolerates cordons, so they do not prevent its binding. The gate's cordons are undone."""
    patch = world.kube.patch

    def then_a_pod(path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        put_pod(world)
        return patch(path, body, **options)

    world.kube.patch = then_a_pod  # type: ignore[method-assign]
    with pytest.raises(DeletionBlockedError, match="other/stray"):
        world.gate.verify_deletable(a_delete())
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(False, False), (False, False)]


def test_failed_uncordon_is_repeated_by_the_next_pass(world: World) -> None:
    """The second pass must check all nodes again, instead of only the node whose pod keeps the pool."""
    cordon(world.kube, SECOND)
    put_pod(world)
    world.kube.fail("PATCH", SECOND, Unavailable("no answer"), times=1)
    with pytest.raises(DeletionBlockedError):
        world.gate.verify_deletable(a_delete())
    assert cordoned(world, SECOND) == (True, True)
    with pytest.raises(DeletionBlockedError):
        world.gate.verify_deletable(a_delete())
    assert cordoned(world, SECOND) == (False, False)


def test_cordon_by_an_administrator_is_kept(world: World) -> None:
    world.kube.patch(object_path("nodes", NODE), {"spec": {"unschedulable": True}})
    put_pod(world)
    with pytest.raises(DeletionBlockedError):
        world.gate.verify_deletable(a_delete())
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(True, False), (False, False)]


@pytest.mark.parametrize(
    ("method", "path", "times"),
    [
        pytest.param("GET", "/jobsets/", 1, id="the JobSet can't be read"),
        pytest.param("GET", "/api/v1/nodes$", 1, id="the nodes can't be listed"),
        pytest.param("PATCH", f"/nodes/{NODE}$", 1, id="the first node can't be cordoned"),
        pytest.param("PATCH", f"/nodes/{SECOND}$", 1, id="the second node can't be cordoned"),
        pytest.param("GET", "/api/v1/pods", 1, id="the pods can't be listed"),
    ],
)
def test_failing_api_server_prevents_the_delete(world: World, method: str, path: str, times: int) -> None:
    world.kube.fail(method, path, Unavailable("no answer"), times=times)
    with pytest.raises(Unavailable):
        world.gate.verify_deletable(a_delete())
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(False, False), (False, False)]


def test_malformed_pod_prevents_the_delete(world: World) -> None:
    put_pod(world, requests={constants.TPU_RESOURCE: "many"})
    with pytest.raises(ClusterError):
        world.gate.verify_deletable(a_delete())
    assert cordoned(world) == (False, False)


def test_missing_jobset_crd_prevents_the_delete(world: World) -> None:
    """Without the JobSet CRD the API server answers 404 for every JobSet, which must not permit any delete."""
    world.kube.uninstall(JOBSET.root)
    with pytest.raises(ClusterError):
        world.gate.verify_deletable(a_delete())
    assert world.calls("PATCH") == []


@pytest.mark.parametrize("used", [False, True])
def test_pool_is_deleted_if_its_workload_kind_is_long_absent_unless_pods_are_on_it(used: bool, world: World) -> None:
    world.kube.uninstall(JOBSET.root)
    if used:
        put_pod(world)
    with pytest.raises(DeletionBlockedError) if used else nullcontext():
        world.gate.verify_deletable(a_delete(kind_absent=True))
    assert cordoned(world)[0] is not used


def test_failed_uncordon_does_not_replace_the_reason_for_keeping_the_pool(world: World) -> None:
    put_pod(world)
    world.kube.fail("PATCH", "/nodes/", Unavailable("no answer"), times=0)
    original = world.kube.patch

    def only_cordons(path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        if body["spec"]["unschedulable"] is None:
            raise Unavailable("no answer")
        return original(path, body, **options)

    world.kube.patch = only_cordons  # type: ignore[method-assign]
    with pytest.raises(DeletionBlockedError):
        world.gate.verify_deletable(a_delete())


_JOB = object_path("jobs", "train", namespace=NAMESPACE, root=PLAIN_JOB.root)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        pytest.param({}, True, id="Job running"),
        pytest.param({"metadata": {"annotations": {}}}, False, id="Job without the annotation"),
        pytest.param({"metadata": {"uid": "another"}}, False, id="another Job of the name"),
        pytest.param({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, False, id="Job completed"),
        pytest.param({"spec": {"suspend": True}}, False, id="Job suspended"),
        pytest.param(None, False, id="Job deleted"),
    ],
)
def test_pool_of_a_job_is_kept_while_a_live_read_shows_that_the_job_needs_it(
    world: World, *, changes: dict[str, Any] | None, kept: bool
) -> None:
    """A Job keeps the pool only with the right UID and the annotation. Otherwise pods on the nodes still keep it."""
    if changes is not None:
        world.kube.put_object(_JOB, raw_job("train", namespace=NAMESPACE, **changes))
    delete = a_delete(kind=WorkloadKind.JOB)
    if kept:
        with pytest.raises(WorkloadNeedsPoolError, match=f"Job {NAMESPACE}/train lives"):
            world.gate.verify_deletable(delete)
        return
    put_pod(world)
    with pytest.raises(DeletionBlockedError, match="other/stray"):
        world.gate.verify_deletable(delete)
    world.kube.remove_object(object_path("pods", "stray", namespace="other"))
    world.gate.verify_deletable(delete)
    assert cordoned(world) == (True, True)
    assert _JOB in world.calls("GET")


def put_job_pod(world: World, index: str, *, node: str, job: int = 0) -> None:
    """Put a pod of the Job that the pool was created for: bound to the node, or unschedulable if `node` is empty."""
    raw = leader_of("train", number=job, topology="2x2x2", uid="uid-of-train", node=node)
    name = f"train-workers-{job}-{index}"
    raw["metadata"] |= {"name": name, "uid": name}
    raw["metadata"]["labels"][constants.COMPLETION_INDEX] = index
    world.kube.put_object(object_path("pods", name, namespace=NAMESPACE), raw)


def stuck_delete(*jobs: int) -> Delete:
    """Return the delete of a pool on which one pod of a slice runs while another pod of the slice is unschedulable."""
    keys = frozenset(group_key(NAMESPACE, f"train-workers-{job}") for job in jobs or (0,))
    return a_delete(reason=DeleteReason.SLICE_STUCK, replaced_groups=keys)


def test_own_pods_of_a_stuck_slice_do_not_keep_its_pool(world: World) -> None:
    """The leader runs and its follower can never be bound; the settings can allow the replacement of the pool."""
    put_job_pod(world, "0", node=NODE)
    put_job_pod(world, "1", node="")
    world.gate.verify_deletable(stuck_delete())
    assert cordoned(world) == (True, True)


def test_pods_of_all_child_jobs_of_a_stuck_slice_do_not_keep_its_pool(world: World) -> None:
    """With one child Job for each host, Jobs 2 and 3 are the second slice of the JobSet."""
    put_job_pod(world, "0", job=2, node=NODE)
    put_job_pod(world, "0", job=3, node="")
    world.gate.verify_deletable(stuck_delete(2, 3))
    assert cordoned(world) == (True, True)


def test_own_pods_of_a_job_that_is_not_served_do_not_keep_its_pool(world: World) -> None:
    """The pool's owner is of kind POD, but the gate reads the pods on its nodes as pods of a Job."""
    metadata = {
        "labels": {constants.COMPLETION_INDEX: "1", "batch.kubernetes.io/job-name": "train"},
        "ownerReferences": [reference("Job", "train", "batch/v1")],
    }
    raw = raw_plain_pod("train-1-abcde", namespace=NAMESPACE, topology="2x2x2", metadata=metadata)
    raw["spec"]["nodeName"] = NODE
    pod = parse_pod(raw, jobs=False)
    assert pod is not None
    assert pod.kind is WorkloadKind.POD
    world.kube.put_object(object_path("pods", pod.name, namespace=NAMESPACE), raw)
    waiting = copy.deepcopy(raw)
    waiting["metadata"] |= {"name": "train-0-abcde", "uid": "waits"}
    del waiting["spec"]["nodeName"]
    world.kube.put_object(object_path("pods", "train-0-abcde", namespace=NAMESPACE), waiting)
    world.gate.verify_deletable(
        replace(
            stuck_delete(),
            named=WorkloadName(pod.kind, NAMESPACE, pod.workload_name),
            workload_uid=pod.workload_uid,
            replaced_groups=frozenset({pod.group_key}),
        )
    )


def test_slice_that_is_no_longer_stuck_keeps_its_pool(world: World) -> None:
    """The follower was bound between the decision and the check by the gate."""
    put_job_pod(world, "0", node=NODE)
    put_job_pod(world, "1", node=SECOND)
    with pytest.raises(DeletionBlockedError, match="no pod of the stuck slice is unschedulable"):
        world.gate.verify_deletable(stuck_delete())
    assert cordoned(world) == (False, False)


def test_slice_with_pods_on_all_hosts_keeps_its_pool_despite_a_further_pod(world: World) -> None:
    """The workload was scaled up, and the caches did not show that the other pods run."""
    put_job_pod(world, "0", node=NODE)
    put_job_pod(world, "2", node=SECOND)
    put_job_pod(world, "1", node="")
    with pytest.raises(DeletionBlockedError, match="train-workers-0-0 on gke-test-train-pool-0"):
        world.gate.verify_deletable(replace(stuck_delete(), hosts=2))
    assert (cordoned(world), cordoned(world, SECOND)) == ((False, False), (False, False))


def test_pod_of_another_kind_keeps_the_pool_of_a_stuck_slice(world: World) -> None:
    """Groups of two kinds may have the same name, and pods of LeaderWorkerSets do not have the UID of their owner."""
    put_job_pod(world, "1", node="")
    raw = leader_of("train", topology="2x2x2", uid="uid-of-train", node=NODE)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train-workers", "uid": "u", "controller": True}
    raw["metadata"] |= {
        "name": "train-workers-0",
        "uid": "of another kind",
        "labels": {constants.LWS_NAME: "train-workers"},
        "annotations": {},
        "ownerReferences": [owner],
    }
    world.kube.put_object(object_path("pods", "train-workers-0", namespace=NAMESPACE), raw)
    with pytest.raises(DeletionBlockedError, match="train-workers-0 on"):
        world.gate.verify_deletable(stuck_delete())


def test_public_reason_names_only_pods_of_the_workloads_namespace(world: World) -> None:
    put_pod(world)
    put_job_pod(world, "0", node=NODE)
    with pytest.raises(DeletionBlockedError, match="other/stray") as kept:
        world.gate.verify_deletable(a_delete())
    assert kept.value.public == f"unfinished pods are on it: {NAMESPACE}/train-workers-0-0 on {NODE}"


def test_pod_of_another_workload_keeps_the_pool_of_a_stuck_slice(world: World) -> None:
    """The stuck slice's own pods do not keep its pool, but a pod of another workload would lose its work."""
    put_job_pod(world, "1", node="")
    put_pod(world)
    with pytest.raises(DeletionBlockedError, match="other/stray"):
        world.gate.verify_deletable(stuck_delete())


def put_node(world: World, name: str, *, uid: str = "", cordoned: bool = False) -> None:
    raw = node_of(NodePool(name=PoolName("train-pool"), status=PoolStatus.RUNNING), name, world.clock)
    raw["metadata"]["uid"] = uid or f"uid-of-{name}"
    raw["spec"]["unschedulable"] = cordoned
    world.kube.put_object(object_path("nodes", name), raw)


def settle(world: World) -> float:
    """Request the delete of a pool that has to settle; return the remaining wait in seconds, 0 if the delete passes."""
    try:
        world.gate.verify_deletable(a_delete(settle=True))
    except SettlingError as error:
        return error.wait_seconds
    return 0.0


def test_pool_that_has_to_settle_is_cordoned_for_a_minute_before_its_delete(world: World) -> None:
    """For a minute after the cordon, a pod may still be bound to a node that the scheduler chose before."""
    assert settle(world) == BINDING_SECONDS
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(True, True), (True, True)]
    world.clock.advance(59.0)
    assert settle(world) == 1.0
    world.clock.advance(1.0)
    # A delete that GKE rejected need not settle again, because the nodes remain cordoned.
    assert [settle(world), settle(world)] == [0.0, 0.0]
    assert steps(world)[:6] == ["pods", "pods", "cordon", "cordon", "pods", "pods"]


def test_pod_that_is_bound_while_the_pool_settles_keeps_it(world: World) -> None:
    """The cordons are undone. When the pod is deleted, the settling time restarts."""
    settle(world)
    world.clock.advance(30.0)
    put_pod(world)
    world.clock.advance(30.0)
    with pytest.raises(DeletionBlockedError, match="other/stray"):
        world.gate.verify_deletable(a_delete(settle=True))
    assert [cordoned(world, node) for node in (NODE, SECOND)] == [(False, False), (False, False)]
    world.kube.remove_object(object_path("pods", "stray", namespace="other"))
    assert settle(world) == BINDING_SECONDS


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda world: uncordon(world.kube, NODE), id="node uncordoned"),
        pytest.param(lambda world: put_node(world, "gke-test-train-pool-2"), id="node added"),
        pytest.param(lambda world: put_node(world, NODE, uid="another", cordoned=True), id="node recreated, cordoned"),
        pytest.param(lambda world: world.gate.forget_all_but(()), id="pool needed in between"),
    ],
)
def test_settling_time_restarts_after_a_change(world: World, change: Callable[[World], object]) -> None:
    """While a node was not cordoned, the scheduler may have chosen it for a pod."""
    settle(world)
    world.clock.advance(60.0)
    change(world)
    assert settle(world) == BINDING_SECONDS
    assert cordoned(world)[0]
    world.clock.advance(60.0)
    assert settle(world) == 0.0


def test_settling_time_continues_if_a_node_is_deleted(world: World) -> None:
    settle(world)
    world.kube.remove_object(object_path("nodes", SECOND))
    world.clock.advance(60.0)
    assert settle(world) == 0.0


def test_settling_time_restarts_with_the_process(world: World) -> None:
    settle(world)
    world.clock.advance(60.0)
    world.start()
    assert settle(world) == BINDING_SECONDS
