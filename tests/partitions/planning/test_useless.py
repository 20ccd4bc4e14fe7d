"""Pods that cannot use their IPUs do not block other pods, and pods that wait get the reason in an Event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import Call, CreatePartition, RemovePartition
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.ledger import MAX_CHARACTERS
from provisioner.partitions.vipu.records import Allocation, PartitionRequest, PartitionState
from provisioner.settings.partitions import PartitionSettings, Server
from tests.partitions.planning.stories import (
    BOTH,
    OTHER,
    SERVER,
    Story,
    events_of,
    held,
    id_of,
    make_entry,
    make_partition,
    make_pod,
    reasons,
)


def test_pod_whose_selector_excludes_all_servers_releases_its_ipus() -> None:
    pod = make_pod("train", size=64, age_seconds=9)
    story = held(pod, make_pod("next", size=64))
    story.change(pod, servers=frozenset())
    plans = story.settle()
    assert "next" in story.entries()
    assert any("node selector" in event.message for event in events_of(plans) if event.pod.name == "train")


def test_pod_without_gate_keeps_its_partition_if_its_selector_excludes_it() -> None:
    """Without a gate, the pod may already have a node, and its selector can no longer be changed."""
    pod = make_pod("train", gated=False, server_annotation=SERVER.address, servers=frozenset({OTHER.address}))
    story = held(pod, servers=dict(BOTH))
    assert reasons(story.settle()) == []
    assert list(story.at()) == [id_of(pod)]


def _away(**fields: Any) -> tuple[Story, Pod]:
    """Return a story in which a pod has an entry for a server that will fail, and the pod."""
    pod = make_pod("train", **fields)
    story = held(pod, state=None, servers=dict(BOTH))
    story.read()
    return story, pod


def _settle_without_server(story: Story, minutes: int) -> list[Plan]:
    return story.settle(
        3 * minutes,
        seconds=20,
        fails=lambda call: FailureKind.UNAVAILABLE if call.server == SERVER.address else None,
    )


def test_pod_that_only_a_failed_server_can_serve_waits_without_using_its_limit() -> None:
    story, pod = _away(servers=frozenset({SERVER.address}), size=16)
    story.pods.append(make_pod("next", size=16))
    story.settings = PartitionSettings(servers=(), namespace_limits=(("*", 16),))
    plans = _settle_without_server(story, 18)
    assert story.entries().keys() == {"next"}
    assert [(waiting.pod, "cannot be read" in waiting.why) for waiting in plans[-1].view.waiting] == [("train", True)]
    story.put(make_partition(pod))
    story.settle(seconds=5)
    assert story.pods[0].server_annotation == SERVER.address


def test_pod_above_the_limit_of_its_namespace_gets_a_warning_with_the_limit() -> None:
    """The pod never gets its IPUs, so the text must not advise to wait."""
    story = Story(settings=PartitionSettings(servers=(), namespace_limits=(("team", 4),)))
    story.pods = [make_pod("large", size=8), make_pod("next", size=4)]
    (event,) = (event for event in events_of(story.settle()) if event.pod.name == "large")
    assert "8 IPUs are more than namespace team may have by the setting NAMESPACE_IPU_LIMITS: 4." in event.message
    assert event.warning
    assert story.entries().keys() == {"next"}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        pytest.param({"begun": True}, True, id="pod running"),
        pytest.param({}, True, id="pod with its partition in the annotation"),
        pytest.param({"begun": True, "finished": True}, False, id="pod finished"),
    ],
)
def test_ipus_on_a_failed_server_count_until_the_pod_has_ended(fields: dict[str, Any], kept: bool) -> None:
    story, pod = _away(size=16, gated=False, server_annotation=SERVER.address, node="host-1", **fields)
    story.put(make_partition(pod))
    story.pods.append(make_pod("next", size=16))
    story.settings = PartitionSettings(servers=(), namespace_limits=(("*", 16),))
    _settle_without_server(story, 18)
    assert ("train" in story.entries(), "next" in story.entries()) == (kept, not kept)


def _carry_out(story: Story, hours: float, refuses: Callable[[Call], bool]) -> list[Plan]:
    """Run rounds for `hours`. Calls for which `refuses` is true fail, and pods with a partition get a node."""

    def fails(call: Call) -> FailureKind | None:
        kind = FailureKind.STOCKOUT if isinstance(call, CreatePartition) else FailureKind.UNAVAILABLE
        return kind if refuses(call) else None

    plans = []
    for _ in range(int(hours * 360)):
        plans += story.settle(1, seconds=10, fails=fails)
        for pod in story.pods:
            if pod.server_annotation and not pod.node:
                story.change(pod, node="host-1", begun=True)
    return plans


@pytest.mark.parametrize("misplaced", [False, True])
def test_pod_whose_unusable_partition_cannot_be_removed_gets_another_one(misplaced: bool) -> None:
    pod = make_pod("train")
    story = held(pod, state=None, servers=dict(BOTH))
    story.put(make_partition(pod, PartitionState.ACTIVE if misplaced else PartitionState.ERROR))
    if misplaced:
        story.change(pod, servers=frozenset({OTHER.address}))
    plans = _carry_out(story, 0.5, lambda call: isinstance(call, RemovePartition))
    assert story.pods[0].partition_annotation == id_of(pod, OTHER)
    assert "this is retried: no" in " ".join(event.message for event in events_of(plans))
    _carry_out(story, 0.5, lambda _: False)
    assert (story.at(), set(story.at(OTHER))) == ({}, {id_of(pod, OTHER)})
    alone = held(pod, state=PartitionState.ERROR)
    _carry_out(alone, 0.5, lambda call: isinstance(call, RemovePartition))
    (waiting,) = alone.decide().view.waiting
    assert waiting.why == f"Partition {id_of(pod)} cannot be removed: no"


def test_stray_of_a_pod_that_has_an_entry_is_not_recorded() -> None:
    """The stray is on another server than the pod's entry. The pod, whose gate was removed by hand, may use either."""
    pod = make_pod("train", gated=False)
    story = held(pod, servers=dict(BOTH))
    story.put(make_partition(pod, id=id_of(pod, OTHER)), server=OTHER)
    story.settle()
    assert story.ledger is not None
    assert [entry.server for entry in story.ledger.entries] == [SERVER.address]


