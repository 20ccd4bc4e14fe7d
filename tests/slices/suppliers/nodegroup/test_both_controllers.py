"""Tests of the provisioner with PROVIDER=gce, the controller of node groups and a simulated Compute Engine.

The JobSet controller, the scheduler and the kubelets are minimal: a lost pod restarts its JobSet, the pods of one slice
are on one pool, and the node of a stopped machine is not ready.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import Forbidden
from provisioner.kube.live import DeletionBlockedError
from provisioner.kube.protocol import collection_path, object_path
from provisioner.kube.watches import parse_node
from provisioner.model.capacity import OperationName
from provisioner.model.workloads import Workload
from provisioner.slices.gate import Gate
from provisioner.slices.planning.memory.answers import CreateAnswer, DeleteAnswer, DeleteResult, LookUpAnswer
from provisioner.slices.planning.memory.state import LookUp, Memory
from provisioner.slices.planning.plan import Create, Delete, Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.supplier import SupplierError
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES
from provisioner.slices.suppliers.nodegroup.supplier import NodeGroupSupplier
from provisioner.workloads import JOBSET
from rehearsal.simulators.compute.faults import Fault, FaultKind
from rehearsal.simulators.compute.records import Loss
from tests.support import nodegroup_controller
from tests.support.models import SPOT_TOLERATION, make_jobset, make_pod, make_requirements
from tests.support.nodegroup_controller import NAMESPACE, PROJECT, ZONE
from tests.support.objects import child_marks, raw_jobset
from tests.support.settings import settings
from tests.support.world import World

pytestmark = pytest.mark.timeout(300)


class Both(World):
    """World whose pools are TPUNodeGroups, with their controller and a simulated Compute Engine."""

    rules = NODE_GROUP_RULES

    def __init__(self, *workloads: Workload) -> None:
        self.groups = nodegroup_controller.World()
        self.groups.kube.on_evict = self._evict
        gce = {"provider": "gce", "project_id": PROJECT, "cluster_location": "us-east5", "zone": ZONE}
        images = (("*", f"projects/{PROJECT}/global/images/u"),)
        self.supplier = NodeGroupSupplier(
            api=self.groups.kube,
            settings=settings(**gce, node_group_namespace=NAMESPACE, node_images=images),
            clock=self.groups.clock.now,
        )
        self.gate = Gate(
            api=self.groups.kube,
            settings=self.supplier.settings,
            clock=self.groups.clock.now,
            monotonic=self.groups.clock,
        )
        self.restarts = 0
        self.creates = 0
        #: Reasons for which the gate kept pools.
        self.kept: list[str] = []
        #: Whether the controller of node groups is stopped.
        self.away = False
        #: Names of running machines whose kubelets do not report.
        self.silent: set[str] = set()
        #: Times in seconds since which pods have no ready node, by UID.
        self._lost_since: dict[str, float] = {}
        super().__init__(settings_=self.supplier.settings)
        self.now = self.groups.clock.now()
        self.add(*workloads)

    def start_pods(self, workload: Workload) -> None:
        self.restarts += 1
        for job in range(workload.groups[0].replicas):
            made = make_pod(workload, job=job, unschedulable_since=self.now)
            self.put(replace(made, uid=f"{made.uid}-{self.restarts}", name=f"{made.name}{self.restarts}"))

    def look(self, **changes: Any) -> Plan:
        plan = super().look(**changes)
        for raw in (node for node in self.groups.nodes() if node["metadata"]["name"] in plan.uncordons):
            raw["spec"]["unschedulable"] = False
            raw["metadata"]["annotations"] = {}
            self.groups.kube.put_object(object_path("nodes", raw["metadata"]["name"]), raw)
        return plan

    def pass_time(self, seconds: float) -> None:
        self.groups.compute.pass_seconds(seconds)
        for _ in range(0 if self.away else 2):
            self.groups.round()
        self.groups.join()
        self._kubelets()
        self.now = self.groups.clock.now()
        self.pools = {pool.name: pool for pool in self.supplier.list_pools()}
        self.nodes = {}
        for raw in self.groups.nodes():
            # The kubelets of real nodes report these labels and resources, which the simulation lacks.
            raw["metadata"]["labels"] |= {constants.OS: "linux", constants.ARCH: "amd64"}
            raw["status"]["allocatable"] |= {"cpu": "200", "memory": "700Gi"}
            node = parse_node(raw)
            assert node is not None
            self.put(node)
        self._lose_pods()
        self.schedule()
        self._show_pods()

    def snapshot(self, **changes: Any) -> Snapshot:
        """Return the provisioner's snapshot, which has only the nodes that the node group controller has labelled."""
        labelled = (node for node in self.nodes.values() if constants.TRUSTED_GROUP_NAMESPACE in node.labels)
        return super().snapshot(nodes=tuple(labelled), **changes)

    def machines(self) -> list[str]:
        return self.groups.state()["machines"]

    def at_rest(self) -> bool:
        used = {self.nodes[pod.node_name].pool_name for pod in self.pods.values() if pod.node_name in self.nodes}
        return all(pod.node_name for pod in self.pods.values()) and self.pools.keys() == used

    def settle(self) -> None:
        """Advance until the world is at rest, for three hours at most."""
        for _ in range(540):
            self.step(seconds=20.0)
            if self.at_rest():
                return
        raise AssertionError((self.told()[-3:], self.pools, [pod for pod in self.pods.values() if not pod.node_name]))

    def _kubelets(self) -> None:
        running = {machine.name for machine in self.groups.compute.world.machines() if machine.status == "RUNNING"}
        for raw in self.groups.nodes():
            name = raw["metadata"]["name"]
            said = "True" if name in running - self.silent else "Unknown"
            if raw["status"]["conditions"][0]["status"] != said:
                raw["status"]["conditions"][0]["status"] = said
                self.groups.kube.put_object(object_path("nodes", name), raw)

    def _lose_pods(self) -> None:
        """Restart the JobSets of pods whose nodes are deleted, or have been silent for five minutes."""
        now = self.groups.clock.seconds
        bound = [pod for pod in self.pods.values() if pod.node_name]
        bad = [pod for pod in bound if pod.node_name not in self.nodes or not self.nodes[pod.node_name].ready]
        self._lost_since = {pod.uid: self._lost_since.get(pod.uid, now) for pod in bad}
        for pod in bad:
            if pod.node_name not in self.nodes or now - self._lost_since[pod.uid] >= 300.0:
                self._evict(pod.name)

    def _show_pods(self) -> None:
        kube = self.groups.kube
        for raw in kube.objects(collection_path("pods")):
            kube.remove_object(object_path("pods", raw["metadata"]["name"], namespace="default"))
        for pod in filter(lambda candidate: candidate.node_name, self.pods.values()):
            requests = {constants.TPU_RESOURCE: str(pod.requirements.chips)}
            spec = {"nodeName": pod.node_name, "containers": [{"name": "c", "resources": {"requests": requests}}]}
            marks = child_marks(pod.workload_name, pod.group_name, namespace="default", uid=pod.workload_uid)
            metadata = {"name": pod.name, "namespace": "default", "uid": pod.uid, **marks}
            kube.put_object(object_path("pods", pod.name, namespace="default"), {"metadata": metadata, "spec": spec})
        for workload in self.workloads.values():
            raw = raw_jobset(workload.name, uid=workload.uid, status={"terminalState": workload.terminal_state})
            kube.put_object(object_path("jobsets", workload.name, namespace="default", root=JOBSET.root), raw)

    def _evict(self, name: str) -> None:
        for workload in [self.workload_of(pod) for pod in self.pods.values() if pod.name == name]:
            if workload is not None:
                self.end_pods(workload)
                self.start_pods(workload)

    def _create(self, create: Create) -> CreateAnswer:
        name, operation, failed = create.request.name, OperationName(""), None
        try:
            operation = self.supplier.create_pool(create.request, lambda: None)
            self.creates += 1
        except SupplierError as error:
            failed = error.failure
        return CreateAnswer(name=name, at=self.now, operation=operation, failure=failed)

    def _delete(self, delete: Delete) -> DeleteAnswer:
        try:
            # The simulated scheduler chooses a node and binds in one step, so the gate need not wait for a binding.
            self.gate.verify_deletable(replace(delete, settle=False))
        except DeletionBlockedError as error:
            self.kept.append(str(error))
            return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.KEPT, reason=str(error))
        self.deleted.append(delete.name)
        operation = self.supplier.delete_pool(delete.name)
        return DeleteAnswer(name=delete.name, at=self.now, result=DeleteResult.ACCEPTED, operation=operation)

    def _look_up(self, look_up: LookUp) -> LookUpAnswer:
        try:
            operation = self.supplier.get_operation(look_up.operation) if look_up.operation else None
        except SupplierError as error:
            return LookUpAnswer(look_up=look_up, at=self.now, failure=error.failure)
        exists = look_up.name in self.pools
        return LookUpAnswer(look_up=look_up, at=self.now, exists=exists, operation=operation)


