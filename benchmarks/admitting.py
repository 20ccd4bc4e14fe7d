"""Measures reviews of pods whose StatefulSet has to be read, for clients that only send reviews, and in use.

Clients that only send reviews send the next as soon as they have a response. So 16 requests are always in the
server, and the result is the duration of a queue of 16. In use, the client is an API server, which has other work for
each pod.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from benchmarks.webhook_server import (
    AT_ONCE,
    HOST,
    NAMESPACE,
    PODS,
    REPLICAS,
    SETS,
    Server,
    Values,
    pod,
    pod_with_ipus,
    review,
    samples_of,
    webhook_server,
)
from provisioner.kube.api import KubeApi
from provisioner.kube.errors import ClusterError
from provisioner.kube.protocol import Timeouts, collection_path, object_path
from rehearsal.demos import Rehearsal

Say = Callable[..., None]

_REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
_APPS = "/apis/apps/v1"
_SYSTEM = "tpu-provisioner-system"
_NAME = "tpu-provisioner-webhook"
_WARM_UP = 200
_ANSWER_SECONDS = 30.0


def measure(say: Say) -> None:
    """Send 1,000 reviews by 16 clients, each of which sends the next when it has a response."""
    requests = [_request(review(number)) for number in range(SETS * REPLICAS * 2)]
    asyncio.run(_measure(say, "webhook", requests, "environment"))


def measure_ipus(say: Say) -> None:
    """Send 1,000 reviews of pods that request IPUs by 16 clients."""
    requests = [_request(review(number, pod_with_ipus), "/mutate/partitions") for number in range(SETS * REPLICAS * 2)]
    variables = {"IPU_INJECTION": "compatible", "IPU_INIT_IMAGE": "registry.example/tpu-provisioner:1"}
    asyncio.run(_measure(say, "pods with IPUs", requests, "partitions", **variables))


async def _measure(say: Say, title: str, requests: list[bytes], hook: str, **variables: str) -> None:
    loop = asyncio.get_running_loop()
    api = await loop.create_server(_Api, "127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as name:
        kubeconfig = Path(name) / "kubeconfig"
        write_kubeconfig(kubeconfig, api.sockets[0].getsockname()[1])
        with webhook_server(Path(name), kubeconfig, hook=hook, **variables) as server:
            # The clients keep their connections for all requests, as API servers do.
            clients = await _connect(server)
            await _ask(clients, requests, _WARM_UP)
            before = server.values()
            seconds = sorted(await _ask(clients, requests, PODS))
            found = server.values().since(before)
            for client in clients:
                client.transport.abort()
    api.close()
    _say(say, f"{title}: {PODS} reviews of {AT_ONCE} clients at once", found)
    say("  median of the clients, from request to answer", f"{1000 * statistics.median(seconds):.1f} ms")
    say("  99 % of the clients within", f"{1000 * seconds[int(0.99 * PODS)]:.1f} ms", "25 ms")


def _say(say: Say, title: str, found: Values) -> None:
    say(f"{title}: 99 % within, in the server", f"{1000 * found.within_which(0.99):g} ms", "25 ms")
    say("  mean, in the server", f"{1000 * found.seconds / found.reviews:.1f} ms")
    say("  processor time of the server, each", f"{1000 * found.processor_seconds / found.reviews:.2f} ms")
    say("  memory of the server", f"{found.memory_bytes / 2**20:.0f} MiB", "90 MiB")


async def _connect(server: Server) -> list[_Client]:
    context = ssl.create_default_context(cadata=server.authority_pem)
    connect = asyncio.get_running_loop().create_connection
    made = [connect(_Client, "127.0.0.1", server.port, ssl=context, server_hostname=HOST) for _ in range(AT_ONCE)]
    return [client for _, client in await asyncio.gather(*made)]


async def _ask(clients: list[_Client], requests: list[bytes], count: int) -> list[float]:
    """Send this many requests; return the seconds that each response took."""
    numbers = iter(range(count))
    seconds: list[float] = []

    async def ask_on(client: _Client) -> None:
        for number in numbers:
            async with asyncio.timeout(_ANSWER_SECONDS):
                seconds.append(await client.ask(requests[number % len(requests)]))

    await asyncio.gather(*map(ask_on, clients))
    return seconds


def _request(body: bytes, path: str = "/mutate") -> bytes:
    lines = [
        f"POST {path}?timeout=10s HTTP/1.1",
        f"Host: {HOST}:443",
        "User-Agent: kube-apiserver-admission",
        f"Content-Length: {len(body)}",
        "Accept: application/json, */*",
        "Content-Type: application/json",
        "Accept-Encoding: gzip",
    ]
    return "\r\n".join([*lines, "\r\n"]).encode() + body


class _Client(asyncio.Protocol):
    """Client that uses little CPU time, because it shares the cores with the server."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._read = bytearray()

    def ask(self, request: bytes) -> asyncio.Future[float]:
        """Send a request; the result is the number of seconds until its response."""
        self._answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._asked = time.perf_counter()
        self.transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, end, body = bytes(self._read).partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]):
            return
        self._read.clear()
        if head.startswith(b"HTTP/1.1 200 ") and b'"patch"' in body:
            self._answered.set_result(time.perf_counter() - self._asked)
        else:
            self._answered.set_exception(AssertionError(head + end + body))


