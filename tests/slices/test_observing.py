"""Tests of the list of pools, of the watches, and of the snapshot that one decision uses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.kube.watches import CombinedWatch
from provisioner.model.capacity import FailureKind, NodePool, PoolName, PoolStatus
from provisioner.model.sources import RESOURCE_SLICES
from provisioner.model.volumes import Claim, StorageClass
from provisioner.model.workloads import Volumes, Workload, WorkloadKind
from provisioner.slices.observe import PoolList, Watches, make_watches, not_synced, take_snapshot, unknown_kinds
from provisioner.slices.suppliers.gke.supplier import GkeSupplier
from provisioner.workloads import KINDS, LEADER_WORKER_SET
from provisioner.workloads.parse_pod import parse_pod
from tests.support.clock import FakeClock
from tests.support.controller import FakeWatch, World
from tests.support.controllers import pods_of
from tests.support.gke import FakeGke
from tests.support.kube import FakeKube
from tests.support.models import make_lws
from tests.support.objects import (
    raw_foreign_pod,
    raw_job,
    raw_jobset,
    raw_lws,
    raw_node,
    raw_plain_pod,
    reference,
)
from tests.support.settings import settings
from tests.support.waiting import wait_for

DRIVER = {constants.TPU_DRA_DRIVER: "true"}
POOL = NodePool(name=PoolName("a"), status=PoolStatus.RUNNING)


def test_failed_list_of_pools_is_repeated_with_pauses_that_double_up_to_30_s() -> None:
    """The pause counts from the failed attempt, not from the last success. A success resets the pause."""
    clock, gke = FakeClock(), FakeGke()
    pools = PoolList(supplier=GkeSupplier(gke=gke, clock=clock.now), clock=clock.now)
    gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE)
    pauses = []
    for _ in range(14):
        assert not pools.fetch()
        pauses.append(pools.due_in_seconds(clock.now(), every_seconds=60.0))
        clock.advance(pauses[-1])
        assert pools.due_in_seconds(clock.now(), every_seconds=60.0) == pytest.approx(0.0)
    assert pauses[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert pauses[-1] == 30.0
    gke.heal()
    assert pools.fetch()
    assert pools.due_in_seconds(clock.now(), every_seconds=60.0) == 60.0
    gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE)
    pools.fetch()
    assert pools.due_in_seconds(clock.now(), every_seconds=60.0) == 1.0


def test_age_of_a_list_counts_from_its_request() -> None:
    """GKE's answer shows the pools as of some time after the request was sent."""
    clock, gke = FakeClock(), FakeGke()
    gke.set_pool(POOL)
    pools = PoolList(supplier=GkeSupplier(gke=gke, clock=clock.now), clock=clock.now)
    assert (pools.age_seconds(clock.now()), pools.by_name()) == (float("inf"), {})
    answer = gke.list_node_pools

    def slow() -> tuple[NodePool, ...]:
        clock.advance(4.0)
        return answer()

    gke.list_node_pools = slow  # type: ignore[method-assign]
    assert pools.fetch()
    assert (pools.age_seconds(clock.now()), pools.by_name()) == (4.0, {"a": POOL})
    assert pools.due_in_seconds(clock.now(), every_seconds=60.0) == 56.0


@pytest.mark.parametrize(
    ("cost_seconds", "want"),
    [
        pytest.param(0.02, 1.0, id="small list"),
        pytest.param(0.12, 1.2, id="1,000 node pools"),
        pytest.param(0.6, 6.0, id="5,000 node pools"),
    ],
)
def test_lists_of_pools_take_at_most_a_tenth_of_a_processor(cost_seconds: float, want: float) -> None:
    clock, gke, processor = FakeClock(), FakeGke(), iter([5.0, 5.0 + cost_seconds])
    supplier = GkeSupplier(gke=gke, clock=clock.now)
    pools = PoolList(supplier=supplier, clock=clock.now, processor_seconds=lambda: next(processor))
    assert pools.fetch()
    assert pools.due_in_seconds(clock.now(), every_seconds=1.0) == pytest.approx(want)


