"""Tests of ProvisioningRequests and CapacityBuffers: their pools, and the conditions in their status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.model import bounds
from provisioner.model.capacity import CapacityKind, FailureKind, PoolStatus
from provisioner.model.choices import parse_choices
from provisioner.model.workloads import Requirements, Workload, WorkloadUid
from provisioner.slices import hints
from provisioner.slices.demand.capacity_requests import with_slices
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.planning.plan import Plan
from provisioner.slices.planning.round import Snapshot
from provisioner.slices.supplier import PoolRules
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.nodegroup.rules import NODE_GROUP_RULES
from provisioner.workloads.capacity_requests import parse_capacity_buffer, parse_provisioning_request
from tests.support.board import view_of
from tests.support.clock import after
from tests.support.counting import counted
from tests.support.market import jobset_of
from tests.support.models import make_jobset, make_marks, make_pod, make_pool, make_requirements
from tests.support.objects import raw_buffer, raw_request
from tests.support.settings import settings
from tests.support.world import World, failure

#: Pod template of a slice of two hosts.
TEMPLATE = make_requirements(tolerations=())
_NEVER = " does not allow all of them at once"


class Asking(World):
    """A world with ProvisioningRequests and CapacityBuffers; each step writes their statuses."""

    def __init__(self, *asks: dict[str, Any], marked: bool = False, **changes: Any) -> None:
        super().__init__(settings_=settings(**changes), marked=marked)
        self.templates = {("default", "template"): TEMPLATE}
        self.raw: dict[str, dict[str, Any]] = {}
        for raw in asks:
            self.ask(raw)

    def ask(self, raw: dict[str, Any]) -> None:
        parse = parse_provisioning_request if raw["kind"] == "ProvisioningRequest" else parse_capacity_buffer
        found = parse(raw)
        assert found is not None
        created_at = self.workloads[found.uid].created_at if found.uid in self.workloads else self.now
        self.raw[found.name], self.workloads[found.uid] = raw, replace(found, created_at=created_at)

    def forget(self, name: str) -> None:
        del self.workloads[WorkloadUid(f"uid-of-{name}")]
        self.deleted_workloads.add(WorkloadUid(f"uid-of-{name}"))

    def snapshot(self, **changes: Any) -> Snapshot:
        workloads, leaders = with_slices(self.workloads, self.templates)
        seen = super().snapshot(**changes)
        return replace(seen, workloads=workloads, pods=(*seen.pods, *leaders))

    def step(self, *, seconds: float = 1.0) -> Plan:
        plan = super().step(seconds=seconds)
        for write in plan.statuses:
            raw = self.raw[write.workload.name]
            version = str(int(raw["metadata"].get("resourceVersion", "0")) + 1)
            assert write.resource_version == raw["metadata"].get("resourceVersion", "")
            metadata = {**raw["metadata"], "resourceVersion": version}
            self.ask({**raw, "metadata": metadata, "status": {**raw.get("status", {}), **write.status}})
        return plan

    def consume(self, name: str, replicas: int) -> Workload:
        annotations = {constants.CONSUMES_REQUEST: name}
        jobset = make_jobset(f"of-{name}", replicas=replicas, template=replace(TEMPLATE, annotations=annotations))
        self.add(jobset)
        return jobset

    def conditions(self, name: str = "req") -> dict[str, str]:
        found = self.raw[name].get("status", {}).get("conditions", [])
        return {condition["type"]: condition["message"] for condition in found if condition["status"] == "True"}


def test_a_request_is_served_as_a_whole_and_its_pods_use_its_pools() -> None:
    world = Asking(raw_request("req", 4, 2))
    world.run(2)
    assert (len(world.pools), *world.conditions()) == (3, "Accepted")
    world.finish_creates()
    world.run(3)
    assert world.conditions().keys() == {"Accepted", "Provisioned"}
    details = world.raw["req"]["status"]["provisioningClassDetails"]
    assert sorted(details["node-pools"].split(",")) == sorted(world.pools)
    jobset = world.consume("req", 3)
    world.run(2)
    world.schedule()
    world.run(60, seconds=30.0)
    assert world.bound(jobset) == 3
    assert (len(world.created), world.deleted) == (3, [])
    assert "BookingExpired" in world.conditions()
    world.finish(jobset)
    world.run(40)
    assert len(world.deleted) == 3


def served(*counts: int, **changes: Any) -> Asking:
    """Return a world with a provisioned request `req`, whose pod sets have `counts` pods."""
    world = Asking(raw_request("req", *counts), **changes)
    world.run(2)
    world.finish_creates()
    world.run(3)
    assert "Provisioned" in world.conditions()
    return world


@pytest.mark.parametrize("reverse", [False, True], ids=["in the order of names", "in the other order"])
def test_pods_that_use_a_request_get_the_pools_whose_nodes_they_select(reverse: bool) -> None:
    """Kueue's topology-aware scheduling chooses a node for each pod, so nodes of an equal pool do not help."""
    world = served(4, marked=True)
    jobset = world.consume("req", 2)
    pools = dict(enumerate(sorted(world.pools, reverse=reverse)))
    for job, name in pools.items():
        node = min(node.name for node in world.nodes.values() if node.pool_name == name)
        leader = make_pod(jobset, job=job, marked=True)
        selector = {**leader.requirements.node_selector, constants.HOSTNAME: node}
        world.put(replace(leader, requirements=replace(leader.requirements, node_selector=selector)))
    world.run(4)
    assert {
        job: [node.labels[constants.SLICE] for node in world.nodes.values() if node.pool_name == name]
        for job, name in pools.items()
    } == {job: [make_marks(jobset, job=job)[constants.SLICE]] * 2 for job in pools}


