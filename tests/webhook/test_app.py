"""The whole server over real sockets: reviews over TLS, own certificates or files, probes, metrics, and shutdown."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import structlog
import yaml

from provisioner import tpu
from provisioner.admission import hooks
from provisioner.admission import review as review_module
from provisioner.admission.files import Files
from provisioner.admission.keeper import make_keys
from provisioner.admission.review import Notice
from provisioner.kube import errors
from provisioner.kube.api import connect
from provisioner.kube.protocol import Timeouts
from provisioner.model.workloads import ObjectRef
from provisioner.runtime import http as http_server
from provisioner.runtime.http import HttpServer
from provisioner.runtime.repeats import Repeats
from provisioner.settings.webhook import WebhookSettings
from provisioner.webhook import app
from provisioner.webhook.app import Addresses, WebhookServer, build
from tests.support.kube import FakeKube
from tests.support.kubeconfig import write_kubeconfig
from tests.support.machineconfigs import machine_config_path, raw_machine_config
from tests.support.waiting import wait_for

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tpu-provisioner-webhook"
SECRET = "/api/v1/namespaces/tpu-provisioner-system/secrets/tpu-provisioner-webhook-certificates"
STATEFUL_SET = "/apis/apps/v1/namespaces/ml/statefulsets/train"
ANYWHERE = Addresses(webhooks="127.0.0.1:0", metrics="127.0.0.1:0", probes="127.0.0.1:0")
HOST = "tpu-provisioner-webhook.tpu-provisioner-system.svc"
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def kube() -> FakeKube:
    return installed(FakeKube())


def installed(fake: FakeKube) -> FakeKube:
    fake.put_object(CONFIGURATION, {"webhooks": [{"name": "pods.tpu", "clientConfig": {}}]})
    fake.put_object(SECRET, {"metadata": {"name": "tpu-provisioner-webhook-certificates"}})
    spec = {"replicas": 4, "serviceName": "workers"}
    fake.put_object(STATEFUL_SET, {"metadata": {"name": "train", "uid": "u"}, "spec": spec})
    return fake


@pytest.fixture
def webhook(kube: FakeKube) -> Iterator[WebhookServer]:
    with running(kube) as built:
        yield built


@contextlib.contextmanager
def running(kube: FakeKube, webhook: WebhookServer | None = None) -> Iterator[WebhookServer]:
    built = webhook or build(WebhookSettings(), ANYWHERE, kube, None)
    built.start()
    try:
        yield built
    finally:
        built.stop(drain=lambda _seconds: None)


def bundle(kube: FakeKube) -> str:
    raw = kube.object(CONFIGURATION)
    assert raw is not None
    return base64.b64decode(raw["webhooks"][0]["clientConfig"]["caBundle"]).decode()


def post(webhook: WebhookServer, authority: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """Post as an API server does: connected by address, with the Service's name in the handshake."""
    context = ssl.create_default_context(cadata=authority)
    plain = socket.create_connection(("127.0.0.1", webhook.server.ports[0]), timeout=10)
    with context.wrap_socket(plain, server_hostname=HOST) as encrypted:
        connection = http.client.HTTPConnection("127.0.0.1")
        connection.sock = encrypted
        connection.request("POST", "/mutate", body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()


REFERENCE = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}