def test_old_list_is_kept_but_not_used_for_decisions_while_lists_fail() -> None:
    world = World()
    world.gke.set_pool(POOL)
    pools = PoolList(supplier=GkeSupplier(gke=world.gke, clock=world.clock.now), clock=world.clock.now)
    assert take_snapshot(world.watches, pools).not_synced == ("the node pools are not listed yet",)
    assert take_snapshot(world.watches, pools).pools_listed_at == datetime.min.replace(tzinfo=UTC)
    pools.fetch()
    listed_at = world.clock.now()
    world.clock.advance(9)
    world.gke.fail_next("list_node_pools", FailureKind.PERMISSION, message="Required 'list'.")
    pools.fetch()
    snapshot = take_snapshot(world.watches, pools)
    assert (snapshot.pools, snapshot.pools_listed_at) == ((POOL,), listed_at)
    (problem,) = snapshot.not_synced
    assert problem.startswith("GKE does not list the node pools: ")
    assert "Required 'list'." in problem
    pools.fetch()
    assert take_snapshot(world.watches, pools).not_synced == ()


_ALWAYS = {
    *(kind.resource for kind in KINDS.values() if not kind.on_request),
    "podtemplates",
    "machineconfigs",
    "pods",
    "nodes",
    "resourceslices",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "configmaps",
}


def test_settings_decide_which_watches_exist() -> None:
    """Namespaces are watched only if their labels decide which pods are served, Jobs only if Jobs are served."""
    for changes, want in (
        ({}, _ALWAYS),
        ({"opt_in_label": ("team", "ml")}, _ALWAYS | {"namespaces"}),
        ({"serve_jobs": True}, _ALWAYS | {"jobs"}),
    ):
        assert make_watches(FakeKube(), settings(**changes), lambda: None).named().keys() == want


@pytest.mark.parametrize("serve_pods", ["all", "annotated", "none"])
def test_pods_of_all_controllers_are_read_whether_they_are_served_or_not(serve_pods: str) -> None:
    """Pods that are not served may take up the nodes of slices."""
    kube = FakeKube()
    kube.put_object("/api/v1/namespaces/other/pods/bound", raw_foreign_pod("bound", "n"))
    watches = make_watches(kube, settings(serve_pods=serve_pods), lambda: None)
    watches.pods.start()
    try:
        wait_for(lambda: watches.pods.synced)
        assert list(watches.pods.records()) == [("other", "bound")]
    finally:
        watches.pods.stop()
    assert (WorkloadKind.POD in unknown_kinds(watches, {})) is (serve_pods == "none")


def test_problem_of_a_watch_is_its_own_message_or_its_silence() -> None:
    world = World()
    assert not_synced(world.watches) == ()
    world.jobsets.synced = False
    world.pods.silent = True
    world.nodes.silent, world.nodes.problem = True, "nodes is forbidden"
    assert not_synced(world.watches) == (
        "the jobsets are not listed yet",
        "nothing was received about the pods for 150 s",
        "nodes is forbidden",
    )


def test_missing_crd_does_not_prevent_decisions_about_other_kinds() -> None:
    world = World()
    uid = world.put_jobset()
    sets = FakeWatch[Workload](lambda: {("default", "serve"): make_lws()})
    watches = replace(world.watches, workloads={**world.watches.workloads, WorkloadKind.LEADER_WORKER_SET: sets})
    world.loop.pools.fetch()
    assert len(take_snapshot(watches, world.loop.pools).workloads) == 2
    sets.synced, sets.problem = False, "the LeaderWorkerSet CRD is not installed"
    snapshot = take_snapshot(watches, world.loop.pools)
    assert (list(snapshot.workloads), snapshot.not_synced) == ([uid], ())
    assert snapshot.unknown_kinds == {*WorkloadKind} - {WorkloadKind.JOBSET}


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([*pods_of(raw_jobset())], id="JobSet"),
        pytest.param([*pods_of(raw_lws())], id="LeaderWorkerSet"),
        pytest.param([raw_plain_pod("ray", reference("RayCluster", "ray", "ray.io/v1"))], id="RayCluster"),
        pytest.param([*pods_of(raw_job())], id="Job"),
    ],
)
def test_pods_have_no_workload_until_the_workloads_of_their_kind_are_listed(pods: list[dict[str, Any]]) -> None:
    world = World()
    lists = FakeWatch[Workload](dict)
    lists.synced, lists.problem = False, "the API server responded with 503"
    parsed = {("default", pod.name): pod for pod in map(parse_pod, pods) if pod is not None}
    watches = replace(
        world.watches, workloads=dict.fromkeys(KINDS, lists), pods=FakeWatch(lambda: parsed), serve_pods="all"
    )
    world.loop.pools.fetch()
    assert take_snapshot(watches, world.loop.pools).workloads == {}
    # Pods of a Job that does not exist, or that has no annotation, are served as pods of kind POD.
    lists.synced = True
    kinds = {workload.kind for workload in take_snapshot(watches, world.loop.pools).workloads.values()}
    assert kinds == ({WorkloadKind.POD} if {pod.kind for pod in parsed.values()} == {WorkloadKind.JOB} else set())


