"""Tests of electors on a fake API server, mostly with a fake clock: at most one elector leads."""

from __future__ import annotations

import random
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner.kube import errors
from provisioner.kube.lease import LeaseElector
from tests.support.clock import FakeClock
from tests.support.kube import FakeKube

LEASES = "/apis/coordination.k8s.io/v1/namespaces/system/leases"
OURS = f"{LEASES}/tpu-provisioner"
ORIGINAL = f"{LEASES}/ecaf1259.google.com"


class Candidate:
    """An elector and the calls of its callbacks."""

    def __init__(self, kube: FakeKube, clock: FakeClock, identity: str = "pod-a", **parts: Any) -> None:
        self.told: list[str] = []
        self.clock = clock
        self.elector = LeaseElector(
            kube,
            namespace="system",
            identity=identity,
            on_started=lambda: self.told.append("started"),
            on_lost=lambda: self.told.append("lost"),
            clock=clock,
            now=clock.now,
            rng=random.Random(identity),
            **parts,
        )

    @property
    def leads(self) -> bool:
        return self.elector.is_leader

    def step(self, *, after_seconds: float = 0.0) -> Candidate:
        self.clock.advance(after_seconds)
        self.elector.step()
        return self


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def spec(kube: FakeKube, path: str = OURS) -> dict[str, Any]:
    lease = kube.object(path)
    assert lease is not None
    return dict(lease["spec"])


def held_by(holder: str, **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "x", "namespace": "system"},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": "2030-01-01T00:00:00.000000Z",
            "leaseTransitions": 4,
            **fields,
        },
    }


def _delay(kube: FakeKube, clock: FakeClock, method: str, *, seconds: float) -> None:
    real = getattr(kube, method)

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.advance(seconds)
        return real(*args, **kwargs)

    setattr(kube, method, slow)


def test_first_candidate_creates_the_lease(kube: FakeKube, clock: FakeClock) -> None:
    candidate = Candidate(kube, clock).step()
    assert (candidate.leads, candidate.told) == (True, ["started"])
    content = spec(kube)
    assert content["holderIdentity"] == candidate.elector.identity
    assert content["holderIdentity"].startswith("pod-a_")
    assert (content["leaseDurationSeconds"], content["leaseTransitions"]) == (30, 0)
    assert re.fullmatch(r"2026-01-01T00:16:40\.000000Z", content["renewTime"])
    assert content["acquireTime"] == content["renewTime"]


def test_renewal_changes_only_the_renew_time(kube: FakeKube, clock: FakeClock) -> None:
    """`leaseTransitions` and `acquireTime` change only if another process acquires the lease."""
    candidate = Candidate(kube, clock).step()
    before = spec(kube)
    candidate.step(after_seconds=5)
    after = spec(kube)
    assert after["renewTime"] > before["renewTime"]
    assert {**after, "renewTime": 0} == {**before, "renewTime": 0}
    assert candidate.told == ["started"]


def test_processes_of_the_same_name_have_different_identities(kube: FakeKube) -> None:
    parts: dict[str, Any] = {"namespace": "s", "identity": "host", "on_started": print, "on_lost": print}
    assert LeaseElector(kube, **parts).identity != LeaseElector(kube, **parts).identity


def test_other_controllers_have_separate_leases(kube: FakeKube, clock: FakeClock) -> None:
    """A controller waits only for holders of the leases that it names, so not always for the Go provisioner."""
    kube.put_object(ORIGINAL, held_by("go"))
    other = Candidate(kube, clock, "pod-b", leases=("other",)).step()
    assert other.leads
    assert not Candidate(kube, clock).step().leads
    assert spec(kube, f"{LEASES}/other")["holderIdentity"] == other.elector.identity
    assert not Candidate(kube, clock, "pod-c", leases=("other",)).step().leads
    other.elector.release()
    assert Candidate(kube, clock, "pod-c", leases=("other",)).step().leads


def test_remaining_time_starts_before_the_request(kube: FakeKube, clock: FakeClock) -> None:
    """A slow response reduces the remaining time. At the renewal deadline the time is 0, even if the thread hangs."""
    _delay(kube, clock, "post", seconds=4)
    candidate = Candidate(kube, clock).step()
    assert candidate.elector.remaining_seconds() == 26
    clock.advance(15.5)
    assert candidate.elector.remaining_seconds() == pytest.approx(10.5)
    clock.advance(0.5)
    assert candidate.elector.remaining_seconds() == 0


