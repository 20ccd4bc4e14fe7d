"""Tests of the calls of the gate, and of pools that it keeps because a node registers during its checks."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from provisioner.kube.protocol import JsonObject, Page, Request, collection_path
from provisioner.model.capacity import NodePool, PoolName, PoolStatus
from provisioner.slices.gate import DeletionBlockedError, Gate
from tests.support.clock import FakeClock
from tests.support.controller import a_delete, jobset_path, node_of
from tests.support.kube import Call, FakeKube
from tests.support.settings import settings

T = TypeVar("T")
R = TypeVar("R")
POOL = NodePool(name=PoolName("train-pool"), status=PoolStatus.PROVISIONING, hosts=2, machine_type="ct4p-hightpu-4t")


class BusyKube(FakeKube):
    """API server that runs callbacks at lists and patches, before lists of nodes and after lists of pods."""

    def __init__(self) -> None:
        super().__init__()
        self.after_pods: Callable[[], None] = lambda: None
        self.before_nodes: Callable[[], None] = lambda: None
        self.on_call: Callable[[], None] = lambda: None

    def list_page(self, request: Request, **options: Any) -> Page:
        self.on_call()
        if request.path == collection_path("nodes"):
            self.before_nodes()
        page = super().list_page(request, **options)
        if request.path == collection_path("pods"):
            self.after_pods()
        return page

    def patch(self, path: str, body: JsonObject, **options: Any) -> JsonObject:
        self.on_call()
        return super().patch(path, body, **options)


class LargeKube(BusyKube):
    """API server for thousands of nodes: finds pods by node, because FakeKube scans all objects for each list."""

    def __init__(self, clock: FakeClock, *, nodes: int) -> None:
        super().__init__()
        self.pods: dict[str, JsonObject] = {}
        self.on_call = lambda: clock.advance(LATENCY_SECONDS)
        for index in range(nodes):
            self.put_object(f"/api/v1/nodes/n{index}", node_of(POOL, f"n{index}", clock))

    def list_page(self, request: Request, **options: Any) -> Page:
        if request.path != collection_path("pods"):
            return super().list_page(request, **options)
        self.on_call()
        self.calls.append(Call(method="GET", path=request.path, query=dict(request.query)))
        node = request.query["fieldSelector"].split(",")[0].removeprefix("spec.nodeName=")
        return Page(items=[self.pods[node]] if node in self.pods else [], resource_version="1")


def closed(kube: FakeKube) -> list[bool]:
    return [bool(raw["spec"].get("unschedulable")) for raw in kube.objects(collection_path("nodes"))]


LATENCY_SECONDS = 0.05


class Lanes:
    """Simulates `at_once` threads that make calls: sets the fake clock as if the calls ran in parallel."""

    def __init__(self, clock: FakeClock, at_once: int) -> None:
        self._clock = clock
        self._at_once = at_once

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /) -> list[R]:
        free = [self._clock.seconds] * self._at_once
        results = []
        for item in items:
            self._clock.seconds = heapq.heappop(free)
            results.append(function(item))
            heapq.heappush(free, self._clock.seconds)
        self._clock.seconds = max(free)
        return results


@pytest.mark.timeout(30)  # 2,000 nodes
def test_gate_checks_2000_nodes_with_16_calls_at_a_time() -> None:
    clock = FakeClock()
    kube = LargeKube(clock, nodes=2000)
    began = clock.seconds
    gate = Gate(api=kube, settings=settings(), clock=clock.now, monotonic=clock, for_each=Lanes(clock, 16))
    gate.verify_deletable(a_delete())
    assert all(closed(kube))
    # The gate makes 2,000 cordons and 4,000 lists of pods, which would take 300 s one after the other.
    assert clock.seconds - began == pytest.approx(6000 * LATENCY_SECONDS / 16, abs=1.0)
    assert kube.calls[-1].query["fieldSelector"] == "spec.unschedulable=false"


@pytest.mark.parametrize(("nodes", "node_lists"), [(0, 4), (1, 4), (256, 4), (501, 7)])
def test_gate_makes_three_calls_per_node_and_a_few_others(nodes: int, node_lists: int) -> None:
    """Three lists of all nodes have pages of 500 nodes. The last check lists only uncordoned nodes and finds none."""
    kube = LargeKube(FakeClock(), nodes=nodes)
    Gate(api=kube, settings=settings(), clock=FakeClock().now).verify_deletable(a_delete())
    made = Counter((call.method, call.path if call.method == "GET" else "/api/v1/nodes/NAME") for call in kube.calls)
    want = {
        ("GET", jobset_path("train")): 1,
        ("GET", "/api/v1/nodes"): node_lists,
        ("PATCH", "/api/v1/nodes/NAME"): nodes,
        ("GET", "/api/v1/pods"): 2 * nodes,
    }
    assert made == Counter(want)


def make(kube: FakeKube, clock: FakeClock) -> Gate:
    kube.put_object("/api/v1/nodes/first", node_of(POOL, "first", clock))
    return Gate(api=kube, settings=settings(), clock=clock.now, monotonic=clock)


@pytest.mark.parametrize(
    ("name", "closed_by_somebody"),
    [("second", False), ("second", True), ("first", True)],
    ids=["uncordoned", "cordoned by an administrator", "recreated and cordoned"],
)
def test_node_that_registers_during_the_check_keeps_the_pool(name: str, *, closed_by_somebody: bool) -> None:
    """A pod may already be bound to the new node. The gate's own cordons are undone."""
    kube, clock = BusyKube(), FakeClock()
    gate = make(kube, clock)
    again = node_of(POOL, name, clock)
    again["metadata"]["uid"] = "another"
    again["spec"]["unschedulable"] = closed_by_somebody
    kube.after_pods = lambda: kube.put_object(f"/api/v1/nodes/{name}", again) and None
    with pytest.raises(DeletionBlockedError, match=f"{name} has registered"):
        gate.verify_deletable(a_delete())
    assert closed_by_somebody or closed(kube) == [False, False]


@pytest.mark.parametrize(("slow", "goes"), [(6, True), (7, False)])
def test_slow_last_check_is_made_at_most_three_times(*, slow: int, goes: bool) -> None:
    """A slow check is repeated, because the process may have been suspended. Three slow checks keep the pool."""
    kube, clock = BusyKube(), FakeClock()
    gate = make(kube, clock)
    # The gate lists nodes twice before the last check and twice in each try of it; the first `slow` lists take 3 s.
    times = iter([3.0] * slow)
    kube.before_nodes = lambda: clock.advance(next(times, 0.9))
    if goes:
        gate.verify_deletable(a_delete())
    else:
        with pytest.raises(DeletionBlockedError, match="too long"):
            gate.verify_deletable(a_delete())
    assert closed(kube) == [goes]
