"""Tests of ListWatch against literal sequences of events in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from provisioner.kube import errors
from provisioner.kube.fields import MalformedObject
from provisioner.kube.protocol import PAGE_SIZE
from provisioner.kube.reflector import Collection, WatchOptions
from provisioner.kube.watches import ListWatch
from provisioner.model.workloads import WorkloadKind
from provisioner.slices.observe import REQUIRED, make_watches
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube
from tests.support.objects import raw_jobset, raw_node, raw_pod
from tests.support.settings import settings
from tests.support.waiting import wait_for

THINGS = "/api/v1/things"
ROOT = "/apis/jobset.x-k8s.io/v1alpha2"


def thing(name: str, value: int = 0, *, uid: str = "", version: str = "200") -> dict[str, Any]:
    metadata = {"namespace": "n", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"metadata": metadata, "value": value}


def parse_thing(raw: dict[str, Any]) -> int | None:
    """Return the value of a thing, None if below zero. 13 is malformed, and 666 raises like a bug."""
    value = int(raw["value"])
    if value == 13:
        raise MalformedObject(f"thing {raw['metadata']['name']}: 13 is unlucky; take another number")
    if value == 666:
        raise RuntimeError("a bug")
    return value if value >= 0 else None


def event(kind: str, raw: Any) -> dict[str, Any]:
    return {"type": kind, "object": raw}


def bookmark(version: str) -> dict[str, Any]:
    return event("BOOKMARK", {"metadata": {"resourceVersion": version}})


class Harness:
    """A ListWatch of things on a FakeKube, driven step by step."""

    def __init__(
        self,
        *,
        page_size: int = PAGE_SIZE,
        wait: Callable[[float], None] | None = None,
        quiet: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.kube = FakeKube()
        self.clock = FakeClock()
        self.changes = 0
        self.watch: ListWatch[int] = ListWatch(
            self.kube,
            Collection(name="things", resource="things", query={"labelSelector": ""}),
            parse=parse_thing,
            on_change=self._changed,
            quiet=quiet,
            options=WatchOptions(clock=self.clock, rng=random.Random(1), page_size=page_size),
            wait=wait,
        )

    def _changed(self) -> None:
        self.changes += 1

    def put(self, *things: dict[str, Any]) -> None:
        for raw in things:
            self.kube.put_object(f"{THINGS}/{raw['metadata']['name']}", raw)

    def values(self) -> dict[str, int]:
        return {name: value for (_, name), value in self.watch.records().items()}

    def play(self, *lines: Any) -> float:
        self.kube.script(THINGS, *lines)
        return self.watch.step()

    def on_next_page(self, act: Callable[[], object], *, after: bool = False) -> None:
        """Call a function once, before or after the next page of a list is read."""
        read = self.kube.list_page

        def once(*args: Any, **kwargs: Any) -> Any:
            self.kube.list_page = read  # type: ignore[method-assign]
            if after:
                page = read(*args, **kwargs)
                act()
                return page
            act()
            return read(*args, **kwargs)

        self.kube.list_page = once  # type: ignore[method-assign]

    def queries(self, method: str) -> list[dict[str, str]]:
        return [call.query for call in self.kube.calls if call.method == method]


@contextmanager
def quiet_watch(clock: FakeClock, seconds: float) -> Iterator[tuple[bytes, ...]]:
    clock.advance(seconds)
    yield ()


@pytest.fixture
def harness() -> Harness:
    started = Harness()
    started.put(thing("a", 1), thing("b", 2))
    assert started.watch.step() == 0
    started.changes = 0
    return started


def test_list_of_several_pages_is_one_change() -> None:
    """Readers see the complete list or none of it."""
    harness = Harness(page_size=2)
    harness.put(*(thing(f"t{number}", number) for number in range(5)))
    assert (harness.watch.synced, harness.values()) == (False, {})
    harness.watch.step()
    assert harness.values() == {f"t{number}": number for number in range(5)}
    assert (harness.watch.synced, harness.changes, len(harness.kube.calls)) == (True, 1, 3)


def _with_quiet_changes() -> Harness:
    """Return a watch of a (1) and b (20), in which changes of a last digit are quiet."""
    harness = Harness(quiet=lambda before, after: before // 10 == after // 10)
    harness.put(thing("a", 1), thing("b", 20))
    harness.watch.step()
    harness.changes = 0
    return harness


@pytest.mark.parametrize(
    ("lines", "changes", "values"),
    [
        pytest.param([event("MODIFIED", thing("a", 2))], 0, {"a": 2, "b": 20}, id="a change of nothing to act on"),
        pytest.param([event("MODIFIED", thing("a", 11))], 1, {"a": 11, "b": 20}, id="a change of more"),
        pytest.param(
            [event("MODIFIED", thing("a", 2)), event("DELETED", thing("b", 20))], 1, {"a": 2}, id="one that is gone"
        ),
        pytest.param([event("ADDED", thing("c", 1))], 1, {"a": 1, "b": 20, "c": 1}, id="one that is new"),
        pytest.param([event("MODIFIED", thing("a", -1))], 1, {"b": 20}, id="one that is not wanted any more"),
    ],
)
def test_quiet_change_is_kept_without_notification(lines: list[Any], changes: int, values: dict[str, int]) -> None:
    harness = _with_quiet_changes()
    harness.play(*lines)
    assert (harness.changes, harness.values()) == (changes, values)


@pytest.mark.parametrize(
    ("things", "changes"),
    [
        pytest.param([thing("a", 2), thing("b", 20)], 0, id="nothing to act on"),
        pytest.param([thing("a", 2), thing("b", 30)], 1, id="more"),
        pytest.param([thing("a", 2)], 1, id="one that is gone"),
        pytest.param([thing("a", 2), thing("b", 20), thing("c", 1)], 1, id="one that is new"),
    ],
)
def test_list_after_a_gap_notifies_unless_all_changes_are_quiet(things: list[dict[str, Any]], changes: int) -> None:
    harness = _with_quiet_changes()
    for name in ("a", "b"):
        harness.kube.remove_object(f"{THINGS}/{name}")
    harness.put(*things)
    harness.kube.fail("WATCH", THINGS, errors.Gone("too old"))
    harness.watch.step()
    harness.watch.step()
    assert harness.changes == changes
    assert harness.values() == {raw["metadata"]["name"]: raw["value"] for raw in things}


def test_list_that_expires_between_pages_starts_again() -> None:
    """A continue token is valid for five minutes. An incomplete list has no effect."""
    harness = Harness(page_size=2)
    harness.put(*(thing(f"t{number}", number) for number in range(3)))
    harness.on_next_page(harness.kube.compact, after=True)
    assert harness.watch.step() > 0
    assert (harness.watch.synced, harness.values()) == (False, {})
    # Callers that wait for the first list show `problem`.
    assert "list of things takes longer than the API server keeps it: " in str(harness.watch.problem)
    harness.watch.step()
    assert (harness.watch.synced, len(harness.values()), harness.watch.problem) == (True, 3, None)


@pytest.mark.parametrize(
    ("lines", "want", "changes"),
    [
        pytest.param([event("ADDED", thing("c", 3))], {"a": 1, "b": 2, "c": 3}, 1, id="added"),
        pytest.param([event("MODIFIED", thing("a", 9))], {"a": 9, "b": 2}, 1, id="modified"),
        pytest.param([event("DELETED", thing("a"))], {"b": 2}, 1, id="deleted"),
        pytest.param([event("MODIFIED", thing("a", -1))], {"b": 2}, 1, id="modified to something unwanted"),
        pytest.param([event("ADDED", thing("c", -1))], {"a": 1, "b": 2}, 0, id="an unwanted one"),
        pytest.param([event("MODIFIED", thing("a", 1))], {"a": 1, "b": 2}, 0, id="no difference to us"),
        pytest.param([event("ADDED", thing("a", 1))] * 3, {"a": 1, "b": 2}, 0, id="duplicates"),
        pytest.param(
            [event("MODIFIED", thing("a", 9, uid="new")), event("DELETED", thing("a", uid="uid-a"))],
            {"a": 9, "b": 2},
            1,
            id="a late delete of the old namesake",
        ),
        pytest.param([event("DELETED", thing("zzz"))], {"a": 1, "b": 2}, 0, id="delete of an unknown one"),
        pytest.param(
            [event("MODIFIED", thing("a", 5, version="900")), event("MODIFIED", thing("a", 6, version="3"))],
            {"a": 6, "b": 2},
            2,
            id="versions are not compared, the order of the stream counts",
        ),
        pytest.param(
            [event("NEWS", thing("c", 3)), event("ADDED", thing("d", 4))],
            {"a": 1, "b": 2, "d": 4},
            1,
            id="an unknown type is passed over",
        ),
        pytest.param(
            [event("MODIFIED", thing("a", 13)), event("ADDED", thing("c", 3))],
            {"a": 1, "b": 2, "c": 3},
            1,
            id="a malformed object keeps its last good record, and the next has its turn",
        ),
        pytest.param(
            [event("MODIFIED", thing("a", 13, uid="new")), event("ADDED", thing("c", 3))],
            {"b": 2, "c": 3},
            2,
            id="a malformed namesake does not inherit a record",
        ),
        pytest.param(
            [event("MODIFIED", thing("a", 666)), event("ADDED", thing("c", 3))],
            {"a": 1, "b": 2, "c": 3},
            1,
            id="a bug in parsing costs only its object",
        ),
        pytest.param([event("ADDED", {"metadata": None, "value": 1})], None, 1, id="an object without a name"),
    ],
)
def test_events_change_the_records(
    harness: Harness, lines: list[Any], want: dict[str, int] | None, changes: int
) -> None:
    harness.play(*lines)
    if want is not None:
        assert want == harness.values()
    assert changes == harness.changes


def test_malformed_object_is_logged_once(harness: Harness) -> None:
    """Otherwise, each status update would repeat the log line."""
    with structlog.testing.capture_logs() as logs:
        harness.play(*[event("ADDED", thing("x", 13))] * 3)
        harness.play(event("ADDED", thing("x", 13)))
    assert [line["event"] for line in logs].count("watch.object_skipped") == 1


def test_snapshot_never_changes_and_is_reused(harness: Harness) -> None:
    """Readers may keep a snapshot. Without a change, no copy is made."""
    before = harness.watch.records()
    harness.play(bookmark("300"))
    assert harness.watch.records() is before
    harness.play(event("ADDED", thing("c", 3)))
    assert len(before) == 2
    assert len(harness.watch.records()) == 3
    with pytest.raises(TypeError):
        before["n", "x"] = 1  # type: ignore[index]


def test_absence_from_a_list_does_not_count_as_seen_deletion(harness: Harness) -> None:
    """If many workloads are absent without a DELETED event, their pools are deleted one at a time."""
    harness.play(event("DELETED", thing("a", uid="uid-a")))
    harness.kube.remove_object(f"{THINGS}/b")
    harness.play(event("ERROR", {"code": 410, "reason": "Expired"}))
    harness.play()
    assert [harness.watch.seen_deleted(uid) for uid in ("uid-a", "uid-b")] == [True, False]


@pytest.mark.parametrize("seen_by", ["an event", "a list"])
def test_object_that_is_no_longer_wanted_counts_as_deleted(harness: Harness, seen_by: str) -> None:
    """For example, a user removes the annotation SERVE of a Job: the Job's absence from the records has a cause."""
    if seen_by == "an event":
        harness.play(event("MODIFIED", thing("a", -1)))
    else:
        harness.put(thing("a", -1))
        harness.play(event("ERROR", {"code": 410, "reason": "Expired"}))
        harness.play()
    assert harness.values() == {"b": 2}
    assert [harness.watch.seen_deleted(uid) for uid in ("uid-a", "uid-b")] == [True, False]


