"""Tests of the content and the aggregation of Events, and that recording an Event does not block."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.kube import errors
from provisioner.kube.events import EventRecorder
from provisioner.model.workloads import ObjectRef
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube

POD = ObjectRef(kind="Pod", api_version="v1", namespace="team", name="p-0", uid="u1")
NODE = ObjectRef(kind="Node", api_version="v1", namespace="", name="n", uid="u2")
EVENTS = "/api/v1/namespaces/team/events"


class Harness:
    """A recorder without its thread. Tests call its methods and advance the clock."""

    def __init__(self, *, capacity: int = 32768) -> None:
        self.kube = FakeKube()
        self.clock = FakeClock()
        self.recorder = EventRecorder(
            self.kube, instance="pod-a_1", capacity=capacity, clock=self.clock, now=self.clock.now
        )

    def emit(
        self, message: str = "creating pool x", *, after_seconds: float = 0.0, ref: ObjectRef = POD, **fields: Any
    ) -> None:
        self.clock.advance(after_seconds)
        self.recorder.emit(ref, **{"reason": "NodePoolCreationStarted", "message": message, **fields})
        self.written()

    def record(self, uid: str, *, namespace: str = "team", message: str = "m") -> None:
        ref = ObjectRef(kind="Pod", api_version="v1", namespace=namespace, name=f"p-{uid}", uid=uid)
        self.recorder.emit(ref, "R", message)

    def written(self, count: int = 1000) -> list[str]:
        """Write all Events that may be written, at most `count`; return their objects' UIDs in order."""
        before = len(self.kube.calls)
        for _ in range(count):
            if not self.recorder.write_next():
                break
        bodies = (self.kube.object(call.path) or call.body for call in self.kube.calls[before:])
        return [body["involvedObject"]["uid"] for body in bodies if body is not None and "involvedObject" in body]

    def methods(self) -> list[str]:
        return [call.method for call in self.kube.calls]


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_event_has_all_fields_that_kubectl_shows(harness: Harness) -> None:
    harness.emit()
    (body,) = harness.kube.objects(EVENTS)
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p-0", "uid": "u1"}
    assert body["involvedObject"] == about
    assert (body["type"], body["reason"], body["message"]) == ("Normal", "NodePoolCreationStarted", "creating pool x")
    assert (body["count"], body["firstTimestamp"], body["lastTimestamp"]) == (1, *["2026-01-01T00:16:40Z"] * 2)
    assert body["source"] == {"component": "tpu-provisioner"}
    assert (body["reportingComponent"], body["reportingInstance"]) == ("tpu-provisioner", "pod-a_1")
    assert body["metadata"]["name"].startswith("p-0.")


def test_event_of_a_node_is_in_the_default_namespace(harness: Harness) -> None:
    """The API requires the namespace `default` for Events on objects without a namespace."""
    harness.emit(ref=NODE)
    (body,) = harness.kube.objects("/api/v1/namespaces/default/events")
    assert "namespace" not in body["involvedObject"]


def test_repeats_are_counted_and_written_every_five_minutes(harness: Harness) -> None:
    for _ in range(301):
        harness.emit()
        harness.clock.advance(1)
    assert harness.methods() == ["POST", "PATCH"]
    (body,) = harness.kube.objects(EVENTS)
    assert (body["count"], body["lastTimestamp"]) == (301, "2026-01-01T00:21:40Z")
    assert body["firstTimestamp"] == "2026-01-01T00:16:40Z"


@pytest.mark.parametrize(
    "change",
    [{}, {"message": "other"}, {"reason": "Other"}, {"warning": True}, {"ref": replace(POD, uid="u9")}],
    ids=["the same", "another message", "another reason", "another kind", "a namesake"],
)
def test_event_is_a_repeat_only_if_all_its_fields_are_equal(harness: Harness, change: dict[str, Any]) -> None:
    harness.emit()
    harness.emit(**change)
    assert harness.methods() == (["POST", "POST"] if change else ["POST"])