def test_lost_partition_on_a_renamed_server_is_recreated_only_there() -> None:
    """The settings no longer have the old name of the server, and the pod's node reaches no other server."""
    renamed = Server(host="vipu-new", port=8090)
    pod = make_pod("train", gated=False, server_annotation=SERVER.address, begun=True, node="host-1")
    story = held(pod, state=None, servers={server: (Allocation(name="a", ipus=64),) for server in (renamed, OTHER)})
    story.put(make_partition(pod), server=renamed)
    story.settle()
    story.at(renamed).clear()
    _carry_out(story, 1, lambda call: isinstance(call, CreatePartition) and call.server == renamed.address)
    assert (story.entries()["train"].server, story.at(OTHER)) == (renamed.address, {})


@pytest.mark.parametrize("other", [None, "b"], ids=["no place", "another allocation"])
def test_lost_partition_that_no_longer_fits_does_not_delay_other_pods(other: str | None) -> None:
    """The pod uses another allocation of the same server if there is one, because the same nodes reach it."""
    lost = make_pod(
        "lost", size=16, age_seconds=9, gated=False, server_annotation=SERVER.address, node="host-1", begun=True
    )
    allocations = (Allocation(name="a", ipus=64), *([Allocation(name=other, ipus=64)] if other else []))
    story = Story(pods=[lost, make_pod("next", size=32)], servers={SERVER: allocations})
    story.record(make_entry(lost))
    wanted = PartitionRequest(id=id_of(lost), size=16, allocation="a")
    plans = _carry_out(story, 1, lambda call: getattr(call, "request", None) == wanted)
    assert "next" in story.entries()
    if other is None:
        # The create is retried, and the pod holds no IPUs between the attempts.
        held = [any(partition.pod == "team/lost" for partition in plan.view.partitions) for plan in plans[60:]]
        assert 0 < sum(held) < len(held) / 4
    assert [partition.allocation for partition in story.at().values() if partition.id == id_of(lost)] == (
        [other] if other else []
    )


