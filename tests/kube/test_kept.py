"""Tests that caches keep the objects of a namespace in full up to a bound, and reduce further objects."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.kept import Kept, Key, NamespaceBound, size_of
from provisioner.kube.protocol import Page
from provisioner.kube.reflector import Collection, Reflector, WatchOptions
from provisioner.kube.volumes import BOUND_OF_CLAIMS, parse_claim
from provisioner.model import bounds
from provisioner.model.placement import MARKS
from provisioner.model.workloads import Workload, WorkloadKind
from provisioner.slices.observe import Watches, make_watches
from provisioner.workloads import KINDS
from provisioner.workloads.jobset import parse_jobset
from tests.support.counting import counted, measured
from tests.support.kube import FakeKube
from tests.support.objects import (
    parsed_pod,
    pod_spec,
    raw_buffer,
    raw_jobset,
    raw_leader,
    raw_request,
    required_affinity,
    toleration,
)
from tests.support.settings import settings
from tests.support.world import told_of

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"


@dataclass(frozen=True, slots=True)
class Thing:
    """A record with an age; `problem` is set if the record was reduced."""

    text: str
    age: int
    problem: tuple[str, ...] = ()


def bound_of(max_bytes: int, max_objects: int | None = None) -> NamespaceBound[Thing]:
    return NamespaceBound(
        plural="things",
        max_bytes=max_bytes,
        max_objects=max_objects,
        reduce=lambda thing, problem: Thing("", thing.age, problem),
    )


def reduced_of(things: dict[str, Thing], order: Iterable[str], bound: NamespaceBound[Thing]) -> set[str]:
    kept, reduced = Kept(bound), set[str]()
    for name in order:
        reduced |= {reduced_name for _, reduced_name in kept.add(("a", name), things[name], -things[name].age)}
    return reduced


@pytest.mark.parametrize("seed", range(20))
def test_oldest_records_are_kept_in_any_order_of_events(seed: int) -> None:
    rng = random.Random(seed)
    things = {f"t{age}": Thing("x" * 1000, age) for age in range(40)}
    order = rng.sample(list(things), len(things))
    bound = bound_of(10 * size_of(things["t1"]) + 100)
    assert reduced_of(things, order, bound) == {f"t{age}" for age in range(30)}
    assert reduced_of(things, order, bound_of(10**9, 12)) == {f"t{age}" for age in range(28)}


def test_records_of_one_second_are_kept_in_the_order_of_their_arrival() -> None:
    """A record that is updated keeps its place, so that a newer object does not displace an older object."""
    kept = Kept(bound_of(10**9, 2))
    assert [kept.add(("a", name), Thing(name, 0), 0.0) for name in ("one", "two", "one")] == [{}, {}, {}]
    assert kept.add(("a", "three"), Thing("three", 0), 0.0) == {("a", "three"): True}


def test_older_claim_is_kept_if_a_newer_one_is_listed_before_it() -> None:
    claims = Collection(name="claims", resource="persistentvolumeclaims")
    bound = replace(BOUND_OF_CLAIMS, max_objects=1)
    watch = Reflector(claims, parse=parse_claim, on_change=lambda: None, bound=bound)
    listed = [raw_claim("a", created="2026-01-02T00:00:00Z"), raw_claim("z", created="2026-01-01T00:00:00Z")]
    watch.begin()
    watch.take_page(Page(items=listed, resource_version="1"))
    assert {name: claim.volume for (_, name), claim in watch.records().items()} == {"a": "unread", "z": "disk-z"}


def raw_claim(name: str, *, created: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": name, "creationTimestamp": created},
        "spec": {"volumeName": f"disk-{name}"},
    }


def test_namespaces_do_not_share_their_bound() -> None:
    kept = Kept(bound_of(10**9, 1))
    assert kept.add(("a", "one"), Thing("", 1), -1) == {}
    assert kept.add(("b", "one"), Thing("", 0), 0) == {}
    assert kept.add(("a", "two"), Thing("", 0), 0) == {("a", "two"): True}
    assert (kept.has_room("a"), kept.has_room("b")) == (False, False)
    kept.drop(("a", "one"))
    assert (kept.has_room("a"), kept.has_room("b")) == (True, False)
    kept.drop(("a", "two"))
    assert not kept.has_room("a")


def fill(kept: Kept[Thing], sizes: Mapping[str, int]) -> set[Key]:
    """Add things of 1,000 bytes to namespaces in turn; return the keys of the reduced things."""
    reduced = set[Key]()
    for number in range(max(sizes.values())):
        for namespace in (name for name, size in sizes.items() if number < size):
            reduced |= kept.add((namespace, f"t{number}"), Thing("x" * (1000 - _EMPTY), number), -number).keys()
    return reduced


_EMPTY = size_of(Thing("", 300))


@pytest.mark.parametrize("bound", [(100_000, None), (10**9, 100)], ids=["bytes", "objects"])
def test_largest_namespaces_are_reduced_beyond_twice_the_bound_of_one(bound: tuple[int, int | None]) -> None:
    """In the past, three namespaces at their bounds could fill the memory of the process."""
    kept = Kept(bound_of(*bound))
    sizes = {"honest": 30, **{f"hostile-{number}": 90 for number in range(5)}}
    reduced = fill(kept, sizes)
    full = {name: size - sum(key[0] == name for key in reduced) for name, size in sizes.items()}
    assert full["honest"] == 30
    assert 170 <= sum(full.values()) <= 200
    assert max(full.values()) - min(full.values()) <= 5
    assert not any(map(kept.has_room, sizes))
    for number in range(90):
        kept.drop(("hostile-0", f"t{number}"))
    assert kept.has_room("hostile-0")


def test_reduced_records_of_all_namespaces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REDUCED", 20)
    kept, left_out = Kept(bound_of(1)), list[str]()
    for name in "abc":
        for number in range(15):
            exceeding = kept.add((name, f"t{number}"), Thing("", number), -number)
            left_out += [key[0] for key, keep in exceeding.items() if not keep]
    assert left_out == ["c"] * 5


@pytest.mark.parametrize(("namespaces", "things", "max_things"), [(60, 2, 50), (25, 4, 33)])
def test_large_records_cause_no_new_list_until_an_object_is_deleted(
    namespaces: int, things: int, max_things: int
) -> None:
    """In the past, all objects were listed every minute, because few large records left half of low bounds unused."""
    kept, names = Kept(bound_of(1000 * max_things)), [f"n{number}" for number in range(namespaces)]
    reduced = fill(kept, dict.fromkeys(names, things))
    assert not any(map(kept.has_room, names))
    name = min(reduced)[0]
    kept.drop((name, f"t{things - 1}"))
    assert kept.has_room(name)


@pytest.mark.parametrize("victims", [2, 5])
def test_reduced_records_are_listed_again_after_all_large_records_were_deleted(victims: int) -> None:
    """In the past, they stayed reduced until an unrelated list, because only full records were counted."""
    kept = Kept(bound_of(3500))
    names = [f"n{number}" for number in range(40)]
    fill(kept, {"victim": victims, **dict.fromkeys(names, 2)})
    has_room = False
    for name in names:
        for number in range(2):
            kept.drop((name, f"t{number}"))
            has_room |= kept.has_room(name)
    assert has_room


def test_namespace_without_reduced_records_has_room_after_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the past, its other objects counted as absent for hours if other namespaces had all the reduced records."""
    monkeypatch.setattr(bounds, "REDUCED", 20)
    kept = Kept(bound_of(10**9, 100))
    fill(kept, {"a": 150, "b": 150})
    left_out = fill(kept, {"honest": 90})
    assert ("honest", "t0") in left_out
    assert not kept.has_room("honest")
    for number in range(75, 90):
        kept.drop(("honest", f"t{number}"))
    assert kept.has_room("honest")