def test_deletions_of_unwanted_objects_are_not_recorded(harness: Harness) -> None:
    """Many unwanted objects would otherwise displace the UIDs of wanted ones."""
    unwanted = [thing(f"other-{number}", -1, uid=f"uid-{number}") for number in range(3)]
    harness.play(*(event("ADDED", raw) for raw in unwanted), event("ADDED", thing("c", 13, uid="uid-malformed")))
    gone = (*unwanted, thing("a", uid="uid-a"), thing("c", 13, uid="uid-malformed"))
    harness.play(*(event("DELETED", raw) for raw in gone))
    seen = [raw["metadata"]["uid"] for raw in gone if harness.watch.seen_deleted(raw["metadata"]["uid"])]
    assert seen == ["uid-a", "uid-malformed"]


def test_watch_continues_from_the_last_version(harness: Harness) -> None:
    listed = str(harness.kube._version)
    harness.play(event("ADDED", thing("c", version="500")))
    harness.play(bookmark("600"))
    harness.play(event("DELETED", thing("c", version="700")), event("WHAT", thing("c", version="9999")))
    harness.play()
    queries = harness.queries("WATCH")
    assert [query["resourceVersion"] for query in queries] == [listed, "500", "600", "700"]
    assert {query["allowWatchBookmarks"] for query in queries} == {"true"}
    assert all(45 <= int(query["timeoutSeconds"]) <= 60 for query in queries)
    assert len({query["timeoutSeconds"] for query in queries}) > 1


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(event("ERROR", {"code": 410, "reason": "Expired"}), id="an ERROR event"),
        pytest.param(event("ERROR", {"reason": "Expired"}), id="an ERROR event without a code"),
        pytest.param(errors.Gone("too old", status=410), id="HTTP 410"),
    ],
)
def test_list_after_410_shows_deleted_and_added_objects(harness: Harness, failure: Any) -> None:
    harness.kube.remove_object(f"{THINGS}/b")
    harness.put(thing("c", 3))
    if isinstance(failure, Exception):
        harness.kube.fail("WATCH", THINGS, failure)
        assert harness.watch.step() > 0
    else:
        assert harness.play(failure) > 0
    assert (harness.watch.synced, harness.values()) == (True, {"a": 1, "b": 2})
    harness.watch.step()
    assert (harness.values(), harness.changes) == ({"a": 1, "c": 3}, 1)


