"""Keeper of certificates: replicas serve the same keys, webhooks trust them, and failures are reported or repaired."""

from __future__ import annotations

import base64
import os
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import rsa

from provisioner.admission.keeper import Keeper, make_keys
from provisioner.admission.rotation import STEP, Keys, State, read_state, trusted, write_state
from provisioner.kube import errors
from tests.support.kube import FakeKube

SECRET = "/api/v1/namespaces/system/secrets/webhook"
#: Secret without data, as in the manifests.
EMPTY = {"metadata": {"name": "webhook"}}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tpu"
NAMES = ["webhook.system.svc"]


class Clock:
    """A clock that is set by hand."""

    now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def configuration(*names: str, bundle: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": "tpu"},
        "webhooks": [
            {"name": name, "clientConfig": {"service": {"name": "webhook"}, "caBundle": bundle}, "rules": []}
            for name in names
        ],
    }


def keeper(kube: FakeKube, clock: Clock) -> Keeper:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return Keeper(
        api=kube, namespace="system", secret="webhook", names=NAMES, configuration="tpu", context=context, now=clock
    )


def stored(kube: FakeKube) -> Any:
    raw: Any = kube.object(SECRET)
    return read_state({key: base64.b64decode(value).decode() for key, value in raw["data"].items()})


def bundles(kube: FakeKube) -> list[str]:
    raw: Any = kube.object(MUTATING)
    return [base64.b64decode(webhook["clientConfig"]["caBundle"]).decode() for webhook in raw["webhooks"]]


def weak_keys() -> Keys:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("provisioner.runtime.authority.new_key", lambda: rsa.generate_private_key(65537, 1024))
        return make_keys(NAMES, now=Clock().now, valid=STEP)


@pytest.fixture
def kube() -> FakeKube:
    fake = FakeKube()
    fake.put_object(MUTATING, configuration("a.tpu", "b.tpu"))
    fake.put_object(SECRET, EMPTY)
    return fake


def test_first_step_creates_shares_announces_and_serves_keys(kube: FakeKube):
    first = keeper(kube, Clock())
    first.step()
    assert first.problem == ""
    assert bundles(kube) == [trusted(stored(kube))] * 2
    raw: Any = kube.object(MUTATING)
    assert raw["webhooks"][0]["clientConfig"]["service"] == {"name": "webhook"}


def test_two_replicas_that_write_at_the_same_time_serve_the_same_keys(kube: FakeKube):
    clock = Clock()
    first, second = keeper(kube, clock), keeper(kube, clock)
    real_put = kube.put

    def put_later(*args: Any, **kwargs: Any) -> Any:
        kube.put = real_put  # type: ignore[method-assign]
        second.step()
        return real_put(*args, **kwargs)

    kube.put = put_later  # type: ignore[method-assign]
    first.step()
    assert first.problem == second.problem == ""
    assert bundles(kube) == [trusted(stored(kube))] * 2
    assert first._served == second._served


def test_step_without_due_work_writes_nothing(kube: FakeKube):
    only = keeper(kube, clock := Clock())
    only.step()
    kube.calls.clear()
    clock.now += timedelta(minutes=1)
    only.step()
    assert {call.method for call in kube.calls} == {"GET"}


def test_new_keys_are_not_served_before_the_webhooks_trust_them(kube: FakeKube):
    only = keeper(kube, clock := Clock())
    only.step()
    first = only._served
    clock.now += timedelta(days=60)
    kube.fail("PATCH", "mutatingwebhook", errors.Forbidden("no"), times=1000)
    for _ in range(5):
        only.step()
        assert "no" in only.problem
        clock.now += STEP
    assert only._served == first
    kube.clear_faults()
    only.step()
    assert only._served == first
    clock.now += STEP
    only.step()
    assert only._served != first
    assert only.problem == ""