def review(**metadata: Any) -> bytes:
    pod = {
        "metadata": {"name": "train-2", "ownerReferences": [REFERENCE], **metadata},
        "spec": {"containers": [{"name": "w", "resources": {"limits": {"google.com/tpu": 4}}}]},
    }
    request = {"uid": "1", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "ml", "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


ASKING = {"labels": {"gke-tpu-env-injector.aaronbatilo.dev/inject": "enabled"}}


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def status_port(webhook: WebhookServer, path: str) -> int:
    """Return the port that serves a path: the system chooses both ports."""
    return next(port for port in webhook.status.ports if get(port, path)[0] != 404)


def test_pod_that_requests_variables_gets_them(webhook: WebhookServer, kube: FakeKube):
    status, body = post(webhook, bundle(kube), review(**ASKING))
    assert status == 200
    patch = json.loads(base64.b64decode(json.loads(body)["response"]["patch"]))
    variables = {variable["name"]: variable["value"] for variable in patch[0]["value"]}
    assert variables["TPU_WORKER_ID"] == "2"
    assert variables["TPU_WORKER_HOSTNAMES"] == "train-0.workers,train-1.workers,train-2.workers,train-3.workers"


@pytest.mark.usefixtures("catalogue")
def test_pod_of_a_generation_from_a_machine_config_gets_variables(kube: FakeKube):
    """The catalogue is extended while the server runs."""
    asking = json.loads(review(**ASKING))
    selector = {"cloud.google.com/gke-tpu-accelerator": "tpu9x", "cloud.google.com/gke-tpu-topology": "4x4"}
    asking["request"]["object"]["spec"]["nodeSelector"] = selector
    with running(kube) as webhook:
        answers = []
        for _ in range(2):
            _, body = post(webhook, bundle(kube), json.dumps(asking).encode())
            answers.append(json.loads(body)["response"])
            kube.put_object(machine_config_path(), raw_machine_config())
            wait_for(lambda: "tpu9x" in tpu.ACCELERATORS)
    assert "there is no TPU accelerator 'tpu9x'" in answers[0]["warnings"][0]
    assert (answers[1].get("warnings"), b"TPU_WORKER_ID" in base64.b64decode(answers[1]["patch"])) == (None, True)


@pytest.mark.usefixtures("catalogue")
def test_review_waits_after_a_start_until_machine_configs_are_read(kube: FakeKube):
    """Otherwise a pod of a generation that only MachineConfigs list would run without variables, or be rejected."""
    kube.put_object(machine_config_path(), raw_machine_config())
    kube.fail("GET", "machineconfigs", errors.Unavailable("busy", status=503))
    with running(kube):
        assert "tpu9x" in tpu.ACCELERATORS


def test_server_without_the_right_to_machine_configs_answers_after_a_wait(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
):
    """The server is not ready before it answers, so that no review is sent to it."""
    ready = []

    def pause(_seconds: float) -> None:
        ready.append(get(status_port(webhook, "/readyz"), "/readyz"))

    monkeypatch.setattr(app.time, "sleep", pause)
    monkeypatch.setattr(app, "_CATALOGUE_SECONDS", 0.2)
    kube.fail("GET", "machineconfigs", errors.Forbidden("no right", status=403), times=1000)
    webhook = build(WebhookSettings(), ANYWHERE, kube, None)
    with running(kube, webhook):
        assert ready[0] == (503, "the webhook server is starting\n")
        assert post(webhook, bundle(kube), review(**ASKING))[0] == 200


def test_owner_of_pods_without_variables_gets_an_event(webhook: WebhookServer, kube: FakeKube):
    """Only real creates cause an Event; dry runs do not."""
    kube.put_object(STATEFUL_SET, {"metadata": {"name": "train", "uid": "u"}, "spec": {"replicas": 4}})
    trial = json.loads(review(**ASKING))
    trial["request"]["dryRun"] = True
    with structlog.testing.capture_logs() as lines:
        for body in (json.dumps(trial).encode(), review(**ASKING), review(**{**ASKING, "name": "train-3"})):
            post(webhook, bundle(kube), body)
    assert webhook.recorder.flush(timeout_seconds=10)
    [event] = kube.objects("/api/v1/namespaces/ml/events")
    assert event["reason"] == "IncompleteTPUEnvironment"
    assert event["involvedObject"]["uid"] == "u"
    assert "has no spec.serviceName" in event["message"]
    [line] = [line for line in lines if line["event"] == "environment.problem"]
    assert line["owner"] == "StatefulSet ml/train"


def test_problems_of_many_owners_of_a_namespace_are_logged_once_a_minute():
    """A user can create any number of pods that a quota rejects, with any owners; each pod would add a log line."""
    recorder = build(WebhookSettings(), ANYWHERE, installed(FakeKube()), None).recorder
    counted = Repeats()
    with structlog.testing.capture_logs() as lines:
        for number in range(100):
            owner = ObjectRef(kind="Job", api_version="batch/v1", namespace="ml", name=f"job-{number}", uid="u")
            app._tell(recorder, counted, Notice(about=owner, message="Job could not be read"))
    assert [line["owner"] for line in lines] == ["Job ml/job-0"]


def test_events_on_arbitrary_owners_take_at_most_20_mb(kube: FakeKube):
    """Pods are reviewed before the API server checks the names of their owners, which may have any length."""
    recorder = build(WebhookSettings(), ANYWHERE, kube, None).recorder
    for number in range(5000):
        name = f"{number}".ljust(253, "\N{GRINNING FACE}")
        owner = ObjectRef(kind=name, api_version=name, namespace="ml", name=name, uid=name)
        recorder.emit(owner, "R", name * 5, warning=True)
    kept = [event for space in recorder._namespaces.values() for event in space.known.values()]
    assert sum(sys.getsizeof(event.message) + 4 * sys.getsizeof(event.ref.name) for event in kept) < 20_000_000


def _size(value: object) -> int:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sys.getsizeof(value) + sum(map(_size, parts))


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("components/webhook/deployment.yaml", ("spec", "template", "spec", "containers", 0)),
        ("charts/tpu-provisioner/values.yaml", ("webhook",)),
        ("charts/ipu-partitions/values.yaml", ()),
    ],
)
def test_memory_limit_covers_the_largest_reviews_of_all_lanes(file: str, path: tuple[str | int, ...]):
    """Any client that reaches the port can post such reviews, and a replica that exceeds its limit is killed."""
    found: Any = yaml.safe_load((Path("deploy") / file).read_text(encoding="utf-8"))
    for step in path:
        found = found[step]
    limit = int(found["resources"]["limits"]["memory"].removesuffix("Mi"))
    # An idle server with the packages for development took 83 MiB.
    idle = 96 * 2**20
    # Each part is an object with a key of its own, in the fewest bytes. The rest of the body is one text, of which each
    # character takes 4 bytes if one of them is outside of the Basic Multilingual Plane.
    part = b'{"abcdefg":'
    decoded = _size(json.loads(part + b"0}"))
    largest = review_module._MAX_PARTS * decoded
    largest += 4 * max(0, app._LIMITS.body_bytes - review_module._MAX_PARTS * len(part))
    lanes = len(hooks.Lanes()._large) * hooks._LARGE_AT_ONCE
    # A list of short texts takes the most memory for its size among small bodies.
    small = json.dumps(["\u0436"] * 10_000, ensure_ascii=False, separators=(",", ":")).encode()
    waiting = hooks._LATER_BYTES * _size(json.loads(small)) / len(small)
    total = idle + http_server._HELD_BYTES + lanes * largest + waiting
    assert limit * 0.8 < total / 2**20 < limit


