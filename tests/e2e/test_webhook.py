"""The webhook server registered with the real API server: what pods get, and what a rotation and a dead replica do.

No kube-proxy runs, so a Service of type ExternalName leads the API server to this machine; it verifies the certificate
by the Service's DNS name as in any cluster. A forwarder stands for the Service's choice among replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from provisioner import kube
from provisioner.admission.rotation import STEP
from provisioner.kube.protocol import collection_path, object_path
from provisioner.settings.webhook import WebhookSettings
from provisioner.webhook.app import Addresses, WebhookServer, build
from rehearsal.demos import Rehearsal
from tests.e2e.kit import PATIENCE_SECONDS
from tests.support.waiting import wait_for

pytestmark = pytest.mark.e2e

_REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
_NAME = "tpu-provisioner-webhook"
_SYSTEM = "tpu-provisioner-system"
_ANYWHERE = Addresses(webhooks="127.0.0.1:0", metrics="0", probes="0")
_KEY = "tpu-provisioner.cloud.google.com/inject"
V5E_2X2 = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x2",
}


class Forwarder:
    """Leads connections to the replicas in turn, and to the next one where one does not take them."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._turn += 1
        for offset in range(len(self.ports)):
            port = self.ports[(self._turn + offset) % len(self.ports)]
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
            return
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


@pytest.fixture
def forwarder() -> Iterator[Forwarder]:
    """Give what stands for the Service's endpoints."""
    forwarder = Forwarder()
    yield forwarder
    forwarder.stop()


@pytest.fixture
def namespace(rehearsal: Rehearsal) -> str:
    """Give a namespace that the webhook concerns."""
    rehearsal.create_namespace("hooked", labels={"hooked": "true"})
    return "hooked"


@pytest.fixture
def registered(rehearsal: Rehearsal, forwarder: Forwarder, namespace: str) -> Iterator[None]:
    """Register the webhook, for one namespace: a failure is an error, so that none goes unseen."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _NAME, "namespace": _SYSTEM},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": forwarder.port}]},
    }
    hook = {
        "name": "environment.tpu-provisioner.cloud.google.com",
        "clientConfig": {"service": {"name": _NAME, "namespace": _SYSTEM, "path": "/mutate", "port": forwarder.port}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"hooked": "true"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1", "v1beta1"],
        "timeoutSeconds": 10,
    }
    configuration = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": _NAME}, "webhooks": [hook]}
    api = rehearsal.api
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{_NAME}-certificates"}}
    api.post(collection_path("secrets", namespace=_SYSTEM), secret)
    api.post(collection_path("services", namespace=_SYSTEM), service)
    api.post(
        collection_path("mutatingwebhookconfigurations", root=_REGISTRATIONS),
        {"apiVersion": "admissionregistration.k8s.io/v1", **configuration},
    )
    yield
    api.delete(object_path("mutatingwebhookconfigurations", _NAME, root=_REGISTRATIONS))
    api.delete(object_path("services", _NAME, namespace=_SYSTEM))
    api.delete(object_path("secrets", f"{_NAME}-certificates", namespace=_SYSTEM))


@contextlib.contextmanager
def replica(rehearsal: Rehearsal, forwarder: Forwarder, **options: Any) -> Iterator[WebhookServer]:
    """Run one replica."""
    webhook = build(WebhookSettings(), _ANYWHERE, rehearsal.api, None, **options)
    webhook.start()
    forwarder.ports.append(webhook.server.ports[0])
    try:
        yield webhook
    finally:
        webhook.stop(drain=lambda _seconds: None)


def lone_pod(number: int) -> dict[str, Any]:
    """Return a pod of a slice that is one VM: nothing has to be read for it."""
    amount = {"google.com/tpu": "4"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{number}", "annotations": {_KEY: "enabled"}},
        "spec": {
            "nodeSelector": V5E_2X2,
            "containers": [{"name": "server", "image": "none", "resources": {"requests": amount, "limits": amount}}],
        },
    }


def create(rehearsal: Rehearsal, namespace: str, number: int) -> bool:
    """Create a pod by a dry run; return whether it got its variables. Raises where the webhook failed."""
    path = f"{collection_path('pods', namespace=namespace)}?dryRun=All"
    made = rehearsal.api.post(path, lone_pod(number))
    return any(each["name"] == "TPU_WORKER_ID" for each in made["spec"]["containers"][0].get("env") or [])


@pytest.mark.usefixtures("registered")
def test_a_rotation_under_load_and_a_replica_that_goes(rehearsal: Rehearsal, forwarder: Forwarder, namespace: str):
    """Of 1,000 reviews during a whole rotation none fails; nor does one when a replica ends in good order."""
    clock = {"now": datetime.now(UTC) - timedelta(days=60)}
    with (
        replica(rehearsal, forwarder, now=lambda: clock["now"]) as first,
        replica(rehearsal, forwarder, now=lambda: clock["now"]) as second,
        ThreadPoolExecutor(16) as threads,
    ):
        wait_for(lambda: succeeds(rehearsal, namespace), what="the webhook is registered", seconds=PATIENCE_SECONDS)
        served = []
        done = 0
        moves = [timedelta(0), timedelta(days=60), STEP, STEP, timedelta(0)]
        for move in moves:
            clock["now"] += move
            for each in (first, second):
                each.certificates.certificates.step()
            served.append(first.certificates.certificates._served.authority_pem)  # type: ignore[attr-defined]
            numbers = range(done, done + 1000 // len(moves))
            assert all(threads.map(lambda number: create(rehearsal, namespace, number), numbers))
            done = numbers.stop
        assert done == 1000
        assert served[0] == served[1] != served[2] == served[4]
        assert second.certificates.certificates._served == first.certificates.certificates._served  # type: ignore[attr-defined]

        # A replica that ends answers until the others are asked alone.
        results = [threads.submit(create, rehearsal, namespace, number) for number in range(1000, 1200)]

        def leave(_seconds: float) -> None:
            forwarder.ports.remove(second.server.ports[0])
            wait_for(lambda: sum(each.done() for each in results) > 100, seconds=PATIENCE_SECONDS)

        second.stop(drain=leave)
        assert all(each.result(PATIENCE_SECONDS) for each in results)


def succeeds(rehearsal: Rehearsal, namespace: str) -> bool:
    """Whether the API server reaches and trusts the webhook already."""
    try:
        return create(rehearsal, namespace, 0)
    except kube.ClusterError:
        return False