def _jobset(name: str, capacity: str, topology: str = "4x4", parallelism: int = 4, replicas: int = 1) -> Workload:
    told = {constants.CAPACITY: capacity, **({constants.MAX_RUN_DURATION: "40m"} if capacity == "flex-start" else {})}
    template = make_requirements(
        accelerator="tpu-v6e-slice", topology=topology, tolerations=(SPOT_TOLERATION,), annotations=told
    )
    return make_jobset(name, replicas=replicas, parallelism=parallelism, template=template, annotations=told)


@pytest.mark.parametrize(("topology", "parallelism"), [("4x4", 4), ("2x2", 1), ("2x2", 3)])
def test_jobset_gets_other_machines_at_the_end_of_a_flex_start_run(topology: str, parallelism: int) -> None:
    both = Both(_jobset("train", "flex-start", topology, parallelism))
    both.settle()
    before = both.machines()
    both.run(250, seconds=20.0)
    both.settle()
    assert both.restarts > 1
    assert not set(before) & set(both.machines())


def test_preempted_spot_slice_becomes_on_demand_if_spot_is_out_of_stock() -> None:
    both = Both(_jobset("train", "spot, on-demand"))
    both.settle()
    both.groups.compute.world.faults.add(Fault(kind=FaultKind.STOCKOUT, model="SPOT"))
    both.groups.compute.world.lose(both.machines()[0], Loss.PREEMPTED)
    both.run(60, seconds=20.0)
    both.settle()
    assert [pool.capacity.value for pool in both.pools.values()] == ["on-demand"]