def test_events_with_the_same_key_are_repeats(harness: Harness) -> None:
    harness.emit("3 of 16 ready", key="progress")
    harness.emit("4 of 16 ready", key="progress")
    harness.emit("9 of 16 ready", key="progress", after_seconds=300)
    (body,) = harness.kube.objects(EVENTS)
    assert (body["message"], body["count"]) == ("9 of 16 ready", 3)


def test_expired_event_is_created_again(harness: Harness) -> None:
    """The recorder forgets an Event after 10 min without a repeat. The API server deletes it after an hour."""
    harness.emit()
    harness.clock.advance(601)
    harness.recorder.tidy()
    harness.emit()
    assert harness.methods() == ["POST", "POST"]
    for body in harness.kube.objects(EVENTS):
        harness.kube.remove_object(f"{EVENTS}/{body['metadata']['name']}")
    harness.emit(after_seconds=300)
    assert harness.methods() == ["POST", "POST", "PATCH", "POST"]


def test_events_of_one_object_are_limited(harness: Harness) -> None:
    for number in range(40):
        harness.emit(f"message {number}")
    assert len(harness.methods()) == 25
    assert harness.recorder.dropped_total == 15
    harness.emit(ref=NODE)
    assert len(harness.methods()) == 26
    harness.emit("one more", after_seconds=300)
    harness.emit("and another")
    assert len(harness.methods()) == 27


def test_events_of_another_namespace_with_the_same_uid_use_another_budget(harness: Harness) -> None:
    """Users can write the UID of any object into the ownerReferences of their pods."""
    for number in range(40):
        harness.emit(f"message {number}", ref=replace(POD, namespace="other"))
    harness.emit()
    assert len(harness.kube.objects(EVENTS)) == 1


def test_event_with_long_texts_is_valid(harness: Harness) -> None:
    """The message has at most 1,024 characters. The name has at most 253, and does not contain "-."."""
    harness.emit("x" * 1025, ref=replace(POD, name="a" * 235 + "-" + "b" * 17))
    (body,) = harness.kube.objects(EVENTS)
    assert body["message"] == "x" * 1023 + "…"
    assert len(body["metadata"]["name"]) <= 253
    assert "-." not in body["metadata"]["name"]


@pytest.mark.parametrize(
    ("error", "dropped"),
    [
        pytest.param(errors.Forbidden("no", status=403), 1, id="no permission"),
        pytest.param(RuntimeError("a bug"), 1, id="a bug"),
        pytest.param(errors.NotFound("namespace gone", status=404), 0, id="the namespace is gone"),
        pytest.param(
            errors.Forbidden("unable to create: namespace team is being terminated", status=403),
            0,
            id="the namespace is going",
        ),
    ],
)
def test_failed_write_does_not_reach_the_caller(harness: Harness, error: Exception, dropped: int) -> None:
    """A dropped Event is counted, except if its namespace is deleted; the next repeat is written."""
    harness.kube.fail("POST", "events", error)
    harness.emit()
    assert dropped == harness.recorder.dropped_total
    harness.emit()
    assert len(harness.kube.objects(EVENTS)) == 1


def test_event_whose_response_was_lost_is_written_once(harness: Harness) -> None:
    """The Event is repeated before the next attempt, which must not create a second Event."""
    harness.kube.fail("POST", "events", errors.Unavailable("cut off"), after_effect=True)
    harness.record("a")
    assert harness.recorder.write_next()
    assert not harness.recorder.write_next()
    harness.clock.advance(5)
    harness.record("a")
    assert harness.recorder.write_next()
    assert len(harness.kube.objects(EVENTS)) == 1
    assert harness.recorder.dropped_total == 0


