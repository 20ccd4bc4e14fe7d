"""What is written with a time of day is written with the machine's, where no test gives another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from provisioner.kube.events import EventRecorder
from provisioner.kube.lease import LeaseElector
from provisioner.kube.protocol import LEASES_ROOT, collection_path
from provisioner.model.workloads import ObjectRef
from tests.support.kube import FakeKube

_POD = ObjectRef(kind="Pod", api_version="v1", namespace="team", name="p-0", uid="u1")


def _is_now(text: str) -> bool:
    return abs(datetime.now(tz=UTC) - datetime.fromisoformat(text)) < timedelta(minutes=10)


def test_an_event_is_of_now() -> None:
    """Tools sort by it."""
    kube = FakeKube()
    recorder = EventRecorder(kube, instance="i")
    recorder.start()
    recorder.emit(_POD, kind="Normal", reason="R", message="m")
    assert recorder.flush(timeout_seconds=60)
    recorder.stop()
    (event,) = kube.objects(collection_path("events", namespace="team"))
    assert _is_now(event["lastTimestamp"])


def test_a_lease_is_renewed_now() -> None:
    """Other candidates show it to people; none goes by it."""
    kube = FakeKube()
    elector = LeaseElector(kube, namespace="system", identity="i", on_started=lambda: None, on_lost=lambda: None)
    elector.step()
    leases = kube.objects(collection_path("leases", namespace="system", root=LEASES_ROOT))
    ours = [lease["spec"]["renewTime"] for lease in leases if lease["spec"]["holderIdentity"]]
    assert [_is_now(text) for text in ours] == [True]