@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_restarted_replica_serves_the_secret_if_a_webhook_configuration_is_forbidden(kube: FakeKube, kind: str):
    """Otherwise, if the permission is missing, each replica would stop answering after its next restart."""
    validating = MUTATING.replace("mutating", "validating")
    kube.put_object(validating, configuration("c.tpu"))
    keeper(kube, clock := Clock()).step()
    first = stored(kube).present
    kube.fail("GET", f"{kind}webhook", errors.Forbidden("no such permission"), times=1000)
    restarted = keeper(kube, clock)
    restarted.step()
    assert restarted.serving
    assert restarted._served == first
    assert f"{kind.title()}WebhookConfiguration tpu cannot be read: no such permission" in restarted.problem
    # The readable configuration is maintained, but keys that only this configuration trusts are not served.
    readable = {"mutating": validating, "validating": MUTATING}[kind]
    kube.put_object(readable, configuration("a.tpu"))
    clock.now += timedelta(days=60)
    for _ in range(5):
        restarted.step()
        clock.now += STEP
    raw: Any = kube.object(readable)
    assert base64.b64decode(raw["webhooks"][0]["clientConfig"]["caBundle"]).decode() == trusted(stored(kube))
    assert restarted._served == first
    kube.clear_faults()
    for _ in range(2):
        restarted.step()
        clock.now += STEP
    assert restarted.problem == ""
    assert restarted._served == stored(kube).present != first


def test_restarted_replica_serves_the_secret_if_it_cannot_be_written(kube: FakeKube):
    """Otherwise, a missing permission would stop all reviews at the first restart in the last month of the keys."""
    keeper(kube, clock := Clock()).step()
    first = stored(kube).present
    kube.fail("PUT", "secrets", errors.Forbidden("no such permission"), times=1000)
    clock.now += timedelta(days=61)
    restarted = keeper(kube, clock)
    for passed, is_serving in ((timedelta(), True), (STEP, True), (timedelta(days=29), False)):
        clock.now += passed
        restarted.step()
        assert restarted.serving == is_serving
        assert "no such permission" in restarted.problem
    assert restarted._served == first
    # A replica that starts after the keys have expired does not serve them.
    late = keeper(kube, clock)
    late.step()
    assert (late._served, "no such permission" in late.problem) == (None, True)


def test_one_webhook_configuration_of_two_is_enough(kube: FakeKube):
    both = keeper(kube, Clock())
    both.step()
    assert both.problem == ""
    kube.put_object(MUTATING.replace("mutating", "validating"), configuration("c.tpu"))
    kube.remove_object(MUTATING)
    both.step()
    assert both.problem == ""
    kube.remove_object(MUTATING.replace("mutating", "validating"))
    both.step()
    assert "MutatingWebhookConfiguration tpu or ValidatingWebhookConfiguration tpu does not exist;" in both.problem
    kube.put_object(MUTATING, configuration("a.tpu", bundle="bm9uc2Vuc2U="))
    both.step()
    assert both.problem == ""
    assert bundles(kube) == [trusted(stored(kube))]


@pytest.mark.parametrize("data", [{"tls.crt": "!"}, {"tls.crt": 5}, "x", None, {"tls.crt": "//8="}], ids=str)
def test_a_damaged_secret_is_replaced(kube: FakeKube, data: Any):
    kube.put_object(SECRET, {"metadata": {"name": "webhook"}, "data": data})
    only = keeper(kube, Clock())
    only.step()
    assert only.problem == ""
    assert stored(kube).present is not None


@pytest.mark.parametrize("written", [State(), State(present=weak_keys())], ids=["emptied", "not to be served"])
def test_overwritten_secret_does_not_interrupt_trusted_serving(kube: FakeKube, written: State):
    clock = Clock()
    first, second = keeper(kube, clock), keeper(kube, clock)
    for replica in (first, second):
        replica.step()
    served: Any = first._served
    data = {key: base64.b64encode(text.encode()).decode() for key, text in write_state(written).items()}
    kube.put_object(SECRET, {**EMPTY, "data": data})
    first.step()
    second.step()
    assert first._served == second._served == served
    assert bundles(kube)[0].startswith(served.authority_pem)
    clock.now += STEP
    for replica in (first, second):
        replica.step()
        assert replica.problem == ""
    assert first._served == second._served != served
    assert served.authority_pem in bundles(kube)[0]