class Flapping(FakeWatch[Workload]):
    """A watch that is fresh at every second call of `fresh`."""

    looks = 0

    def fresh(self, *, max_silence_seconds: float) -> bool:
        self.looks += 1
        return self.looks % 2 == 0


@pytest.mark.parametrize("looks", [0, 1])
def test_kind_and_source_of_a_flapping_watch_are_unknown_in_the_same_snapshot(looks: int) -> None:
    """A watch changes in its own thread while a snapshot is taken."""
    world = World()
    sets = Flapping(dict)
    sets.looks = looks
    watches = replace(world.watches, workloads={**world.watches.workloads, WorkloadKind.LEADER_WORKER_SET: sets})
    world.loop.pools.fetch()
    snapshot = take_snapshot(watches, world.loop.pools)
    is_unknown = LEADER_WORKER_SET.resource in snapshot.unknown
    assert is_unknown is (WorkloadKind.LEADER_WORKER_SET in snapshot.unknown_kinds)


def test_decisions_wait_for_the_first_list_or_error_of_each_kind() -> None:
    """A decision before the first list would drop the hints of an earlier process for slices of that kind."""
    world = World()
    sets = FakeWatch[Workload](dict)
    watches = replace(world.watches, workloads={**world.watches.workloads, WorkloadKind.LEADER_WORKER_SET: sets})
    sets.synced = False
    assert not_synced(watches) == ("the leaderworkersets are not listed yet",)
    sets.problem = "RBAC does not allow the provisioner to list leaderworkersets"
    assert not_synced(watches) == ()
    sets.synced, sets.silent = True, True
    assert not_synced(watches) == ()


def test_snapshot_has_the_objects_of_the_watches() -> None:
    """Deleted JobSets are included only if they own a pool, and labels of namespaces only if namespaces are watched."""
    world = World()
    uid = world.put_jobset()
    for owner in (uid, "seen", "unseen"):
        labels = {
            constants.NODEPOOL_MANAGER: constants.MANAGER,
            constants.POOL_JOBSET_NAME: "train",
            constants.POOL_JOBSET_UID: owner,
        }
        world.gke.set_pool(replace(POOL, name=PoolName(owner), labels=labels))
    world.jobsets.deleted = {uid, "seen", "of no pool"}
    world.loop.pools.fetch()
    snapshot = take_snapshot(world.watches, world.loop.pools)
    assert (list(snapshot.workloads), snapshot.deleted_workloads, len(snapshot.pods)) == ([uid], {"seen"}, 1)
    namespaces = FakeWatch(lambda: {("", "research"): {"team": "ml"}})
    with_labels = Watches(
        workloads={WorkloadKind.JOBSET: world.jobsets}, pods=world.pods, nodes=world.nodes, namespaces=namespaces
    )  # type: ignore[arg-type]
    assert take_snapshot(world.watches, world.loop.pools).namespace_labels == {}
    assert take_snapshot(with_labels, world.loop.pools).namespace_labels == {"research": {"team": "ml"}}