def test_other_holder_expires_by_the_clock_of_this_process(kube: FakeKube, clock: FakeClock) -> None:
    """Only the time for which the Lease is unchanged counts; renewTime may be wrong by years."""
    kube.put_object(OURS, held_by("other", renewTime="1999-01-01T00:00:00Z"))
    candidate = Candidate(kube, clock).step()
    assert not candidate.leads
    assert "held by another instance, other" in str(candidate.elector.problem)
    assert not candidate.step(after_seconds=14.9).leads
    kube.put_object(OURS, held_by("other", renewTime="1999-01-01T00:00:10Z"))
    assert not candidate.step(after_seconds=14.9).leads
    assert not candidate.step(after_seconds=14.9).leads
    assert candidate.step(after_seconds=0.1).leads
    content = spec(kube)
    assert content["leaseTransitions"] == 5
    assert content["acquireTime"] == content["renewTime"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"leaseDurationSeconds": None}, id="no duration"),
        pytest.param({"leaseDurationSeconds": "x"}, id="a duration in words"),
        pytest.param({"leaseDurationSeconds": -1}, id="a negative duration"),
        pytest.param({"leaseDurationSeconds": 10**9}, id="an endless duration"),
    ],
)
def test_invalid_duration_of_a_holder_is_replaced(kube: FakeKube, clock: FakeClock, fields: dict[str, Any]) -> None:
    """The holder must not be replaced immediately, and must not block candidates indefinitely."""
    kube.put_object(OURS, held_by("other", **fields))
    candidate = Candidate(kube, clock).step()
    assert not candidate.step(after_seconds=29).leads
    assert candidate.step(after_seconds=1).leads


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(held_by(""), id="an empty holder"),
        pytest.param(held_by("", holderIdentity=None), id="no holder"),
        pytest.param({"metadata": {}, "spec": None}, id="no spec"),
    ],
)
def test_free_lease_is_acquired_immediately(kube: FakeKube, clock: FakeClock, body: dict[str, Any]) -> None:
    """The last holder released the lease, or no holder has set its fields."""
    kube.put_object(OURS, body)
    assert Candidate(kube, clock).step().leads


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(errors.Unavailable("no route"), id="network"),
        pytest.param(errors.Unavailable("boom", status=500), id="5xx"),
        pytest.param(errors.Malformed("no JSON"), id="JSON"),
        pytest.param(errors.Unauthorized("token", status=401), id="401"),
        pytest.param(errors.Forbidden("rbac", status=403), id="403"),
        pytest.param(errors.TooManyRequests("slow"), id="429"),
        pytest.param(RuntimeError("a bug"), id="a bug"),
    ],
)
def test_lease_is_lost_at_the_deadline_if_renewals_fail(kube: FakeKube, clock: FakeClock, error: Exception) -> None:
    candidate = Candidate(kube, clock).step()
    kube.fail("*", "leases", error, times=10**6)
    for _ in range(3):
        candidate.step(after_seconds=5)
        assert candidate.leads
    assert candidate.told == ["started"]
    clock.advance(5)
    assert not candidate.leads
    candidate.step()
    assert candidate.told == ["started", "lost"]
    assert candidate.elector.problem is not None
    kube.clear_faults()
    candidate.step()
    assert (candidate.leads, candidate.told) == (True, ["started", "lost", "started"])
    assert candidate.elector.problem is None


def test_renewal_that_ends_after_the_deadline_loses_and_regains_the_lease(kube: FakeKube, clock: FakeClock) -> None:
    """The request is sent in time and ends too late. The remaining time counts from the request."""
    candidate = Candidate(kube, clock).step()
    _delay(kube, clock, "put", seconds=3)
    candidate.step(after_seconds=18)
    assert candidate.told == ["started", "lost", "started"]
    assert candidate.elector.remaining_seconds() == 27


def test_write_whose_response_was_lost_is_recognized(kube: FakeKube, clock: FakeClock) -> None:
    """The write took effect, so the next write conflicts with this process's own write."""
    candidate = Candidate(kube, clock)
    kube.fail("POST", "leases", errors.Unavailable("timed out"), after_effect=True)
    candidate.step()
    assert not candidate.leads
    assert candidate.step().leads
    kube.fail("PUT", "leases", errors.Unavailable("timed out"), after_effect=True)
    candidate.step(after_seconds=5)
    candidate.step(after_seconds=5)
    assert (candidate.leads, candidate.told) == (True, ["started"])
    assert candidate.elector.remaining_seconds() == 30
    assert spec(kube)["leaseTransitions"] == 0


@pytest.mark.parametrize("path", [OURS, ORIGINAL], ids=["own lease", "lease of the Go provisioner"])
def test_lease_that_another_client_took_ends_leadership(kube: FakeKube, clock: FakeClock, path: str) -> None:
    """A user edited the lease, or scaled the Go provisioner up again; the two must not run at the same time for long.

    If it is the own lease, the next write causes a conflict.
    """
    candidate = Candidate(kube, clock).step()
    kube.put_object(path, held_by("thief"))
    candidate.step(after_seconds=5)
    assert (candidate.leads, candidate.told) == (False, ["started", "lost"])
    assert spec(kube, path)["holderIdentity"] == "thief"