def test_status_reason_of_a_request_slice_follows_its_pods() -> None:
    world = Asking(raw_request("req", 2))
    reasons = []
    world.live(4)
    reasons.append(view_of(world).slices[0].reason)
    world.consume("req", 1)
    reasons += [slice_.reason for slice_ in view_of(world).slices if slice_.id.startswith("JobSet")]
    world.schedule()
    reasons += [slice_.reason for slice_ in view_of(world).slices if slice_.id.startswith("Prov")]
    assert reasons == [
        "All hosts are ready and wait for the pods of the workload that uses the request.",
        "All hosts are ready; its pods have not been bound yet.",
        "Its node pool serves the pods that use the request.",
    ]


def test_pods_that_use_a_waiting_request_are_not_reported_as_stuck() -> None:
    """The request's status has the reason. A restart of the pods would not help."""
    busy = make_jobset("busy", replicas=2)
    world = Asking(raw_request("req", 4), max_chips=16)
    world.add(busy)
    world.run(5)
    world.finish_creates()
    world.consume("req", 2)
    world.run(20, seconds=60.0)
    assert "Provisioned" not in world.conditions()
    assert {notice.reason for plan in world.plans for notice in plan.notices if "of-req" in notice.message} == set()
    slices = [slice_ for slice_ in view_of(world).slices if slice_.id.startswith("JobSet/default/of-req")]
    assert {slice_.reason for slice_ in slices} == {
        "ProvisioningRequest req requests its node pool; the status of the request says whether it is ready."
    }


def test_pools_of_a_request_are_not_used_by_other_workloads() -> None:
    world = served(4)
    stranger = make_jobset("stranger", replicas=2)
    world.add(stranger)
    world.run(2)
    assert len(world.created) == 4


@pytest.mark.parametrize(("changes", "ends"), [({"suspended": True}, False), ({"terminal_state": "Completed"}, True)])
def test_booking_ends_if_its_workload_completed_but_not_if_it_is_suspended(
    changes: dict[str, Any], *, ends: bool
) -> None:
    """The workload may have completed without pods on these pools: it ran elsewhere, or ended too quickly."""
    world = served(4)
    jobset = world.consume("req", 2)
    world.end_pods(jobset)
    world.workloads[jobset.uid] = replace(jobset, **changes)
    world.run(2)
    assert ("has ended" in world.conditions().get("BookingExpired", "")) is ends
    world.run(5, seconds=30.0)
    assert len(world.deleted) == (2 if ends else 0)