def test_work_of_many_namespaces_beyond_the_total_is_linear() -> None:
    def work(namespaces: int) -> int:
        kept = Kept(bound_of(200 * namespaces))
        return counted(lambda: fill(kept, {f"n{number}": 4 for number in range(namespaces)}))[1]

    assert work(2000) < 2.3 * work(1000)


def test_cost_of_changes_to_a_record_does_not_grow() -> None:
    kept = Kept(bound_of(10**9))

    def change(times: int) -> None:
        for number in range(times):
            kept.add(("a", f"t{number % 7}"), Thing("x" * (number % 100), number), -number)

    change(1500)
    (_, few), (_, many) = (counted(lambda times=times: change(times)) for times in (1000, 10_000))  # type: ignore[misc]
    assert many <= 10.5 * few
    assert measured(lambda: change(10_000))[2] < 1_000_000


def test_changed_records_of_many_namespaces_take_little_memory() -> None:
    """In the past, 1,000 changes to an object took 300 KB until the next list, in each namespace and of each kind."""
    kept = Kept(bound_of(10**9))

    def change() -> None:
        for number in range(50_000):
            kept.add((f"n{number % 50}", "t"), Thing("", number), 0.0)

    assert measured(change)[2] < 50 * 15_000


def test_computed_size_is_about_the_memory_that_a_record_takes() -> None:
    made: list[Workload] = []
    _, _, kept_bytes = measured(lambda: made.extend(parse_jobset(large_jobset(number)) for number in range(10)))
    computed = sum(size_of(record) for record in made)
    # The measured memory also includes the cache of shared texts, which contains the texts of the records.
    assert 0.6 * kept_bytes <= computed <= kept_bytes


