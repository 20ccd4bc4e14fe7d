"""Tests of the hints, which a ConfigMap keeps for a restart: content, size limit, damaged sections, reads, writes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from provisioner.kube import errors
from provisioner.model import bounds
from provisioner.model.capacity import FailureKind, PoolName, Zone
from provisioner.model.choices import CapacityKey
from provisioner.model.workloads import GroupKey, WorkloadUid
from provisioner.slices import hints
from provisioner.slices.demand import SliceId
from provisioner.slices.hints import HintsStore
from provisioner.slices.planning.memory.state import (
    Backoff,
    CallState,
    CreateCall,
    Memory,
    PoolMemory,
    RefusedPods,
    SliceMemory,
)
from tests.support.clock import NOW, after
from tests.support.kube import FakeKube
from tests.support.models import make_jobset, make_request
from tests.support.world import failure

MAP = "/api/v1/namespaces/system/configmaps/tpu-provisioner-hints"
SLICE = SliceId(workload_uid=WorkloadUid("uid"), group_key=GroupKey("a" * 40))


def test_hints_are_read_back_unchanged() -> None:
    memory = Memory(
        pools={PoolName("p"): PoolMemory(unneeded_since=NOW, last_user=SLICE)},
        backoffs={
            CapacityKey(Zone("z"), "m", "2x2x2 on 2", "reservation p/r"): Backoff(
                failure=failure(FailureKind.STOCKOUT, 'it says "ö"'), failures=3, since=NOW, until=after(9)
            ),
            "digest": Backoff(failure=failure(FailureKind.UNAVAILABLE), failures=1, since=NOW, until=after(9)),
        },
        refusals={
            RefusedPods("ns", "uid", "b" * 40, "digest"): Backoff(
                failure=failure(FailureKind.UNSCHEDULABLE, "0/2 nodes"), failures=2, since=NOW, until=after(9)
            ),
        },
        slices={SLICE: SliceMemory(attempt=2)},
    )
    assert hints.from_text(hints.to_text(memory)) == memory


@pytest.mark.parametrize(
    ("attempt", "kept"), [(0, {}), (2, {SLICE: SliceMemory(attempt=2)})], ids=["the first", "a later one"]
)
def test_attempt_of_an_unconfirmed_create_is_kept(attempt: int, kept: dict[SliceId, SliceMemory]) -> None:
    """After a crash the create is repeated with the same name, even if the last failed pool is deleted."""
    request = make_request(make_jobset(), attempt=attempt)
    call = CreateCall(slice_id=SLICE, request=request, state=CallState.UNKNOWN, since=NOW)
    text = hints.to_text(Memory(pools={request.name: PoolMemory(create=call)}))
    assert hints.from_text(text) == Memory(slices=kept)


def test_hints_of_3000_back_offs_keep_the_500_that_end_last() -> None:
    """A ConfigMap can hold 1 MiB, and the messages of back-offs may be long."""
    words = failure(FailureKind.STOCKOUT, "out of stock " * 1000)
    backoffs = {
        CapacityKey(Zone("us-central2-b"), "ct4p-hightpu-4t", "2x2x2 on 2", f"reservation r{index}"): Backoff(
            failure=words, failures=1, since=NOW, until=after(index)
        )
        for index in range(3000)
    }
    text = hints.to_text(Memory(backoffs=backoffs))
    assert len(text["back-off"]) < 500_000
    kept = hints.from_text(text).backoffs
    assert kept.keys() == set(list(backoffs)[-500:])


def test_hints_of_10000_slices_fit_into_a_configmap() -> None:
    """Only some records of the slices that last ran on pools are dropped; the other sections are complete."""
    slices = [SliceId(WorkloadUid(f"{index:036}"), GroupKey(f"{index:040}")) for index in range(10_000)]
    pools = [PoolName(f"training-run-{index:05}-0123456789") for index in range(10_000)]
    memory = Memory(
        pools={
            name: PoolMemory(last_user=slice_id, unneeded_since=NOW if place < 500 else None)
            for place, (name, slice_id) in enumerate(zip(pools, slices, strict=True))
        },
        created_at=tuple(NOW + timedelta(microseconds=place) for place in range(len(pools))),
        slices=dict.fromkeys(slices[:500], SliceMemory(attempt=7)),
    )
    text = hints.to_text(memory)
    assert _bytes(text) <= bounds.HINTS
    kept = hints.from_text(text)
    assert len(kept.pools) > 2000
    assert kept.pools.items() <= memory.pools.items()
    assert kept.created_at == memory.created_at
    assert sum(known.unneeded_since is not None for known in kept.pools.values()) == 500
    assert kept.slices == memory.slices


def test_hints_of_40000_creates_keep_the_latest_that_fit() -> None:
    idle = {PoolName("p"): PoolMemory(unneeded_since=NOW)}
    memory = Memory(created_at=tuple(after(index) for index in range(40_000)), pools=idle)
    text = hints.to_text(memory)
    # A ConfigMap can hold 1 MiB, and the bound must be lower.
    assert _bytes(text) <= bounds.HINTS < 1024 * 1024
    kept = hints.from_text(text).created_at
    assert list(kept) == [after(index) for index in range(40_000 - len(kept), 40_000)]
    assert len(kept) > 15_000


def _bytes(text: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in text.items())


def test_equal_memories_give_equal_hints() -> None:
    one = Memory(pools={PoolName(name): PoolMemory(unneeded_since=NOW) for name in "ab"})
    other = replace(one, pools=dict(reversed(list(one.pools.items()))))
    assert hints.to_text(one) == hints.to_text(other)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("idle-since", "{"),
        ("idle-since", "{}"),
        ("idle-since", '[["p", 7]]'),
        ("idle-since", '[["p", "yesterday"]]'),
        ("idle-since", '[["p", "2026-01-01T00:00:00"]]'),
        ("idle-since", "[" * 100_000),
        ("idle-since", '[["\\ud800", "2026-01-01T00:00:00Z"]]'),
        ("idle-since", "\ud800"),
        ("last-users", '[["p", "noslice"]]'),
        ("back-off", '[["k", null]]'),
        ("back-off", '[["k", "new kind", "m", 1, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]]'),
        ("back-off", '[["k", "quota", "m", 1e999, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]]'),
        ("refused", '[["k", "unschedulable", "m", 1, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]]'),
        ("attempts", '[[["u", "k"], -1]]'),
        ("attempts", '[[["u", "k"], 99999999]]'),
    ],
)
def test_invalid_section_of_hints_is_ignored_and_logged(key: str, text: str) -> None:
    """Losing hints is safe, but a crash at each start would stop the provisioner."""
    good = hints.to_text(Memory(pools={PoolName("p"): PoolMemory(unneeded_since=NOW, last_user=SLICE)}))
    with structlog.testing.capture_logs() as logs:
        read = hints.from_text({**good, key: text})
    assert [(line["event"], line["section"]) for line in logs] == [("hints.section_lost", key)]
    assert read == hints.from_text({name: section for name, section in good.items() if name != key})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.timeout(30)  # many generated examples
@given(
    st.dictionaries(
        st.sampled_from(["idle-since", "last-users", "back-off", "attempts", "creates", "else"]),
        st.one_of(st.text(max_size=40), _JSON.map(json.dumps)),
    )
)
def test_any_text_is_read_as_hints_without_an_error(data: dict[str, str]) -> None:
    read = hints.from_text(data)
    again = hints.from_text(hints.to_text(read))
    assert again == read


# --- Reads and writes of the ConfigMap ---


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


def test_update_of_hints_keeps_the_metadata_of_the_installer(kube: FakeKube) -> None:
    """Helm refuses to upgrade an object without the labels and annotations that Helm gave it."""
    store = HintsStore(kube, "system")
    assert store.load() == {}
    assert store.save({"a": "1", "b": "2"})
    made = kube.object(MAP)
    assert made is not None
    labels = {"app.kubernetes.io/managed-by": "Helm", "team": "ml"}
    kube.put_object(MAP, {**made, "metadata": {**made["metadata"], "labels": labels}})
    assert store.save({"b": "3"})
    kept = kube.object(MAP)
    assert kept is not None
    assert kept["metadata"]["labels"] == labels
    assert HintsStore(kube, "system").load() == {"a": "1", "b": "3"}


@pytest.mark.parametrize(
    "error",
    [
        errors.Forbidden("no", status=403),
        errors.Unavailable("down"),
        errors.Malformed("no JSON"),
    ],
)
def test_failed_read_of_hints_raises_and_is_logged_once(kube: FakeKube, error: errors.ClusterError) -> None:
    """The loop reads the hints again in each round until a read succeeds, and must not repeat the log line."""
    store = HintsStore(kube, "system")
    kube.put_object(MAP, {"data": {"a": "1"}})
    kube.fail("GET", "hints", error, times=3)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(type(error)):
                store.load()
        assert store.load() == {"a": "1"}
    assert [line["event"] for line in logs] == ["hints.load_failed"]


def test_failed_save_of_hints_returns_false_and_is_logged_once_per_cause(kube: FakeKube) -> None:
    kube.put_object(MAP, {})
    store = HintsStore(kube, "system")
    with structlog.testing.capture_logs() as logs:
        kube.fail("PATCH", "hints", errors.Forbidden("no", status=403), times=3)
        assert [store.save({}) for _ in range(3)] == [False] * 3
        kube.fail("PATCH", "hints", errors.Unavailable("down"))
        assert not store.save({})
        assert store.save({})
        kube.fail("PATCH", "hints", errors.Unavailable("down"))
        assert not store.save({})
    assert [line["event"] for line in logs] == ["hints.save_failed"] * 3