def test_pool_in_use_is_kept_while_the_other_controller_cannot_label_its_nodes() -> None:
    """The provisioner sees a node only after the controller of node groups has labelled it."""
    both = Both(_jobset("train", "on-demand"))
    kube = both.groups.kube
    kube.fail("PATCH", "^/api/v1/nodes/", Forbidden("cannot patch resource nodes", status=403), times=10**6)
    both.run(180, seconds=20.0)
    unlabelled = [node for node in both.nodes.values() if constants.TRUSTED_GROUP_NAMESPACE not in node.labels]
    assert (len(unlabelled), sum(bool(pod.node_name) for pod in both.pods.values())) == (4, 4)
    assert (both.deleted, both.restarts) == ([], 1)
    assert "unfinished pods are on it" in both.kept[-1]
    kube.clear_faults()
    both.settle()
    both.run(30, seconds=20.0)
    assert (both.deleted, both.restarts) == ([], 1)
    both.finish(next(iter(both.workloads.values())))
    both.run(30, seconds=20.0)
    assert (len(both.deleted), both.machines()) == (1, [])


def test_slice_beyond_the_limit_on_machines_waits_in_one_group_until_others_end() -> None:
    """A group that is deleted and created again is the youngest, and loses its place in the queue of groups."""
    first, second = _jobset("first", "spot, on-demand"), _jobset("second", "spot, on-demand")
    both = Both(first, second)
    both.groups.settings = replace(both.groups.settings, machines_per_namespace=4)
    both.groups.start()
    both.run(270, seconds=20.0)
    assert (both.creates, both.deleted, both.bound(first) + both.bound(second)) == (2, [], 1)
    both.finish(first if both.bound(first) else second)
    both.settle()
    assert (both.creates, len(both.deleted)) == (2, 1)


def _befall(both: Both, rng: random.Random) -> None:
    machines, cloud = both.machines(), both.groups.compute.world
    match rng.randrange(9 if machines else 5):
        case 0:
            cloud.faults.add(Fault(kind=FaultKind.STOCKOUT, model=rng.choice(("SPOT", "STANDARD", "FLEX_START"))))
        case 1:
            both.memory, both.last_round = Memory(), None
        case 2:
            both.groups.start()
        case 3:
            both.away = True
            both.run(rng.choice((4, 60)), seconds=15.0)
            both.away = False
            both.groups.start()
        case 4:
            for workload in rng.sample(list(both.workloads.values()), 1):
                both.finish(workload)
        case 5:
            both.silent = set(rng.sample(machines, rng.randint(1, len(machines))))
        case _:
            cloud.lose(rng.choice(machines), rng.choice((Loss.PREEMPTED, Loss.HOST_ERROR, Loss.DELETED)))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))])
def test_all_pods_run_and_no_pool_is_unused_after_random_failures(seed: int) -> None:
    rng = random.Random(seed)
    shapes = (("4x4", 4), ("2x4", 2), ("2x2", 3), ("2x2", 1))
    both = Both(
        *(
            _jobset(f"j{n}", rng.choice(("on-demand", "spot, on-demand", "flex-start", "spot")), *rng.choice(shapes), n)
            for n in (1, 2)
        )
    )
    both.run(30, seconds=10.0)
    for _ in range(10):
        _befall(both, rng)
        both.run(rng.choice((2, 8, 27, 67)), seconds=15.0)
    both.groups.compute.world.faults.clear()
    both.groups.compute.world.release()
    both.silent.clear()
    both.settle()