def test_unused_booking_expires_and_its_pools_are_deleted() -> None:
    """The pools of a provisioned request are booked: they wait for the pods of the request for 10 minutes."""
    world = served(4)
    world.run(19, seconds=30.0)
    assert "BookingExpired" not in world.conditions()
    world.run(3, seconds=30.0)
    assert "on 0 of 2 node pools of the request after 10 minutes" in world.conditions()["BookingExpired"]
    world.run(3, seconds=30.0)
    assert len(world.deleted) == 2
    world.consume("req", 2)
    world.run(2)
    assert len(world.created) == 2 + 2


def test_booking_expires_although_some_pods_of_the_request_run_elsewhere() -> None:
    """The scheduler may bind the pods to any pool that fits."""
    first = make_jobset("first")
    world = Asking()
    world.add(first)
    world.live(4)
    world.ask(raw_request("req", 4))
    world.live(6)
    world.finish(first)
    jobset = world.consume("req", 2)
    world.schedule()
    assert world.bound(jobset) == 2
    world.run(19, seconds=30.0)
    assert "BookingExpired" not in world.conditions()
    world.run(3, seconds=30.0)
    assert "on 1 of 2 node pools of the request after 10 minutes" in world.conditions()["BookingExpired"]
    world.run(3, seconds=30.0)
    assert len(world.deleted) == 1


def test_cost_of_pods_that_do_not_fit_the_pools_of_a_request_grows_with_their_number() -> None:
    """If each pod of a request were compared with each of its pools, the time would grow with the square."""
    calls = []
    for number in (40, 80):
        world = served(number * 2, concurrency=1000)
        template = replace(TEMPLATE, annotations={constants.CONSUMES_REQUEST: "req"})
        selector = {**template.node_selector, "team": "other"}
        world.add(make_jobset("of-req", replicas=number, template=replace(template, node_selector=selector)))
        world.look()
        calls.append(counted(world.look)[1])
    assert calls[1] < 2.3 * calls[0]


def test_request_is_revoked_if_a_pool_is_lost_before_its_use() -> None:
    world = served(4)
    lost = min(world.pools)
    world.remove_pool(lost)
    world.run(2)
    assert lost in world.conditions()["CapacityRevoked"]
    assert len(world.created) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_request_fails_with_the_message_of_a_stockout_and_its_pools_are_deleted(restart: bool) -> None:
    world = Asking(raw_request("req", 4))
    world.run(2)
    first, second = sorted(world.pools)
    world.put_pool(replace(world.pools[first], status=PoolStatus.RUNNING))
    world.run(2)
    world.fail_pool(second, failure(FailureKind.STOCKOUT, "No v4 left."))
    if restart:
        world.memory = replace(world.memory, pools={}, slices={})
    world.run(3)
    assert "No v4 left." in world.conditions()["Failed"]
    world.run(10, seconds=30.0)
    assert {first, second} == set(world.deleted)


def test_request_waits_while_one_pool_is_created_after_a_stockout() -> None:
    """If the request failed in this time, each retry would also fail, and no pod would use the pool."""
    world = Asking(raw_request("req", 4))
    world.run(2)
    for name in sorted(world.pools):
        world.fail_pool(name, failure(FailureKind.STOCKOUT, "No v4 left."))
    world.run(3)
    world.forget("req")
    world.run(20, seconds=30.0)
    created = len(world.created)
    world.ask(raw_request("again", 4))
    world.run(3)
    assert (len(world.created) - created, *world.conditions("again")) == (1, "Accepted")
    for _ in range(2):
        world.finish_creates()
        world.run(3)
    assert "Provisioned" in world.conditions("again")
    assert len(world.created) - created == 2