def test_new_list_keeps_equal_records(harness: Harness) -> None:
    """Equal records of the old and the new list must not take memory twice."""
    harness.watch._parse = lambda raw: (raw["value"],)  # type: ignore[assignment, return-value]
    harness.play(event("ERROR", {"code": 410}))
    harness.watch.step()
    before, harness.changes = harness.watch.records(), 0
    harness.play(event("ERROR", {"code": 410}))
    harness.watch.step()
    assert harness.changes == 0
    harness.put(thing("a", 9))
    harness.play(event("ERROR", {"code": 410}))
    harness.watch.step()
    after = harness.watch.records()
    assert dict(after) == {("n", "a"): (9,), ("n", "b"): (2,)}
    assert after["n", "b"] is before["n", "b"]


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(errors.Unavailable("nothing was heard for 90 s"), id="a hung watch"),
        pytest.param(errors.Unavailable("the stream broke"), id="a dropped watch"),
        pytest.param(event("ERROR", {"code": 500, "message": "etcd"}), id="an ERROR event that is not 410"),
        pytest.param(b"{not json", id="a line that is no JSON"),
    ],
)
def test_broken_watch_continues_from_the_last_version(harness: Harness, failure: Any) -> None:
    """A list of thousands of objects is not repeated after a lost connection."""
    assert harness.play(bookmark("555"), failure) > 0
    assert harness.watch.synced
    assert harness.watch.problem is not None
    harness.play(bookmark("556"))
    assert harness.queries("WATCH")[-1]["resourceVersion"] == "555"
    assert len(harness.queries("GET")) == 1
    assert harness.watch.problem is None