def _rejects_large(call: Call) -> bool:
    return isinstance(call, CreatePartition) and call.request.size == 32


@pytest.mark.parametrize("ipus", [64, None], ids=["known", "unknown"])
def test_pod_rejected_by_an_empty_allocation_does_not_delay_later_pods(ipus: int | None) -> None:
    """Pods of the same size that wait behind the rejected pod do not delay smaller pods either.

    The allocation has fewer usable IPUs than the server reports, or the server does not report their number.
    """
    never, behind = make_pod("never", size=32, age_seconds=9), make_pod("behind", size=32, age_seconds=8)
    story = Story(pods=[never, make_pod("younger")], servers={SERVER: (Allocation(name="a", ipus=ipus),)})
    plans = _carry_out(story, 1 / 12, _rejects_large)
    assert story.entries().keys() == {"younger"}
    assert 3 <= sum(map(_rejects_large, (call for plan in plans for call in plan.calls))) <= 8
    story.pods.append(behind)
    _carry_out(story, 0.4, _rejects_large)
    for number in range(3):
        story.pods.append(make_pod(f"p{number}"))
        _carry_out(story, 0.2, _rejects_large)
    assert story.entries().keys() >= {"p0", "p1", "p2"}


def _fragmented(rejected: int) -> Story:
    """Return a story whose 64 IPUs are half used, and with pods of 32 IPUs, which the server is to reject."""
    running = [
        make_pod(f"r{number}", size=2, gated=False, server_annotation=SERVER.address, node="host-1")
        for number in range(16)
    ]
    large = [make_pod(f"l{number}", size=32, age_seconds=999 - number, namespace="large") for number in range(rejected)]
    story = Story(pods=[*running, *large])
    story.record(*map(make_entry, running))
    story.put(*map(make_partition, running))
    return story


def test_pods_that_one_namespace_replaces_delay_other_namespaces_for_an_hour_together() -> None:
    story = _fragmented(4)
    for name, hours in (("l0", 0.7), ("l1", 0.2), ("l2", 0.2)):
        _carry_out(story, hours, _rejects_large)
        story.pods = [pod for pod in story.pods if pod.name != name]
    story.pods.append(replace(make_pod("next"), created_at=story.now))
    _carry_out(story, 0.1, _rejects_large)
    assert "next" in story.entries()


def test_pod_may_delay_others_for_an_hour_again_after_its_namespace_got_a_rejected_partition() -> None:
    story = _fragmented(2)
    _carry_out(story, 0.7, _rejects_large)
    _carry_out(story, 0.2, lambda _: False)
    assert "l0" in story.entries()
    story.pods = [pod for pod in story.pods if pod.name != "l0"]
    _carry_out(story, 0.7, _rejects_large)
    story.pods.append(replace(make_pod("next"), created_at=story.now))
    _carry_out(story, 0.1, _rejects_large)
    assert "next" not in story.entries()


@pytest.mark.parametrize("kept", [True, False], ids=["unreadable entry", "another prefix"])
def test_foreign_partition_delays_only_pods_that_need_its_ipus(kept: bool) -> None:
    story = Story(pods=[make_pod("large", size=64, age_seconds=9), make_pod("next")])
    theirs = make_partition(make_pod("theirs"), **({} if kept else {"id": "theirs"}))
    story.record(unreadable={theirs.id: "?"} if kept else None)
    story.put(theirs)
    assert [waiting.why.partition(",")[0] for waiting in story.settle()[-1].view.waiting] == ["Partitions of others"]
    assert story.entries().keys() == {"next"}