def test_deleted_lease_is_created_again(kube: FakeKube, clock: FakeClock) -> None:
    candidate = Candidate(kube, clock).step()
    kube.remove_object(OURS)
    candidate.step(after_seconds=5)
    assert (candidate.leads, candidate.told) == (True, ["started"])
    assert spec(kube)["holderIdentity"] == candidate.elector.identity


@pytest.mark.timeout(30)  # many random examples
def test_two_candidates_never_lead_at_the_same_time() -> None:
    """Calls of both candidates fail at random."""
    for seed in range(20):
        kube, clock, rng = FakeKube(), FakeClock(), random.Random(seed)
        candidates = [Candidate(kube, clock, f"pod-{number}") for number in range(2)]
        led = set()
        for moment in range(300):
            clock.advance(rng.uniform(0, 8))
            kube.clear_faults()
            if rng.random() < 0.5:
                kube.fail(
                    rng.choice(["*", "PUT", "GET"]),
                    "leases",
                    errors.Unavailable("cut off"),
                    times=rng.randint(1, 3),
                    after_effect=rng.random() < 0.5,
                )
            # One candidate steps more often, so that the other is sometimes late by more than the lease duration.
            favoured = candidates[moment // 50 % 2]
            (favoured if rng.random() < 0.95 else rng.choice(candidates)).step()
            leaders = [candidate for candidate in candidates if candidate.leads]
            assert len(leaders) <= 1, f"seed {seed}"
            led.update(candidate.elector.identity for candidate in leaders)
        assert len(led) == 2, f"seed {seed}: the test must see both lead"


def test_release_lets_a_successor_lead_immediately(kube: FakeKube, clock: FakeClock) -> None:
    """A rolling update must not wait for the lease to expire."""
    first, second = Candidate(kube, clock, "a").step(), Candidate(kube, clock, "b").step()
    assert (first.leads, second.leads) == (True, False)
    first.elector.release()
    assert (first.leads, first.told) == (False, ["started"])
    assert spec(kube)["holderIdentity"] == ""
    assert second.step().leads
    assert spec(kube)["leaseTransitions"] == 1


def test_release_does_not_change_a_lease_of_another_holder(kube: FakeKube, clock: FakeClock) -> None:
    """The write of the release has a resourceVersion, so it fails after another holder's write."""
    first = Candidate(kube, clock, "a").step()
    kube.put_object(OURS, held_by("thief"))
    first.elector.release()
    assert spec(kube)["holderIdentity"] == "thief"
    Candidate(kube, clock, "b").elector.release()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(
            errors.NotFound('namespaces "system" not found', status=404), "does namespace system exist", id="namespace"
        ),
        pytest.param(
            errors.Forbidden("leases is forbidden", status=403), "grant get, create and update on leases", id="RBAC"
        ),
    ],
)
def test_missing_namespace_or_permission_is_reported_and_retried(
    kube: FakeKube, clock: FakeClock, error: Exception, words: str
) -> None:
    kube.fail("POST", "leases", error)
    candidate = Candidate(kube, clock).step()
    assert not candidate.leads
    assert words in str(candidate.elector.problem)
    assert candidate.step().leads


# --- Lease of the Go provisioner ---


def test_lease_of_the_go_provisioner_is_acquired_after_it_expires(kube: FakeKube, clock: FakeClock) -> None:
    """The leases of both provisioners are renewed, and the smaller remaining time counts."""
    kube.put_object(ORIGINAL, held_by("go-pod"))
    candidate = Candidate(kube, clock).step()
    assert not candidate.leads
    assert "is held by the Go provisioner, go-pod" in str(candidate.elector.problem)
    candidate.step(after_seconds=10)
    candidate.step(after_seconds=5)
    assert candidate.leads
    for path in (OURS, ORIGINAL):
        assert spec(kube, path)["holderIdentity"] == candidate.elector.identity
    clock.advance(5)
    kube.fail("PUT", "ecaf1259", errors.Unavailable("cut off"))
    candidate.step()
    assert candidate.elector.remaining_seconds() == 25
    candidate.elector.release()
    assert (spec(kube, OURS)["holderIdentity"], spec(kube, ORIGINAL)["holderIdentity"]) == ("", "")