def test_version_that_the_server_never_accepts_causes_a_new_list(harness: Harness) -> None:
    """After a restore of etcd, the version is in the future, and the server responds with a time-out, not with 410."""
    harness.kube.fail("WATCH", THINGS, errors.Unavailable("Too large resource version", status=504), times=3)
    for _ in range(3):
        harness.watch.step()
    assert len(harness.queries("GET")) == 1
    harness.watch.step()
    assert len(harness.queries("GET")) == 2


def test_pauses_grow_to_a_maximum_and_are_reset_by_a_success(harness: Harness) -> None:
    """Pauses grow from 0.2 s to 30 s. Jitter reduces each pause, at most by half."""
    harness.kube.fail("*", THINGS, errors.Unavailable("down", status=503), times=12)
    pauses = [harness.watch.step() for _ in range(12)]
    for number, pause in enumerate(pauses):
        step = min(30.0, 0.2 * 2**number)
        assert step / 2 <= pause <= step
    harness.watch.step()
    harness.play(bookmark("1000"), errors.Unavailable("down"))
    assert harness.play(bookmark("1000"), errors.Unavailable("down")) <= 0.2


def test_watch_that_ends_immediately_causes_a_pause(harness: Harness) -> None:
    """A watch without events counts as failed only if it ends immediately."""
    assert [harness.play() > 0, harness.play() > 0.1] == [True, True]
    assert harness.watch.problem is not None
    harness.kube.stream = lambda *args, **kwargs: quiet_watch(harness.clock, 60)  # type: ignore[assignment, return-value]
    assert harness.watch.step() == 0
    assert harness.watch.problem is None