def test_too_many_open_files_damage_no_keys(kube: FakeKube, monkeypatch: pytest.MonkeyPatch):
    only = keeper(kube, Clock())
    only.step()
    before = stored(kube)
    with monkeypatch.context() as patched:
        patched.setattr("os.memfd_create", os.stat)
        only.step()
        assert only.serving
    assert ("cannot be served: [Errno" in only.problem, stored(kube)) == (True, before)


def test_deleted_secret_is_reported_by_name(kube: FakeKube):
    only = keeper(kube, Clock())
    only.step()
    kube.remove_object(SECRET)
    late = keeper(kube, Clock())
    for replica in (only, late):
        replica.step()
        assert "Secret system/webhook does not exist; apply the server's manifests" in replica.problem
    assert (only.serving, late.serving) == (True, False)
    kube.put_object(SECRET, EMPTY)
    for replica in (only, late):
        replica.step()
        assert (replica.problem, replica.serving) == ("", True)


def test_keys_are_trusted_before_they_are_served(kube: FakeKube):
    only = keeper(kube, Clock())
    seen: list[Any] = []
    only.api.patch = lambda *args, **kwargs: seen.append(only._served)  # type: ignore[method-assign]
    only.step()
    assert seen == [None]
    assert only.serving


def test_replica_of_a_release_with_other_names_stays_trusted(kube: FakeKube):
    clock = Clock()
    older, newer = keeper(kube, clock), keeper(kube, clock)
    newer.names = [*NAMES, "another.system.svc"]
    older.step()
    served: Any = older._served
    newer.step()
    assert newer._served != served
    assert served.authority_pem in bundles(kube)[0]
    older.step()
    assert older._served == newer._served


def test_invalid_earlier_authority_is_not_announced(kube: FakeKube):
    only = keeper(kube, Clock())
    only.step()
    raw: Any = kube.object(SECRET)
    raw["data"]["earlier-ca.crt"] = base64.b64encode(b"nonsense").decode()
    kube.put_object(SECRET, raw)
    only.step()
    assert only.problem == ""
    assert "nonsense" not in bundles(kube)[0]


def test_replica_suspended_before_announcing_restores_no_old_bundle(kube: FakeKube):
    clock = Clock()
    frozen, other = keeper(kube, clock), keeper(kube, clock)
    for replica in (frozen, other):
        replica.step()
    first = bundles(kube)[0]
    # The webhooks are reset, and the suspended replica is about to announce the bundle that it has read.
    kube.put_object(MUTATING, configuration("a.tpu", "b.tpu"))
    real_patch = kube.patch

    def patch_later(*args: Any, **kwargs: Any) -> Any:
        kube.patch = real_patch  # type: ignore[method-assign]
        clock.now += timedelta(days=60)
        for move in (timedelta(), STEP, STEP):
            clock.now += move
            other.step()
        assert not frozen.serving
        return real_patch(*args, **kwargs)

    kube.patch = patch_later  # type: ignore[method-assign]
    frozen.step()
    assert first != bundles(kube)[0] == trusted(stored(kube))
    assert frozen._served == other._served
    assert frozen.serving


def test_replica_without_api_server_is_ready_until_a_rotation_is_due(kube: FakeKube):
    only = keeper(kube, clock := Clock())
    only.step()
    kube.fail("*", ".*", errors.Unavailable("away"), times=1000)
    clock.now += timedelta(days=59)
    only.step()
    assert only.serving
    assert "away" in only.problem
    clock.now += timedelta(days=2)
    only.step()
    assert not only.serving
    kube.clear_faults()
    only.step()
    assert only.serving


def test_reset_of_the_webhooks_is_logged_and_undone(kube: FakeKube):
    only = keeper(kube, Clock())
    only.step()
    kube.put_object(MUTATING, configuration("a.tpu", "b.tpu"))
    with structlog.testing.capture_logs() as lines:
        only.step()
    assert "webhook_certificates.reset" in [line["event"] for line in lines]
    assert bundles(kube) == [trusted(stored(kube))] * 2