def test_stray_of_another_size_than_its_pod_requests_is_recreated() -> None:
    """A user may have created a partition with this id and another size while the ledger was lost."""
    pod = make_pod("train", size=4)
    story = Story(pods=[pod])
    story.put(make_partition(pod, size=1))
    story.settle()
    assert (story.entries()["train"].size, story.at()[id_of(pod)].size) == (4, 4)


def test_pod_gets_an_event_if_the_ledger_is_full() -> None:
    """The Event must not report a lack of IPUs, because enough IPUs are free."""
    story = Story(pods=[make_pod("train")])
    story.record(unreadable={"x": "y" * MAX_CHARACTERS})
    story.read()
    plans = story.settle(5)
    assert [(told.reason, "ledger" in told.message) for told in events_of(plans)] == [("PartitionWaiting", True)]
    assert ["ledger" in waiting.why for waiting in plans[-1].view.waiting] == [True]


def test_pod_gets_an_event_if_writes_of_the_ledger_are_rejected() -> None:
    story = Story(pods=[make_pod("train")])
    story.read()
    told = events_of(story.settle(5, refused=True))
    assert [(event.reason, "ledger" in event.message) for event in told] == [("PartitionWaiting", True)]


@pytest.mark.parametrize(
    ("namespace", "size", "want"),
    [
        pytest.param("team", 32, {"next"}, id="limit blocks a pod of the namespace"),
        pytest.param("team", 64, {"stuck"}, id="pod exceeds the limit on its own"),
        pytest.param("other", 16, {"stuck", "next"}, id="pod of another namespace"),
    ],
)
def test_pod_without_a_node_releases_ipus_that_block_its_namespace_limit(
    namespace: str, size: int, want: set[str]
) -> None:
    """The server of the waiting pod has free IPUs, but the pod without a node uses up the limit of the namespace."""
    pod = make_pod("stuck", size=32, age_seconds=99, gated=False, server_annotation=SERVER.address)
    other = make_pod("next", namespace=namespace, size=size, servers=frozenset({OTHER.address}))
    settings = PartitionSettings(servers=(), unscheduled_seconds=60, namespace_limits=(("*", 32),))
    story = held(pod, other, settings=settings, servers=dict(BOTH))
    story.settle(rounds=21, seconds=5)
    assert story.entries().keys() == want


@pytest.mark.parametrize(
    ("fields", "size", "settings"),
    [
        pytest.param({"node": "host-1"}, 64, {}, id="pod with a node"),
        pytest.param({}, 32, {}, id="no pod waits for the IPUs"),
        pytest.param({}, 64, {"namespace_limits": (("*", 32),)}, id="other pod exceeds the limit"),
        pytest.param({}, 64, {"unscheduled_seconds": 0.0}, id="UNSCHEDULED_TIMEOUT is 0"),
    ],
)
def test_pod_keeps_its_ipus_if_it_has_a_node_or_no_other_pod_needs_them(
    fields: dict[str, Any], size: int, settings: dict[str, Any]
) -> None:
    pod = make_pod("stuck", size=32, age_seconds=99, gated=False, server_annotation=SERVER.address, **fields)
    story = held(pod, settings=PartitionSettings(servers=(), **{"unscheduled_seconds": 60, **settings}))
    story.settle(rounds=20, seconds=5)
    story.pods.append(make_pod("next", size=size))
    story.settle(rounds=10, seconds=5)
    assert (id_of(pod) in story.at(), story.pods[0].released) == (True, False)


def test_annotation_with_another_pods_partition_does_not_move_it() -> None:
    """Without the webhook, users can write the annotation, and delete the pod before the controller reads it live."""
    pod, thief = (make_pod(name, gated=False, server_annotation=SERVER.address) for name in ("train", "thief"))
    story = held(pod)
    story.read()
    story.pods.append(replace(thief, partition_annotation=id_of(pod)))
    story.settle(1)
    story.pods.pop()
    story.settle(3)
    assert (list(story.at()), list(story.entries())) == ([id_of(pod)], ["train"])