def test_failing_namespace_does_not_delay_other_namespaces(harness: Harness) -> None:
    """The write is retried every 5 s for 10 to 11 min; then the Event is dropped."""
    harness.kube.fail("POST", "namespaces/team/events", errors.Unavailable("a webhook hangs"), times=200)
    harness.record("bad")
    for uid in "abc":
        harness.record(uid, namespace="quiet")
    harness.written()
    assert len(harness.kube.objects("/api/v1/namespaces/quiet/events")) == 3
    for _ in range(700):
        harness.clock.advance(1)
        harness.recorder.tidy()
        harness.written()
    tries = [call for call in harness.kube.calls if call.path == EVENTS]
    assert len(tries) == 132
    assert harness.recorder.dropped_total == 1


def test_flood_in_one_namespace_delays_another_by_one_write(harness: Harness) -> None:
    for number in range(80):
        harness.record(f"flood-{number % 4}", message=f"{number}")
    harness.record("b1", namespace="b")
    harness.record("c1", namespace="c")
    assert harness.written(5) == ["flood-0", "b1", "c1", "flood-1", "flood-2"]


def test_full_table_drops_events_of_the_largest_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    harness = Harness(capacity=50)
    for _ in range(3):
        for number in range(200):
            harness.record(f"flood-{number}")
    assert harness.recorder.dropped_total == 450
    for number in range(20):
        harness.record(f"quiet-{number}", namespace="quiet")
    assert harness.recorder.dropped_total == 470
    assert {f"quiet-{number}" for number in range(20)} <= set(harness.written())
    harness.clock.advance(60)
    for _ in range(5):
        harness.recorder.tidy()
    out = capsys.readouterr().out
    assert out.count("event.dropped") == 1
    assert "'team': 470" in out


def test_dropped_event_leaves_no_entry() -> None:
    """Otherwise, dropped Events of many objects and namespaces would take memory without limit."""
    harness = Harness(capacity=1)
    for number in range(10):
        harness.record(f"{number}", namespace=f"n-{number}")
    assert (len(harness.recorder._namespaces), len(harness.recorder._budgets)) == (1, 1)


def test_rate_of_writes_is_limited(harness: Harness) -> None:
    for number in range(1000):
        harness.record(str(number))
    assert len(harness.written()) == 100
    harness.clock.advance(10)
    assert len(harness.written()) == 100
    harness.clock.advance(2)
    assert len(harness.written()) == 40


def test_old_entries_are_removed(harness: Harness) -> None:
    for number in range(30):
        harness.record("one", message=str(number))
        harness.record(str(number))
    harness.written()
    for _ in range(150):
        harness.clock.advance(60)
        harness.recorder.tidy()
    assert harness.recorder._namespaces == {}


def test_emit_does_not_block_while_a_write_hangs(harness: Harness) -> None:
    entered, leave = threading.Event(), threading.Event()
    real = harness.kube.post

    def stuck(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        leave.wait(5)
        return real(*args, **kwargs)

    harness.kube.post = stuck  # type: ignore[method-assign]
    harness.recorder.start()
    harness.recorder.emit(NODE, "R", "first")
    assert entered.wait(5)
    for number in range(40):
        harness.record(f"{number}")
    assert not harness.recorder.flush(timeout_seconds=0.01)
    leave.set()
    assert harness.recorder.flush(timeout_seconds=5)
    names = {body["involvedObject"]["name"] for body in harness.kube.objects(EVENTS)}
    assert names == {f"p-{number}" for number in range(40)}
    harness.recorder.stop()
    harness.recorder.emit(NODE, "R", "too late")
    assert harness.recorder.flush(timeout_seconds=0)


def test_event_has_the_current_time() -> None:
    """Tools sort Events by the machine's time, which is the default clock."""
    kube = FakeKube()
    recorder = EventRecorder(kube, instance="i")
    recorder.start()
    recorder.emit(POD, "R", "m")
    assert recorder.flush(timeout_seconds=60)
    recorder.stop()
    (event,) = kube.objects(EVENTS)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(event["lastTimestamp"])) < timedelta(minutes=10)