# --- The caches of the provisioner ---


def large_jobset(number: int) -> dict[str, Any]:
    """Return a suspended JobSet that is nearly as large as the bounds on one object allow."""
    values = [f"{number:06}-{value:02}-{'v' * 40}" for value in range(15)]
    expressions = [
        {
            "key": f"example.com/{'k' * 40}{key}-{number}",
            "operator": "NotIn",
            "values": [f"{key}-{value}" for value in values],
        }
        for key in range(60)
    ]
    created = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
    return raw_jobset(
        f"m{number:04}",
        namespace="mallory",
        pod=pod_spec(tolerations=[toleration()], affinity=required_affinity({"matchExpressions": expressions})),
        metadata={"creationTimestamp": created},
        spec={"suspend": True},
    )


def served(*jobsets: dict[str, Any]) -> tuple[FakeKube, Watches]:
    """Return an API server with JobSets, and its watches before their first list."""
    kube = FakeKube()
    for raw in jobsets:
        kube.put_object(f"{JOBSETS}/namespaces/{raw['metadata']['namespace']}/jobsets/{raw['metadata']['name']}", raw)
    return kube, make_watches(kube, settings(), lambda: None, options=WatchOptions(page_size=20))


def listed(*jobsets: dict[str, Any]) -> tuple[FakeKube, Watches]:
    """Return an API server with JobSets, and its watches after their first list."""
    kube, watches = served(*jobsets)
    step(watches)
    return kube, watches


def problems(watches: Watches) -> dict[str, tuple[str, ...]]:
    return {name: record.problem for (_, name), record in watches.workloads[WorkloadKind.JOBSET].records().items()}


def reduced(watches: Watches) -> set[str]:
    return {name for name, problem in problems(watches).items() if problem}


def step(watches: Watches) -> None:
    watches.workloads[WorkloadKind.JOBSET].parts[0].step()  # type: ignore[union-attr]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(bounds, "NAMESPACE_WORKLOADS", bounds.NAMESPACE_WORKLOADS // 5)
    return bounds.NAMESPACE_WORKLOADS


@pytest.mark.timeout(20)  # tracemalloc slows the test down.
def test_jobsets_of_one_namespace_take_bounded_memory(small: int) -> None:
    """Without the bound, 1,600 suspended JobSets took 754 MiB."""
    _, watches = served(raw_jobset("honest", namespace="research"), *map(large_jobset, range(100)))
    _, peak, kept = measured(lambda: step(watches))
    assert kept < 1.3 * small
    assert peak < 2.5 * small
    found = problems(watches)
    assert len(found) == 101
    beyond = [name for name, problem in found.items() if problem]
    assert beyond == [f"m{number:04}" for number in range(100 - len(beyond), 100)]
    assert 10 < len(beyond) < 90
    limits = f"{small >> 20} MiB of memory, or those of all namespaces 2 times as much"
    assert found["m0099"] == (
        f"the JobSets of its namespace exceed {limits}, and only its oldest are read",
        "delete JobSets that are not needed",
    )


def test_jobsets_beyond_the_bound_get_an_event(small: int) -> None:
    _, watches = listed(*map(large_jobset, range(60)))
    records = watches.workloads[WorkloadKind.JOBSET].records().values()
    beyond = sorted(reduced(watches))
    assert beyond
    assert told_of(*records) == beyond
    assert told_of(*(replace(record, suspended=False) for record in records)) == beyond


def test_jobset_beyond_the_bound_is_read_in_full_once_there_is_room(small: int) -> None:
    kube, watches = listed(*map(large_jobset, range(60)))
    last = "m0059"
    assert problems(watches)[last]
    for number in range(40):
        kube.remove_object(f"{JOBSETS}/namespaces/mallory/jobsets/m{number:04}")
    deleted = [{"type": "DELETED", "object": large_jobset(number)} for number in range(40)]
    kube.script(f"{JOBSETS}/jobsets", *deleted)
    step(watches)
    assert problems(watches)[last]
    step(watches)
    assert set(problems(watches).values()) == {()}


