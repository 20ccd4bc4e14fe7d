"""Order of the creates and removes on a V-IPU server, of which at most four run at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.model.capacity import FailureKind
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.actions import CreatePartition, RemovePartition
from provisioner.partitions.vipu.records import Allocation
from tests.partitions.planning.stories import SERVER, Story, events_of, id_of, make_entry, make_partition, make_pod

OLD = [make_pod(f"old{number}", age_seconds=100 - number) for number in range(6)]
OTHER = [make_pod(f"other{number}", namespace="other", age_seconds=10 - number) for number in range(2)]
URGENT = make_pod("urgent", namespace="third", priority=1000)
ENDED = [make_pod(f"ended{number}", namespace="ended") for number in range(6)]


def make_story(*pods: Pod, ended: tuple[Pod, ...] = ()) -> Story:
    """Return a story in which IPUs are assigned to all pods, and the pods in `ended` leave their partitions behind."""
    story = Story(pods=list(pods), servers={SERVER: (Allocation(name="a", ipus=256),)})
    story.record(*map(make_entry, (*pods, *ended)))
    story.put(*map(make_partition, ended))
    story.read()
    return story


def sent(story: Story) -> list[str]:
    names = {id_of(pod): pod.name for pod in (*OLD, *OTHER, *ENDED, *story.pods)}
    changes: list[Any] = story.wants((CreatePartition, RemovePartition))  # type: ignore[arg-type]
    return [names[call.request.id if isinstance(call, CreatePartition) else call.id] for call in changes]


@pytest.mark.parametrize(
    ("pods", "ended", "want"),
    [
        pytest.param(OLD[::-1], [], ["old0", "old1", "old2", "old3"], id="age"),
        pytest.param([*OLD, *OTHER], [], ["old0", "other0", "old1", "other1"], id="namespaces"),
        pytest.param([*OLD, *OTHER, URGENT], [], ["urgent", "old0", "other0", "old1"], id="priority"),
        pytest.param(
            [*(replace(pod, priority=5) for pod in OLD[3:]), *OLD[:3], *OTHER],
            [],
            ["old3", "old4", "old5", "other0"],
            id="priority of several pods",
        ),
        pytest.param([*OLD, URGENT], ENDED, ["ended0", "urgent", "ended1", "old0"], id="creates and removes"),
        pytest.param([], ENDED, ["ended0", "ended1", "ended2", "ended3"], id="removes only"),
    ],
)
def test_changes_are_sent_by_priority_then_namespaces_then_age(
    pods: list[Pod], ended: list[Pod], want: list[str]
) -> None:
    ids = sorted(ENDED, key=id_of)
    renamed = {pod.name: name for pod, name in zip(ids, sorted(pod.name for pod in ENDED), strict=True)}
    assert [renamed.get(name, name) for name in sent(make_story(*pods, ended=tuple(ended)))] == want


@pytest.mark.parametrize("slow", [CreatePartition, RemovePartition])
def test_slow_changes_of_one_kind_leave_half_of_the_slots_to_the_other_kind(slow: type[Any]) -> None:
    """Calls of the slow kind are never answered; all others are answered in each round."""
    ended = tuple(make_pod(f"ended{number}", namespace="ended") for number in range(20))
    story = make_story(*(make_pod(f"p{number}") for number in range(20)), ended=ended)
    done = 0
    for _ in range(10):
        story.live = frozenset(story.memory.calls)
        for call in story.decide().calls:
            if isinstance(call, CreatePartition | RemovePartition) and not isinstance(call, slow):
                story.answer(call)
                done += 1
    assert done == 20


def test_namespaces_take_turns_over_several_rounds() -> None:
    """One create ends in each round; the namespaces with the oldest pods must not be first in all rounds."""
    pods = [
        make_pod(f"{namespace}{number}", namespace=namespace, age_seconds=1000 - 100 * order + number)
        for order, namespace in enumerate("abcdefgh")
        for number in range(5)
    ]
    story, namespaces = make_story(*pods), {id_of(pod): pod.namespace for pod in pods}
    started: list[str] = []
    for _ in range(16):
        creates = story.wants(CreatePartition)
        started += [namespaces[call.request.id] for call in creates]
        story.answer(next(call.call for call in story.memory.calls.values() if isinstance(call.call, CreatePartition)))
    assert [sorted(started[:8]), sorted(started[8:16])] == [list("abcdefgh")] * 2


def test_retry_follows_the_older_first_creates_of_its_namespace_and_precedes_the_younger() -> None:
    story = make_story(*OLD)
    (first, *others) = story.wants(CreatePartition)
    story.answer(first, FailureKind.UNAVAILABLE)
    story.pass_time(2)
    young = [make_pod(f"young{number}", created_at=story.now) for number in range(3)]
    story.pods += young
    assert story.ledger is not None
    story.record(*story.ledger.entries, *map(make_entry, young))
    names: list[str] = []
    for call in others:
        story.answer(call)
    for _ in range(3):
        names += sent(story)
        for open_call in list(story.memory.calls.values()):
            story.answer(open_call.call)
    assert [name for name in names if name in ("old0", "old4", "old5", "young0")] == ["old4", "old5", "old0", "young0"]


def test_pod_that_waits_for_other_creates_gets_an_event_and_the_reason_in_the_view() -> None:
    story = make_story(*OLD)
    plan = story.decide()
    waiting = {event.pod.name: event.message for event in events_of([plan]) if event.reason == "PartitionWaiting"}
    want = {
        pod.name: f"Partition {id_of(pod)} waits for other creates and removes on vipu:8090, of which at most 4 run at "
        "the same time. Wait; pods with a higher spec.priority come first."
        for pod in OLD[4:]
    }
    assert waiting == want
    assert {line.pod.split("/")[1]: line.why for line in plan.view.partitions if line.why} == want