def test_nodes_have_the_chips_that_they_offer_in_resource_slices() -> None:
    """A node with allocatable google.com/tpu counts with these chips, and its ResourceSlice is ignored."""
    world = World()
    amounts = {"plugin": {constants.TPU_RESOURCE: "4"}, "driver": {}, "without": {}}
    for name, amount in amounts.items():
        world.kube.put_object(f"/api/v1/nodes/{name}", raw_node(name, status={"allocatable": amount}))
    watch = make_watches(world.kube, settings(), lambda: None).devices
    assert watch is not None
    (part,) = watch.parts if isinstance(watch, CombinedWatch) else (watch,)
    assert (part.path, part.query["fieldSelector"]) == (
        "/apis/resource.k8s.io/v1/resourceslices",
        "spec.driver=tpu.google.com",
    )
    slices = {name: {"nodeName": name, "devices": [{}] * 8} for name in ("plugin", "driver", "gone")}
    records = {("", name): part._parse({"metadata": {"name": name}, "spec": spec}) for name, spec in slices.items()}
    watches = replace(world.watches, devices=FakeWatch(lambda: records))
    found = take_snapshot(watches, world.loop.pools).nodes
    assert {node.name: node.allocatable_chips for node in found} == {"plugin": 4, "driver": 8, "without": 0}


@pytest.mark.parametrize(
    ("changes", "chips"),
    [
        pytest.param({"problem": "forbidden"}, 4, id="forbidden"),
        pytest.param({"missing": True}, 4, id="API not installed, such as v1beta1 only"),
        pytest.param({"synced": True, "silent": True}, 4, id="watch silent"),
        pytest.param({"synced": True}, 0, id="listed: the driver is not ready yet"),
    ],
)
def test_ready_node_counts_with_its_chips_while_resource_slices_are_unknown(
    changes: dict[str, Any], chips: int
) -> None:
    """In the past, a ProvisioningRequest got 162 pools in 24 h: a right was missing, so no pool became ready."""
    world = World()
    labels = {constants.INSTANCE_TYPE: "ct4p-hightpu-4t"}
    for name, more, ready in (("driver", DRIVER, "True"), ("unready", DRIVER, "False"), ("plugin", {}, "True")):
        status = {"allocatable": {}, "conditions": [{"type": "Ready", "status": ready}]}
        node = raw_node(name, labels={**labels, **more}, status=status)
        world.kube.put_object(object_path("nodes", name), node)
    devices: FakeWatch[tuple[str, int]] = FakeWatch(dict)
    devices.synced = False
    for name, value in changes.items():
        setattr(devices, name, value)
    watches = replace(world.watches, devices=devices)  # type: ignore[arg-type]
    snapshot = take_snapshot(watches, world.loop.pools)
    found = {node.name: node.allocatable_chips for node in snapshot.nodes}
    assert found == {"driver": chips, "unready": 0, "plugin": 0}
    assert snapshot.unknown == ({RESOURCE_SLICES} if chips and not devices.missing else set())


@pytest.mark.parametrize(("known", "zones"), [(True, ("a",)), (False, None)])
def test_pods_that_wait_for_a_node_have_the_zones_of_their_known_volumes(
    *, known: bool, zones: tuple[str, ...] | None
) -> None:
    world = World()
    world.put_jobset()
    (raw,) = world.kube.objects(collection_path("pods"))
    raw["spec"]["volumes"] = [{"name": "w", "persistentVolumeClaim": {"claimName": "w"}}, {"name": "e", "emptyDir": {}}]
    world.kube.put_object(object_path("pods", raw["metadata"]["name"], namespace=raw["metadata"]["namespace"]), raw)
    claims = FakeWatch(lambda: {(raw["metadata"]["namespace"], "w"): Claim(volume="v")})
    claims.synced = known
    volumes, classes = FakeWatch(lambda: {("", "v"): frozenset("a")}), FakeWatch[StorageClass](dict)
    watches = replace(world.watches, claims=claims, volumes=volumes, storage_classes=classes)  # type: ignore[arg-type]
    (pod,) = take_snapshot(watches, world.loop.pools).pods
    assert pod.requirements.volumes == Volumes(claims=("w",), zones=zones)