def test_watch_that_ends_after_one_event_causes_a_pause(harness: Harness) -> None:
    """An event resets the pauses, but not to zero."""
    assert all(harness.play(bookmark(str(300 + number))) >= 0.1 for number in range(5))


def test_pause_requested_by_the_server_is_limited(harness: Harness) -> None:
    harness.kube.fail("WATCH", THINGS, errors.TooManyRequests("slow down", retry_after_seconds=20))
    assert harness.watch.step() >= 20
    harness.kube.fail("WATCH", THINGS, errors.TooManyRequests("slow down", retry_after_seconds=86400))
    assert harness.watch.step() == 60


def test_watch_without_contact_is_not_fresh(harness: Harness) -> None:
    assert harness.watch.fresh(max_silence_seconds=100)
    harness.clock.advance(101)
    assert not harness.watch.fresh(max_silence_seconds=100)
    harness.play(bookmark("300"))
    assert harness.watch.fresh(max_silence_seconds=100)
    harness.clock.advance(101)
    harness.play(errors.Unavailable("nothing was heard"))
    assert not harness.watch.fresh(max_silence_seconds=100)
    assert harness.watch.synced


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        pytest.param(60, True, id="ended by the server at the agreed time"),
        pytest.param(20, False, id="ended early, by whomever"),
    ],
)
def test_quiet_watch_of_full_length_counts_as_contact(harness: Harness, seconds: int, *, want: bool) -> None:
    """Real servers may send no bookmark without changes, so a quiet cluster must not look like a hung watch."""
    harness.kube.stream = lambda *args, **kwargs: quiet_watch(harness.clock, seconds)  # type: ignore[assignment, return-value]
    for _ in range(5):
        assert harness.watch.step() == 0
    assert want is harness.watch.fresh(max_silence_seconds=90)
    assert len(harness.queries("GET")) == 1


def test_slow_list_counts_as_contact_at_its_start() -> None:
    """The first page may be outdated when the last one arrives."""
    harness = Harness()
    harness.on_next_page(lambda: harness.clock.advance(70))
    harness.watch.step()
    assert harness.watch.last_contact_monotonic == 1000.0
    assert not harness.watch.fresh(max_silence_seconds=60)