def test_followers_know_the_pod_of_the_leader(kube: FakeKube, clock: FakeClock) -> None:
    """`leader` is the name of the pod, without the suffix that distinguishes the pod's processes."""
    first, second = Candidate(kube, clock, "pod-a"), Candidate(kube, clock, "pod-b")
    assert first.elector.leader == ""
    assert [candidate.step().elector.leader for candidate in (first, second)] == ["pod-a", "pod-a"]
    first.elector.release()
    assert first.elector.leader == ""
    assert [candidate.step().elector.leader for candidate in (second, Candidate(kube, clock, "pod-c"))] == [
        "pod-b",
        "pod-b",
    ]


def test_leading_go_provisioner_is_known_to_the_holder(kube: FakeKube, clock: FakeClock) -> None:
    """Other candidates know only the holder of the first lease."""
    kube.put_object(ORIGINAL, held_by("go-pod_9e2c7d1a-5d8e-4b6f-8a47-3f6f0c1f2a11"))
    first, second = Candidate(kube, clock, "pod-a"), Candidate(kube, clock, "pod-b")
    assert [candidate.step().elector.leader for candidate in (first, second)] == ["go-pod", "pod-a"]


@pytest.mark.parametrize("holder", [None, 7, {"a": 1}, "x" * 100_000])
def test_invalid_name_of_the_holder_is_shown_as_a_short_text(kube: FakeKube, clock: FakeClock, holder: Any) -> None:
    kube.put_object(OURS, held_by(holder))
    leader = Candidate(kube, clock).step().elector.leader
    assert isinstance(leader, str)
    assert len(leader) <= 253


def test_leadership_continues_if_the_lease_of_the_go_provisioner_is_deleted(kube: FakeKube, clock: FakeClock) -> None:
    """A user deletes the Go provisioner's lease when the migration to this provisioner is complete."""
    kube.put_object(ORIGINAL, held_by(""))
    candidate = Candidate(kube, clock).step()
    assert spec(kube, ORIGINAL)["holderIdentity"] == candidate.elector.identity
    kube.remove_object(ORIGINAL)
    for _ in range(6):
        candidate.step(after_seconds=5)
    assert (candidate.leads, candidate.told) == (True, ["started"])
    assert kube.object(ORIGINAL) is None


def test_unreadable_lease_of_the_go_provisioner_does_not_count_as_absent(kube: FakeKube, clock: FakeClock) -> None:
    """An earlier confirmation remains valid until the deadline."""
    kube.fail("GET", "ecaf1259", errors.Unavailable("cut off"), times=10**6)
    candidate = Candidate(kube, clock).step()
    assert not candidate.leads
    kube.clear_faults()
    assert candidate.step().leads
    kube.fail("GET", "ecaf1259", errors.Unavailable("cut off"), times=10**6)
    assert candidate.step(after_seconds=19).leads
    assert not candidate.step(after_seconds=1).leads


def test_lease_of_the_go_provisioner_is_held_only_with_the_own_lease(kube: FakeKube, clock: FakeClock) -> None:
    """Otherwise, two candidates could wait for each other indefinitely."""
    kube.put_object(ORIGINAL, held_by(""))
    first, second = Candidate(kube, clock, "a"), Candidate(kube, clock, "b")
    kube.put_object(OURS, held_by(first.elector.identity))
    second.step()
    assert spec(kube, ORIGINAL)["holderIdentity"] == ""
    assert first.step().leads


# --- Thread of the elector ---


def test_thread_renews_until_release(kube: FakeKube) -> None:
    started = threading.Event()
    elector = LeaseElector(kube, namespace="system", identity="me", on_started=started.set, on_lost=lambda: None)
    elector.start()
    assert started.wait(5)
    assert 25 < elector.remaining_seconds() <= 30
    assert abs(datetime.now(UTC) - datetime.fromisoformat(spec(kube)["renewTime"])) < timedelta(minutes=10)
    elector.release()
    assert not elector._thread.is_alive()
    assert elector.remaining_seconds() == 0
    assert spec(kube)["holderIdentity"] == ""


def test_pauses_are_jittered_and_end_at_the_deadline(kube: FakeKube, clock: FakeClock) -> None:
    """Leadership must end at the deadline, not after the next pause."""
    candidate = Candidate(kube, clock).step()
    pauses = {candidate.elector.pause_seconds() for _ in range(20)}
    assert len(pauses) > 1
    assert all(4 <= pause <= 6 for pause in pauses)
    clock.advance(19)
    assert candidate.elector.pause_seconds() == pytest.approx(1)


def test_error_of_a_listener_does_not_stop_renewals(kube: FakeKube, clock: FakeClock) -> None:
    candidate = Candidate(kube, clock)

    def broken() -> None:
        raise RuntimeError("a bug")

    candidate.elector._on_started = broken
    assert candidate.step().leads