@pytest.mark.parametrize(
    ("counts", "template", "limits", "words"),
    [
        pytest.param((3,), TEMPLATE, {}, "a multiple of 2", id="half a slice"),
        pytest.param((4,), Requirements(), {}, "none of its pod sets requests google.com/tpu", id="no chips"),
        pytest.param((4,), make_requirements(topology="9x9x9"), {}, "topology 9x9x9 is not", id="no topology"),
        pytest.param((4,), Requirements(problem=("has too many labels",)), {}, "has too many labels", id="not read"),
        pytest.param((4,), TEMPLATE, {"max_chips": 8}, f"MAX_CHIPS{_NEVER}", id="more than a limit"),
        pytest.param(
            (2 * 129,), TEMPLATE, {}, f"MAX_REQUESTED_CHIPS_PER_NAMESPACE{_NEVER}", id="more than a namespace"
        ),
        pytest.param(
            (2 * 769,), TEMPLATE, {}, "it asks for 769 slices, and at most 768 are served", id="more than has names"
        ),
        pytest.param(
            (3,), replace(TEMPLATE, labels={"team": "a"}), {"opt_in_label": ("team", "a")}, "a multiple", id="opted in"
        ),
        pytest.param(
            (4,),
            make_requirements(accelerator="tpu-v5p-slice"),
            {"capacity": parse_choices("flex-start")},
            "GKE adds flex-start nodes only for pods",
            id="flex-start",
        ),
    ],
)
def test_impossible_request_fails_immediately(
    counts: tuple[int, ...], template: Requirements, limits: dict[str, Any], words: str
) -> None:
    world = Asking(**limits)
    world.templates = {("default", "template"): template}
    world.ask(raw_request("req", *counts))
    world.run(1)
    assert words in world.conditions()["Failed"]
    assert world.created == []


def test_unserved_request_gets_no_status() -> None:
    world = Asking(raw_request("req", 3), opt_in_label=("team", "a"))
    world.run(2)
    assert "status" not in world.raw["req"]


@pytest.mark.parametrize("raw", [raw_request("req", 4), raw_buffer("buf", replicas=2)], ids=["request", "buffer"])
def test_pools_of_a_request_or_buffer_that_opts_out_are_deleted(raw: dict[str, Any]) -> None:
    """The provisioner writes no status of an object that is not served, so a booking would never expire."""
    world = Asking(raw)
    world.live(5)
    assert world.deleted == []
    world.ask({**raw, "metadata": {**raw["metadata"], "labels": {constants.DISABLE: "true"}}})
    world.run(3, seconds=30.0)
    assert len(world.deleted) == 2


def test_request_fails_if_one_of_its_slices_is_not_served() -> None:
    """Otherwise the pools of its served slices would be held permanently."""
    raw = raw_request("req", 4, 2)
    raw["spec"]["podSets"][1]["podTemplateRef"] = {"name": "other"}
    world = Asking(raw)
    world.templates["default", "other"] = replace(TEMPLATE, labels={constants.DISABLE: "true"})
    world.live(10, seconds=10.0)
    assert "slice req-1-0 is not served" in world.conditions()["Failed"]
    assert world.pools == {}


def test_buffer_creates_one_pool_at_first_after_a_stockout() -> None:
    """In the past, the pools of all slices of a buffer were created at the same time after a stockout."""
    world = Asking(raw_buffer(replicas=5))
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT)
    world.run(3)
    world.refuse_create = lambda _: None
    world.run(10, seconds=60)
    assert len(world.pools) == 1


def test_number_of_slices_of_the_buffers_of_a_namespace_is_bounded() -> None:
    """Otherwise one CapacityBuffer could cost as much work as thousands of pods and delay other namespaces."""
    world = Asking(*(raw_buffer(f"b{number}", replicas=768) for number in range(7)), max_chips=8)
    world.run(1)
    read = [bool(world.conditions(f"b{number}")) for number in range(7)]
    assert read == [True] * 5 + [False] * 2
    world.forget("b0")
    world.run(1)
    assert world.conditions("b5")


@pytest.mark.parametrize("raw", [raw_request("req", 4), raw_buffer("req", replicas=1)], ids=["request", "buffer"])
def test_status_with_many_foreign_conditions_is_written_only_if_it_changes(raw: dict[str, Any]) -> None:
    foreign = [{"type": f"Other{number}", "status": "True"} for number in range(bounds.CONDITIONS)]
    world = Asking({**raw, "status": {"conditions": foreign}})
    world.live(30)
    assert world.pools
    assert not any(plan.statuses for plan in world.plans[-20:])
    written = {condition["type"] for condition in world.raw["req"]["status"]["conditions"]}
    assert {condition["type"] for condition in foreign} < written