def test_missing_kind_keeps_its_records_and_is_not_synced() -> None:
    kube, changes = FakeKube(), []
    kube.put_object(f"{ROOT}/namespaces/default/jobsets/train", raw_jobset())
    clock = FakeClock()
    options = WatchOptions(clock=clock)
    parts = make_watches(kube, settings(), lambda: changes.append(1), options=options).workloads[WorkloadKind.JOBSET]
    (watch,) = parts.parts  # type: ignore[attr-defined]
    watch.step()
    assert (parts.synced, len(parts.records()), len(changes)) == (True, 1, 1)
    kube.uninstall(f"{ROOT}/jobsets")
    pauses = [watch.step() for _ in range(12)]
    assert not parts.synced
    assert not parts.fresh(max_silence_seconds=1e9)
    assert len(parts.records()) == 1
    assert len(changes) == 2
    assert parts.missing
    assert "the JobSet CRD is not installed" in str(parts.problem)
    assert f"404 on {ROOT}/jobsets" in str(parts.problem)
    assert 0 < max(pauses) <= 10
    clock.advance(3600)
    assert parts.missing_seconds() == 3600
    # Only a response 404 shows that the kind is missing, so any other failure restarts the count of seconds.
    kube.fail("GET", f"{ROOT}/jobsets", errors.Unavailable("no answer"))
    watch.step()
    clock.advance(3600)
    assert (parts.missing, parts.missing_seconds()) == (False, 0)
    watch.step()
    clock.advance(60)
    assert (parts.missing, parts.missing_seconds()) == (True, 60)
    kube.install(f"{ROOT}/jobsets")
    watch.step()
    assert parts.missing_seconds() == 0
    assert (parts.synced, parts.problem, parts.missing) == (True, None, False)


def test_missing_jobset_kind_is_logged_once_as_a_warning() -> None:
    kube = FakeKube()
    kube.uninstall(f"{ROOT}/jobsets")
    (watch,) = make_watches(kube, settings(), lambda: None).workloads[WorkloadKind.JOBSET].parts  # type: ignore[attr-defined]
    with capture_logs() as logs:
        for _ in range(3):
            watch.step()
    assert [(line["log_level"], line["event"]) for line in logs] == [("warning", "watch.failed")]


def test_start_without_the_optional_apis_logs_no_warning() -> None:
    """Users of a new cluster, which has JobSet and Kubernetes' own APIs and no other kinds, need not act."""
    kube = FakeKube()
    watches = make_watches(kube, settings(), lambda: None).named()
    # Kubernetes serves PodTemplates in each cluster, so this kind is never missing.
    optional = [watch for name, watch in watches.items() if name not in REQUIRED | {"podtemplates"}]
    parts = [part for watch in optional for part in getattr(watch, "parts", (watch,))]
    for part in parts:
        kube.uninstall(part.path)
    with capture_logs() as logs:
        for part in parts:
            part.step()
    assert [(line["log_level"], line["event"]) for line in logs] == [("info", "watch.not_installed")] * len(parts)


def test_missing_permission_is_reported_with_verb_and_resource(harness: Harness) -> None:
    harness.kube.fail("WATCH", THINGS, errors.Forbidden("things is forbidden", status=403))
    assert 0 < harness.watch.step() <= 10
    assert not harness.watch.synced
    for words in (
        "RBAC does not allow the provisioner to watch things",
        "get, list and watch on things",
        "things is forbidden",
    ):
        assert words in str(harness.watch.problem)


def test_unexpected_error_does_not_end_the_watch(harness: Harness) -> None:
    harness.kube.fail("WATCH", THINGS, RuntimeError("a bug"))
    assert harness.watch.step() > 0
    harness.watch.step()
    assert harness.watch.synced

    def broken() -> None:
        raise RuntimeError("a bug in the listener")

    harness.watch._on_change = broken
    harness.play(event("ADDED", thing("c", 3)))
    assert harness.values()["c"] == 3


def test_invalid_records_are_not_synced_until_a_list_has_parsed_all_objects_again() -> None:
    """A list in progress may have parsed objects before the call, so the list ends early without an effect."""
    harness = Harness(page_size=1)
    harness.put(thing("a", 1), thing("b", 2))
    harness.on_next_page(harness.watch.invalidate, after=True)
    assert harness.watch.step() == 0
    assert (harness.watch.synced, harness.values(), len(harness.kube.calls)) == (False, {}, 1)
    assert harness.watch.step() == 0
    assert (harness.watch.synced, harness.changes) == (True, 1)
    harness.watch.invalidate()
    harness.kube.fail("GET", THINGS, errors.Unavailable("the API server is starting", status=503))
    assert harness.watch.step() > 0
    assert not harness.watch.synced
    assert "list of things failed: the API server is starting" in str(harness.watch.problem)
    harness.watch.step()
    assert (harness.watch.synced, harness.watch.problem, harness.changes) == (True, None, 2)