def test_probes_and_metrics_show_the_state_of_the_server(webhook: WebhookServer, kube: FakeKube):
    post(webhook, bundle(kube), review(**ASKING))
    post(webhook, bundle(kube), b"[]")
    assert get(status_port(webhook, "/readyz"), "/readyz") == (200, "ok\n")
    assert get(status_port(webhook, "/healthz"), "/healthz") == (200, "ok\n")
    _, metrics = get(status_port(webhook, "/metrics"), "/metrics")
    reviews = "tpu_provisioner_webhook_reviews_total"
    assert f'{reviews}{{hook="environment",outcome="patched"}} 1.0' in metrics
    assert f'{reviews}{{hook="environment",outcome="malformed"}} 1.0' in metrics
    assert f'{reviews}{{hook="environment",outcome="denied"}} 0.0' in metrics
    assert 'tpu_provisioner_webhook_review_duration_seconds_count{hook="environment"} 2.0' in metrics


class Hanging(FakeKube):
    """Answers reads of StatefulSets only after `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.goes_on = threading.Event()

    def get(self, path: str, query: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        if "/statefulsets/" in path:
            self.waiting += 1
            self.goes_on.wait(20)
        return super().get(path, query, **options)


def test_reviews_without_owner_do_not_wait_for_a_hanging_api_server():
    kube = Hanging()
    with running(installed(kube)) as webhook, ThreadPoolExecutor(30) as threads:
        owners = [{**REFERENCE, "name": f"set-{number}"} for number in range(30)]
        hanging = [
            threads.submit(post, webhook, bundle(kube), review(**ASKING, ownerReferences=[owner])) for owner in owners
        ]
        wait_for(lambda: kube.waiting == 8)
        alone = review(annotations={"tpu-provisioner.cloud.google.com/inject": "disabled"})
        assert post(webhook, bundle(kube), alone)[0] == 200
        assert not any(future.done() for future in hanging)
        # A slow review without an owner does not wait either.
        large = review(annotations={"x": "y" * 200_000, "tpu-provisioner.cloud.google.com/inject": "disabled"})
        assert post(webhook, bundle(kube), large)[0] == 200
        kube.goes_on.set()
        assert {future.result(20)[0] for future in hanging} == {200}


@pytest.mark.parametrize(
    ("size", "patched"), [pytest.param(1_500_000, True, id="large"), pytest.param(3_000_000, False, id="too large")]
)
def test_owner_is_read_unless_it_is_too_large(kube: FakeKube, webhook: WebhookServer, size: int, *, patched: bool):
    template = {"metadata": {"annotations": {"x": "y" * size}}}
    spec = {"replicas": 4, "serviceName": "workers", "template": template}
    kube.put_object(STATEFUL_SET, {"metadata": {"name": "train", "uid": "u"}, "spec": spec})
    answer = json.loads(post(webhook, bundle(kube), review(**ASKING))[1])["response"]
    assert ("patch" in answer, "could not be read" in str(answer)) == (patched, not patched)


def test_server_stops_while_the_api_server_hangs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Reads in progress do not delay the end; they end by their own time-out."""
    monkeypatch.setattr(app, "_READ_TIMEOUTS", Timeouts(read_seconds=4.0))
    monkeypatch.setattr(app, "_CATALOGUE_SECONDS", 0.0)
    keys = make_keys([HOST], now=datetime.now(UTC), valid=timedelta(days=1))
    files = Files(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    files.certificate.write_text(keys.certificate_pem)
    files.key.write_text(keys.key_pem)
    with socket.create_server(("127.0.0.1", 0)) as hanging, ThreadPoolExecutor(3) as threads:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        api = connect(str(write_kubeconfig(tmp_path / "config", url)))
        webhook = build(WebhookSettings(), ANYWHERE, api, files)
        webhook.start()
        names = ("train", "train", "other")
        bodies = [review(**ASKING, ownerReferences=[{**REFERENCE, "name": name}]) for name in names]
        asked = [threads.submit(post, webhook, keys.authority_pem, body) for body in bodies]
        sent = [hanging.accept()[0] for _ in (*names, "machineconfigs")]
        assert {connection.recv(4096).split(b" ", 1)[0] for connection in sent} == {b"GET"}
        capfd.readouterr()
        webhook.stop(drain=lambda _seconds: None)
        assert [future.result(10)[0] for future in asked] == [500] * 3
        assert capfd.readouterr() == ("", "")
        for connection in sent:
            connection.close()
    # The reads log to this test's output, which must stay open until they have ended.
    wait_for(lambda: _reviews(webhook) == len(names))


def _reviews(webhook: WebhookServer) -> float:
    families = {family.name: family for family in webhook.metrics.registry.collect()}
    return sum(sample.value for sample in families[f"{app.PREFIX}reviews"].samples if sample.name.endswith("_total"))


def test_server_without_a_certificate_is_not_ready(kube: FakeKube, tmp_path: Path):
    files = Files(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    webhook = build(WebhookSettings(), ANYWHERE, kube, files)
    webhook.start()
    try:
        port = status_port(webhook, "/readyz")
        assert get(port, "/readyz")[0] == 503
        made = make_keys([HOST], now=datetime.now(UTC), valid=timedelta(days=1))
        files.certificate.write_text(made.certificate_pem)
        # The key does not match the certificate yet.
        other = make_keys([HOST], now=datetime.now(UTC), valid=timedelta(days=1))
        files.key.write_text(other.key_pem)
        webhook.certificates.certificates.step()
        assert "cannot be served" in webhook.certificates.certificates.problem
        files.key.write_text(made.key_pem)
        webhook.certificates.certificates.step()
        assert get(port, "/readyz") == (200, "ok\n")
        status, _ = post(webhook, made.authority_pem, review(**ASKING))
        assert status == 200
        # An invalid file does not replace the served certificate.
        files.certificate.write_text("nonsense")
        webhook.certificates.certificates.step()
        assert post(webhook, made.authority_pem, review(**ASKING))[0] == 200
        assert get(port, "/readyz") == (200, "ok\n")
    finally:
        webhook.stop(drain=lambda _seconds: None)


class Told:
    """Certificates whose steps have the given problems in order; a step raises its problem if it is an exception."""

    serving = True

    def __init__(self, *problems: str | Exception) -> None:
        self.problem = "no certificate is served yet"
        self._next = iter(problems)

    def step(self) -> None:
        told = next(self._next)
        if isinstance(told, Exception):
            raise told
        self.problem = told


@pytest.fixture
def told(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., WebhookServer]]:
    """Return a function that starts a server with `Told` certificates, which are checked every millisecond."""
    monkeypatch.setattr("provisioner.admission.files._LOOK_SECONDS", 0.001)
    # The traceback of the thread that ends is suppressed.
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    started: list[WebhookServer] = []

    def start(*problems: str | Exception) -> WebhookServer:
        webhook = build(WebhookSettings(), ANYWHERE, kube, None)
        webhook.certificates.certificates = Told(*problems)
        started.append(webhook)
        webhook.start()
        return webhook

    yield start
    for webhook in started:
        webhook.stop(drain=lambda _seconds: None)


def test_server_whose_certificate_thread_has_ended_is_not_healthy(told: Callable[..., WebhookServer]):
    webhook = told("", RuntimeError("a mistake"))
    port = status_port(webhook, "/healthz")
    wait_for(lambda: get(port, "/healthz") == (503, "the thread that keeps the certificates has ended\n"))
    assert get(port, "/readyz") == (200, "ok\n")


def test_server_whose_thread_for_reviews_has_ended_is_not_healthy(
    told: Callable[..., WebhookServer], monkeypatch: pytest.MonkeyPatch
):
    async def crash(server: HttpServer, serve: Any = HttpServer._serve) -> None:
        if server._tls is not None:
            raise RuntimeError("a mistake")
        await serve(server)

    monkeypatch.setattr(HttpServer, "_serve", crash)
    port = status_port(told(""), "/healthz")
    wait_for(lambda: "the thread that serves HTTP requests has ended\n" in get(port, "/healthz")[1])


def test_each_problem_of_the_certificates_is_logged_once(told: Callable[..., WebhookServer]):
    with structlog.testing.capture_logs() as lines:
        webhook = told("away", "away", "", "away", "other", "other", RuntimeError("the end"))
        wait_for(webhook.certificates.failures)
    said = [line["problem"] for line in lines if line["event"] == "webhook_certificates.problem"]
    assert said == ["away", "away", "other"]


def test_ending_server_is_not_ready_and_still_answers(kube: FakeKube):
    webhook = build(WebhookSettings(), ANYWHERE, kube, None)
    webhook.start()
    port = status_port(webhook, "/readyz")
    seen = []

    def drain(_seconds: float) -> None:
        wait_for(lambda: get(port, "/readyz") == (503, "the webhook server is ending\n"))
        assert get(port, "/healthz") == (200, "ok\n")
        seen.append(post(webhook, bundle(kube), review(**ASKING))[0])

    webhook.stop(drain=drain)
    assert seen == [200]