class _Api(asyncio.Protocol):
    """Simulates an API server on which every StatefulSet exists."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        name = data.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        raw = {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"replicas": REPLICAS, "serviceName": "s"}}
        body = json.dumps(raw).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def write_kubeconfig(path: Path, port: int) -> None:
    """Write a kubeconfig for a port of this machine."""
    cluster = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    named = {
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster], **named}
    path.write_text(json.dumps(config))


def measure_in_use(say: Say) -> None:
    """Create 1,000 pods, 16 at a time, on the real API server, which calls the webhook server for each."""
    with tempfile.TemporaryDirectory() as name, Rehearsal(progress=lambda _: None) as rehearsal:
        api = rehearsal.api
        with webhook_server(Path(name), rehearsal.cluster.kubeconfig) as server:
            _register(rehearsal, server)
            uids = {f"set-{number}": _create_set(api, f"set-{number}") for number in range(SETS)}
            # A dry run includes all of admission, and creates no pods for which the scheduler would use the cores.
            path = f"{collection_path('pods', namespace=NAMESPACE)}?dryRun=All"

            def create(number: int) -> float:
                began = time.perf_counter()
                made = api.post(path, pod(number, uids))
                if not made["spec"]["containers"][0].get("env"):
                    raise AssertionError(made)
                return time.perf_counter() - began

            _await_registration(create)
            with ThreadPoolExecutor(AT_ONCE) as threads:
                list(threads.map(create, range(_WARM_UP)))
                before, theirs_before = server.values(), _counted(api)
                seconds = sorted(threads.map(create, range(PODS)))
                found, theirs = server.values().since(before), _counted(api)
    _say(say, f"{PODS} pods created by {AT_ONCE} clients of the real API server", found)
    reads, read_seconds = (theirs[key] - theirs_before[key] for key in ("reads", "read seconds"))
    say("  of that, the API server's for reading the StatefulSet", f"{1000 * read_seconds / found.reviews:.1f} ms")
    say("  reads for each review", f"{reads / found.reviews:.2f}")
    say("  mean, as the API server waits for it", f"{1000 * (theirs['waits'] - theirs_before['waits']) / PODS:.1f} ms")
    say("  median of the clients, for the whole create", f"{1000 * statistics.median(seconds):.1f} ms")


def _register(rehearsal: Rehearsal, server: Server) -> None:
    """Register the webhook. No kube-proxy runs, so a Service of type ExternalName has the address of this machine."""
    rehearsal.create_namespace(NAMESPACE, labels={"hooked": "true"})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _NAME, "namespace": _SYSTEM},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": server.port}]},
    }
    bundle = base64.b64encode(server.authority_pem.encode()).decode()
    named = {"name": _NAME, "namespace": _SYSTEM, "path": "/mutate", "port": server.port}
    hook = {
        "name": "environment.tpu-provisioner.cloud.google.com",
        "clientConfig": {"service": named, "caBundle": bundle},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"hooked": "true"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": _NAME},
        "webhooks": [hook],
    }
    rehearsal.api.post(collection_path("services", namespace=_SYSTEM), service)
    rehearsal.api.post(collection_path("mutatingwebhookconfigurations", root=_REGISTRATIONS), configuration)


def _create_set(api: KubeApi, name: str) -> str:
    """Create a StatefulSet whose first pod never becomes ready, so that no other is created; return its UID."""
    template = pod(0)
    labels = {"app": name}
    raw = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "serviceName": "s",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    api.post(collection_path("statefulsets", namespace=NAMESPACE, root=_APPS), raw)
    made = api.get(object_path("statefulsets", name, namespace=NAMESPACE, root=_APPS))
    return str(made["metadata"]["uid"])


def _await_registration(create: Callable[[int], Any]) -> None:
    until = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            create(1)
        except (ClusterError, AssertionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


def _counted(api: KubeApi) -> dict[str, float]:
    """Return the API server's number of reads of StatefulSets, their seconds, and the seconds of waits for reviews."""
    found = {"reads": 0.0, "read seconds": 0.0, "waits": 0.0}
    requests = "apiserver_request_duration_seconds"
    for sample in samples_of(_exposition(api)):
        read = sample.labels.get("resource") == "statefulsets" and sample.labels.get("verb") == "GET"
        if read and sample.name == f"{requests}_count":
            found["reads"] += sample.value
        elif read and sample.name == f"{requests}_sum":
            found["read seconds"] += sample.value
        elif sample.name == "apiserver_admission_webhook_admission_duration_seconds_sum":
            found["waits"] += sample.value
    return found


def _exposition(api: KubeApi) -> str:
    with api.stream("/metrics", {}, timeouts=Timeouts()) as stream:
        return "\n".join(line.decode() for line in stream) + "\n"