def test_condition_time_in_the_year_9999_does_not_stop_decisions() -> None:
    """A user who may write the status of a request can set any time in a condition."""
    world = served(2)
    for condition in world.raw["req"]["status"]["conditions"]:
        condition["lastTransitionTime"] = "9999-12-31T23:59:59Z"
    world.ask(world.raw["req"])
    job = make_jobset("other", replicas=2)
    world.add(job)
    world.live(4)
    assert world.bound(job) == 2


def test_a_request_waits_for_its_templates_and_for_limits() -> None:
    world = Asking(raw_request("req", 4), max_chips=16)
    templates, world.templates = world.templates, {}
    other = make_jobset("other")
    world.add(other)
    world.live(4)
    assert world.conditions() == {}
    world.templates = templates
    world.run(3)
    assert world.conditions().keys() == {"Accepted"}
    said = next(
        condition for condition in world.raw["req"]["status"]["conditions"] if condition["type"] == "Provisioned"
    )
    assert said["message"].startswith("0 of 2 slices are ready. Node pool req-")
    assert "MAX_CHIPS" in said["message"]
    world.finish(other)
    world.live(60)
    assert "Provisioned" in world.conditions()


@pytest.mark.parametrize("make", [lambda name: raw_request(name, 2), lambda name: raw_buffer(name, replicas=1)])
def test_limit_with_room_for_one_request_does_not_change_other_statuses(
    make: Callable[[str], dict[str, Any]],
) -> None:
    """In the past, 1,000 requests caused 1,000 writes whenever another tenant's pool was created or deleted."""
    first = make_jobset("first")
    world = Asking(max_chips=16)
    world.add(first, make_jobset("second"))
    world.live(3)
    for number in range(20):
        world.ask(make(f"r{number}"))
    world.live(3, seconds=10.0)
    assert "Limit of all node pools: at most 16 chips (MAX_CHIPS)." in str(world.raw["r7"]["status"])
    world.finish(first)
    del world.plans[:]
    world.live(20, seconds=10.0)
    assert {write.workload.name for plan in world.plans for write in plan.statuses} == {"r0"}


def test_place_in_the_queue_for_exhausted_capacity_is_not_in_the_status() -> None:
    """If statuses contained places, every status would be written again whenever a pool is created."""
    world = Asking(*(raw_request(f"r{number}", 2) for number in range(4)))
    world.run(2)
    for name in sorted(world.pools):
        world.fail_pool(name, failure(FailureKind.STOCKOUT, "No v4 left."))
    for number in range(4):
        world.forget(f"r{number}")
    world.run(10, seconds=10.0)
    for number in range(4):
        world.ask(raw_request(f"again{number}", 2))
    world.run(1)
    said = str([world.raw[f"again{number}"]["status"] for number in range(4)])
    assert "other node pools try first" in said
    assert "place" not in said


@pytest.mark.parametrize(
    "raw", [raw_buffer(replicas=200), raw_request("warm", *(256,) * 3)], ids=["buffer", "requests"]
)
def test_chips_of_requests_and_buffers_of_a_namespace_are_limited_by_default(raw: dict[str, Any]) -> None:
    """A ResourceQuota on chips does not count requests and buffers, because they have no pods."""
    world = Asking(raw_request("a", 64), raw_request("b", 64), raw, max_creates_per_hour=None, concurrency=200)
    world.add(make_jobset("train", replicas=2))
    world.live(8)
    chips = {name: 8 * sum(name in pool for pool in world.pools) for name in ("train", "a-", "b-", "warm")}
    assert chips["train"] == 16
    assert sum(chips.values()) - 16 <= 1024
    assert "MAX_REQUESTED_CHIPS_PER_NAMESPACE" in str(world.raw["warm"]["status"])