def test_invalidate_during_the_last_page_of_a_list_causes_another_list(harness: Harness) -> None:
    harness.on_next_page(harness.watch.invalidate)
    harness.watch.invalidate()
    harness.watch.step()
    assert not harness.watch.synced
    harness.watch.step()
    assert harness.watch.synced


def test_invalidate_ends_the_watch_and_its_end_counts_as_no_failure(harness: Harness) -> None:
    with capture_logs() as logs:
        harness.watch.start()
        try:
            assert harness.kube.wait_for_streams(1)
            harness.watch.invalidate()
            wait_for(lambda: harness.watch.synced and len(harness.kube.calls) == 4)
        finally:
            harness.watch.stop()
    assert not harness.watch._thread.is_alive()
    # The second stop has no effect.
    harness.watch.stop()
    assert [call.method for call in harness.kube.calls] == ["GET", "WATCH", "GET", "WATCH"]
    assert "watch.failed" not in [line["event"] for line in logs]


@pytest.mark.parametrize("end", [event("MODIFIED", thing("a", 9)), errors.Unavailable("connection reset")])
def test_lines_and_errors_of_a_watch_after_invalidate_are_ignored(harness: Harness, end: Any) -> None:
    harness.watch._on_change = harness.watch.invalidate
    assert harness.play(event("MODIFIED", thing("a", 5)), end) == 0
    assert (harness.values(), harness.watch.synced, harness.watch.problem) == ({"a": 5, "b": 2}, False, None)


def test_thread_waits_after_each_failure() -> None:
    """An unreachable server must not be called again immediately."""
    pauses: list[float] = []
    harness = Harness(wait=pauses.append)
    harness.kube.fail("*", THINGS, errors.Unavailable("down", status=503), times=3)
    harness.watch.start()
    try:
        wait_for(lambda: harness.watch.synced)
    finally:
        harness.watch.stop()
    assert [0.1 * 2**number <= pause for number, pause in enumerate(pauses)] == [True] * 3


def test_pods_of_several_namespaces_are_combined() -> None:
    kube = FakeKube()
    for namespace in ("one", "two", "three"):
        kube.put_object(f"/api/v1/namespaces/{namespace}/pods/p", raw_pod("p", namespace=namespace))
    kube.put_object("/api/v1/namespaces/one/pods/web", raw_pod("web", metadata={"labels": {}}))
    woken = threading.Event()
    pods = make_watches(kube, settings(namespaces=("one", "two", "one"), serve_pods="none"), woken.set).pods
    pods.start()
    try:
        wait_for(lambda: pods.synced)
        assert set(pods.records()) == {("one", "p"), ("two", "p")}
        assert pods.records() is pods.records()
        assert kube.wait_for_streams(2)
        woken.clear()
        finished = raw_pod("p", namespace="one", status={"phase": "Succeeded"})
        kube.put_object("/api/v1/namespaces/one/pods/p", finished)
        assert woken.wait(5)
        # A change in another namespace may have set the event before, so the test waits for the records.
        wait_for(lambda: set(pods.records()) == {("two", "p")})
        assert pods.fresh(max_silence_seconds=60)
        assert pods.problem is None
    finally:
        pods.stop()
    wait_for(lambda: kube.open_streams() == 0)


def test_nodes_and_namespaces_have_their_selectors() -> None:
    kube = FakeKube()
    kube.put_object("/api/v1/nodes/ours", raw_node("ours"))
    kube.put_object(
        "/api/v1/nodes/other", raw_node("other", metadata={"labels": {"cloud.google.com/gke-nodepool": "x"}})
    )
    kube.put_object("/api/v1/namespaces/default", {"metadata": {"name": "default", "labels": {"team": "a"}}})
    made = make_watches(kube, settings(opt_in_label=("team", "a")), lambda: None)
    assert made.namespaces is not None
    for watch in (made.nodes, made.namespaces):
        assert isinstance(watch, ListWatch)
        watch.step()
    assert set(made.nodes.records()) == {("", "ours")}
    assert made.namespaces.records()["", "default"] == {"team": "a"}
