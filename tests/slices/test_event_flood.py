"""Thousands of slices that wait for an hour: what is emitted, written and logged, and who else is heard."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import structlog

from provisioner import constants
from provisioner.kube.events import WRITE_BURST, WRITES_PER_SECOND, EventRecorder
from provisioner.model.workloads import ObjectRef
from provisioner.slices.metrics import Metrics
from provisioner.slices.planning.memory.state import Memory
from provisioner.slices.planning.plan import Notice, Plan
from provisioner.slices.report import Reporter
from tests.support.clock import FakeClock
from tests.support.controller import FakeRecorder

#: Hundreds of thousands of Events are told.
pytestmark = pytest.mark.timeout(30)


class CountingApi:
    """An API server that keeps nothing but counts."""

    def __init__(self) -> None:
        self.methods: Counter[str] = Counter()
        self.last_uid = ""

    def post(self, _path: str, body: Any, **_: Any) -> Any:
        """Count a new Event."""
        self.methods["POST"] += 1
        self.last_uid = body["involvedObject"]["uid"]
        return body

    def patch(self, _path: str, body: Any, **_: Any) -> Any:
        """Count a repeat."""
        self.methods["PATCH"] += 1
        self.last_uid = ""
        return body


@cache
def pod(number: int, namespace: str = "flood") -> ObjectRef:
    """Return a leader pod."""
    return ObjectRef(
        kind="Pod", api_version="v1", namespace=namespace, name=f"p-{number}", uid=f"{namespace}-p{number}"
    )


@cache
def workload(number: int) -> ObjectRef:
    """Return its JobSet."""
    return ObjectRef(
        kind="JobSet", api_version="jobset.x-k8s.io/v1alpha2", namespace="flood", name=f"j-{number}", uid=f"j{number}"
    )


def waiting(slices: int, round_: int = 0) -> Plan:
    notices = (
        Notice(
            objects=(pod(number), workload(number)),
            reason=constants.CREATION_WAITING,
            message=f"node pool j-{number} waits: out of stock, next try in {round_} s",
            key=f"stockout j-{number}",
        )
        for number in range(slices)
    )
    return Plan(memory=Memory(), notices=tuple(notices))


@pytest.mark.parametrize(
    ("slices", "seconds", "most_writes"),
    [
        # Each Event once, and a repeat every five minutes.
        pytest.param(800, 3600, 2 * 800 * (1 + 3600 // 300), id="800 slices for an hour"),
        pytest.param(10_000, 1200, int(WRITE_BURST + 1201 * WRITES_PER_SECOND), id="10,000 slices for 20 minutes"),
    ],
)
def test_slices_that_wait_for_long(slices: int, seconds: int, most_writes: int) -> None:
    """Each slice is told of, the writes are bounded, the log is quiet, and another namespace is heard at once."""
    clock, api = FakeClock(), CountingApi()
    recorder = EventRecorder(api, instance="i", clock=clock, now=clock.now)  # type: ignore[arg-type]
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=clock)
    with structlog.testing.capture_logs() as logs:
        for second in range(seconds):
            if second < 3 or second % 60 == 0:
                reporter.tell(waiting(slices, second))
            if second % 600 == 450:
                recorder.emit(pod(second, "quiet"), kind="Normal", reason="R", message="ready")
                for _ in range(2):
                    recorder.write_next()
                    if api.last_uid == f"quiet-p{second}":
                        break
                assert api.last_uid == f"quiet-p{second}"
            while recorder.write_next():
                pass
            recorder.tidy()
            clock.advance(1)
    assert api.methods.total() <= most_writes
    assert api.methods["POST"] == 2 * slices + seconds // 600
    assert recorder.dropped_total == 0
    events = Counter(line["event"] for line in logs)
    assert events == {"slice.notice": slices}


def test_one_jobset_of_many_slices_is_told_of_in_part_and_the_rest_is_counted() -> None:
    """One object gets 25 Events and one more every five minutes; one line a minute at most tells of the others."""
    clock, api = FakeClock(), CountingApi()
    recorder = EventRecorder(api, instance="i", clock=clock, now=clock.now)  # type: ignore[arg-type]
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=clock)
    notices = tuple(
        Notice(objects=(pod(number), workload(0)), reason="R", message=f"slice {number} waits") for number in range(800)
    )
    plan = Plan(memory=Memory(), notices=notices)
    with structlog.testing.capture_logs() as logs:
        for second in range(3600):
            if second % 60 == 0:
                reporter.tell(plan)
            while recorder.write_next():
                pass
            recorder.tidy()
            clock.advance(1)
    assert 800 + 25 <= api.methods["POST"] <= 800 + 25 + 12
    lines = Counter(line["event"] for line in logs)
    assert lines["event.dropped"] <= 12
    assert sum(line["count"] for line in logs if line["event"] == "event.dropped") == recorder.dropped_total


def test_what_is_only_repeated_costs_nothing_but_a_look() -> None:
    """A notice is emitted when it is new and every 310 seconds; one that comes and goes is not news each time."""
    clock, recorder = FakeClock(), FakeRecorder()
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=clock)
    with structlog.testing.capture_logs() as logs:
        for second in range(300):
            reporter.tell(waiting(3 if second % 2 else 2, second))
            clock.advance(1)
    assert len(recorder.told) == 6
    assert len(logs) == 2 + 30
    clock.advance(10)
    reporter.tell(waiting(3, 310))
    assert [each.message for each in recorder.told[6:]][-1].endswith("next try in 310 s")


def test_two_slices_in_the_same_words_are_told_once() -> None:
    recorder = FakeRecorder()
    reporter = Reporter(recorder=recorder, metrics=Metrics(version="test"), monotonic=FakeClock())
    same = Notice(objects=(workload(0),), reason="R", message="m")
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            reporter.tell(Plan(memory=Memory(), notices=(same, same)))
    assert (len(recorder.told), len(logs)) == (1, 1)


def test_notices_that_are_over_are_not_kept_for_ever() -> None:
    """Words that change with every round leave no more than a few thousand behind."""
    reporter = Reporter(recorder=FakeRecorder(), metrics=Metrics(version="test"), monotonic=FakeClock())
    with structlog.testing.capture_logs():
        for number in range(4200):
            notice = Notice(objects=(workload(0),), reason="R", message=str(number))
            reporter.tell(Plan(memory=Memory(), notices=(notice,)))
    assert (len(reporter._told), len(reporter._standing)) == (4097, 1)