def test_chips_of_a_request_leave_the_limit_of_requests_when_its_pods_run() -> None:
    """Running pods count in the ResourceQuota of the namespace instead, so a buffer of the namespace may get slices."""
    world = Asking(raw_request("req", 4), raw_buffer(replicas=4), max_requested_chips_per_namespace=(("*", 32),))
    world.live(6)
    assert len(world.pools) == 4
    (use,) = world.plans[-1].limits
    assert (use.name, use.scope, use.used, use.most) == ("MAX_REQUESTED_CHIPS_PER_NAMESPACE", "*", 32, 32)
    world.consume("req", 2)
    world.live(20)
    assert len(world.pools) == 6
    assert world.plans[-1].limits[0].used == 32


def test_request_gets_freed_pools_before_a_stream_of_younger_marked_jobs() -> None:
    world = Asking(max_chips=16, marked=True)
    jobs = [make_jobset(f"job{number:02}", created_at=after(10 * number)) for number in range(16)]
    world.add(*jobs[:2])
    world.live(4)
    world.ask(raw_request("req", 4))
    world.live(2)
    world.add(*jobs[2:])
    finished = 0
    while "Provisioned" not in world.conditions() and finished < 8:
        world.live(10, seconds=15.0)
        world.finish(jobs[finished])
        finished += 1
    assert finished <= 3
    assert len(world.created) == 2


def test_idle_pools_serve_a_request_and_are_kept_over_a_restart() -> None:
    first = make_jobset("first", replicas=2)
    world = Asking()
    world.add(first)
    world.live(4)
    world.finish(first)
    world.ask(raw_request("req", 4))
    world.run(6)
    assert ("Provisioned" in world.conditions(), len(world.created)) == (True, 2)
    world.memory, world.last_round = hints.from_text(hints.to_text(world.memory)), None
    world.run(18, seconds=30.0)
    assert (world.deleted, "CapacityRevoked" in world.conditions()) == ([], False)


@pytest.mark.parametrize("raw", [raw_request("req", 2), raw_buffer(replicas=1)], ids=["request", "buffer"])
def test_request_or_buffer_takes_no_flex_start_pool_without_nodes(raw: dict[str, Any]) -> None:
    """GKE adds nodes to such a pool only for pods, so the slice would wait without end."""
    world = Asking(raw)
    world.put(make_pool(make_jobset("ended"), capacity=CapacityKind.FLEX_START))
    world.run(3)
    assert len(world.created) == 1


@pytest.mark.parametrize("supplier", [GKE_RULES, NODE_GROUP_RULES], ids=lambda rules: rules.supplier_name)
@pytest.mark.parametrize("raw", [raw_request("req", 4), raw_buffer(replicas=1)], ids=["request", "buffer"])
def test_request_or_buffer_gets_no_flex_start_pool_if_its_nodes_need_pods(
    raw: dict[str, Any], supplier: PoolRules
) -> None:
    """With the same choices of capacity, a JobSet with equal pods gets a flex-start pool."""
    choices = parse_choices("flex-start, on-demand")
    world = Asking(raw, capacity=choices)
    world.rules = supplier
    template = make_requirements(accelerator="tpu-v6e-slice", topology="4x4", tolerations=())
    world.templates = {("default", "template"): template}
    together = "true" if raw["kind"] == "ProvisioningRequest" else "false"
    world.add(make_jobset("equal", parallelism=4, template=template, annotations={constants.ALL_OR_NOTHING: together}))
    plan = world.run(1)
    kinds = {create.workload.kind: create.request.capacity for create in plan.creates}
    of_ask = CapacityKind.ON_DEMAND if supplier is GKE_RULES else CapacityKind.FLEX_START
    assert kinds == {raw["kind"]: of_ask, "JobSet": CapacityKind.FLEX_START}
    assert world.told(EventReason.INVALID_REQUEST) == []