def test_deletes_in_a_namespace_at_its_bound_cause_no_new_list(small: int) -> None:
    kube, watches = listed(*map(large_jobset, range(60)))
    kube.script(f"{JOBSETS}/jobsets", {"type": "DELETED", "object": large_jobset(0)})
    step(watches)
    lists = len(kube.calls)
    kube.script(f"{JOBSETS}/jobsets", {"type": "DELETED", "object": large_jobset(1)})
    step(watches)
    assert [call.method for call in kube.calls[lists:]] == ["WATCH"]


def test_jobset_beyond_the_bound_reduces_the_youngest_records(small: int) -> None:
    young = raw_jobset("a-young-one", namespace="mallory", metadata={"creationTimestamp": "2026-02-01T00:00:00Z"})
    kube, watches = listed(*map(large_jobset, range(26)), young)
    assert set(problems(watches).values()) == {()}
    kube.script(f"{JOBSETS}/jobsets", *({"type": "ADDED", "object": large_jobset(number)} for number in (30, 31)))
    step(watches)
    assert reduced(watches) == {"a-young-one", "m0031"}


def test_jobsets_beyond_the_number_of_reduced_records_are_left_out(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the past, 200,000 small suspended JobSets of one namespace took 754 MiB, although most were reduced."""
    monkeypatch.setattr(bounds, "REDUCED", 5)
    kube, watches = listed(*map(large_jobset, range(60)))
    found = problems(watches)
    assert sorted(found) == [f"m{number:04}" for number in range(len(found))]
    assert sum(map(bool, found.values())) == 5
    changed = {"type": "MODIFIED", "object": large_jobset(59) | {"status": {"restarts": 1}}}
    kube.script(f"{JOBSETS}/jobsets", {"type": "ADDED", "object": large_jobset(61)}, changed)
    step(watches)
    assert problems(watches) == found
    for number in range(50):
        kube.remove_object(f"{JOBSETS}/namespaces/mallory/jobsets/m{number:04}")
    kube.script(
        f"{JOBSETS}/jobsets", *({"type": "DELETED", "object": large_jobset(number)} for number in range(len(found)))
    )
    step(watches)
    step(watches)
    assert sorted(problems(watches)) == [f"m{number:04}" for number in range(50, 60)]


def test_finished_jobsets_are_reduced_before_unfinished_ones(small: int) -> None:
    """Many users never delete finished JobSets, which must not displace unfinished ones."""
    old = [large_jobset(number) | {"status": {"terminalState": "Completed"}} for number in range(40)]
    _, watches = listed(*old, *map(large_jobset, range(40, 50)))
    assert reduced(watches)
    assert reduced(watches) < {raw["metadata"]["name"] for raw in old}


def test_pod_beyond_the_bound_keeps_its_node_and_its_marks() -> None:
    """The pool of the pod must not be deleted, and must not be assigned to another slice."""
    spec = pod_spec(
        nodeSelector={**pod_spec()["nodeSelector"], **dict.fromkeys(MARKS, "mark"), "x": "y" * 60}, nodeName="node-1"
    )
    annotations = {constants.CONSUMES_REQUEST: "req", constants.ZONES: "us-central2-b"}
    raw = raw_leader("train", spec=spec, metadata={"annotations": annotations})
    pod = parsed_pod(raw)
    bound = served()[1].pods.parts[0]._bound  # type: ignore[union-attr]
    assert bound is not None
    found = bound.reduce(pod, ("too many",))
    assert found == replace(pod, requirements=found.requirements, unschedulable_message="")
    assert (found.requirements.chips, found.requirements.problem) == (4, ("too many",))
    assert found.requirements.node_selector == {
        key: value for key, value in pod.requirements.node_selector.items() if key != "x"
    }
    assert found.requirements.annotations == {constants.CONSUMES_REQUEST: "req"}


@pytest.mark.parametrize("make", [raw_request, raw_buffer])
def test_requests_and_buffers_of_a_namespace_are_bounded_in_number(make: Any) -> None:
    """Each round processes all requests and buffers, so their number limits its duration."""
    raw = make("first")
    kind = KINDS[WorkloadKind(raw["kind"])]
    kept = Kept(kind.bound(()))
    first = kind.parse(raw)
    assert first is not None
    added = [kept.add(("default", f"n{number}"), first, 0.0) for number in range(bounds.NAMESPACE_REQUESTS + 3)]
    assert sum(map(len, added)) == 3
    reduced = kept.bound.reduce(first, kept.bound.problem)
    assert reduced.capacity_request == first.capacity_request
    assert "exceed 16 MiB of memory or 4,096 objects" in reduced.problem[0]