def test_buffer_is_refilled_after_a_job_uses_a_slice() -> None:
    world = Asking(raw_buffer(replicas=2))
    world.live(4)
    assert (len(world.created), world.raw["warm"]["status"]["replicas"]) == (2, 2)
    assert world.conditions("warm").keys() == {"ReadyForProvisioning", "Provisioning"}
    job = make_jobset("train")
    world.add(job)
    world.schedule()
    assert world.bound(job) == 1
    world.live(4)
    assert len(world.created) == 3
    world.finish(job)
    world.live(40, seconds=5.0)
    assert len(world.pools) == 2
    world.forget("warm")
    world.live(40, seconds=5.0)
    assert world.pools == {}


def test_buffer_beyond_a_limit_does_not_keep_a_smaller_buffer_waiting() -> None:
    """In the past, the smaller buffer waited indefinitely for the larger one, which the limit never allows."""
    world = Asking(max_chips=12)
    world.templates["default", "large"] = make_requirements(topology="2x2x4")
    world.ask(raw_buffer("large", replicas=1, podTemplateRef={"name": "large"}))
    world.pass_time(1)
    world.ask(raw_buffer("small", replicas=1))
    world.run(3)
    assert [name.rpartition("-")[0] for name in world.pools] == ["small"]


def test_buffer_gets_its_slice_although_a_workload_exceeds_the_whole_limit() -> None:
    """A workload that can never be within the limit must not reserve chips of the limit."""
    world = Asking(raw_buffer(replicas=1), max_chips=128)
    world.add(jobset_of("large", "4x8x8", namespace="other"))
    world.live(4)
    assert len(world.pools) == 1


def test_refused_buffer_delays_no_creates_after_a_stockout() -> None:
    """A buffer that a limit excludes must not delay slices of other namespaces by its place in the queue."""
    world = Asking(max_chips_per_namespace=(("*", 64),))
    world.add(jobset_of("first", "2x4x4"))
    world.live(4)
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT)
    world.ask(raw_buffer(replicas=1))
    world.live(3, seconds=60)
    world.add(jobset_of("large", "4x4x4"), jobset_of("other", "2x2x2", namespace="other"))
    world.plans.clear()
    world.live(120, seconds=60)
    assert {create.workload.namespace for create in world.sent()} == {"other"}
    assert len(world.sent()) > 8


@pytest.mark.parametrize(("hosts", "created"), [(1, 0), (4, 1)])
def test_buffer_keeps_no_idle_pool_with_more_hosts_than_its_slice(hosts: int, created: int) -> None:
    """In the past, the buffer kept all hosts of a pool that had been created for the pods of a Deployment."""
    one_host = make_requirements(topology="2x2x1")
    world = Asking(raw_buffer(replicas=1), deletion_delay_seconds=3600.0)
    world.templates = {("default", "template"): one_host}
    world.put_pool(make_pool(make_jobset("gone", parallelism=hosts, template=one_host)))
    world.live(4)
    assert len(world.created) == created


def test_waiting_slice_gets_the_pool_that_was_created_for_a_buffer() -> None:
    world = Asking(raw_buffer(replicas=1))
    world.run(2)
    job = make_jobset("train")
    world.add(job)
    world.run(1)
    assert len(world.created) == 2
    world.finish_creates()
    world.live(3)
    assert world.bound(job) == 1


@pytest.mark.parametrize(
    ("spec", "slices"),
    [
        ({"replicas": 3, "limits": {"google.com/tpu": "20"}}, 2),
        ({"limits": {"google.com/tpu": 16}}, 2),
        ({"scalableRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "train"}, "percentage": 25}, 1),
        ({"scalableRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "train"}, "percentage": 50}, 2),
        ({"scalableRef": {"apiGroup": "apps", "kind": "Deployment", "name": "web"}, "percentage": 50}, 0),
        ({"replicas": 1, "limits": {"cpu": 4}}, 0),
    ],
)
def test_slices_of_a_buffer_follow_replicas_limits_and_percentage(spec: dict[str, Any], slices: int) -> None:
    world = Asking()
    world.add(make_jobset("train", replicas=3))
    world.live(4)
    world.ask(raw_buffer(**spec))
    world.live(4)
    assert len(world.created) == 3 + slices
    assert ("ReadyForProvisioning" in world.conditions("warm")) is (slices > 0)
