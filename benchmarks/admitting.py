"""What the webhook server takes for pods whose StatefulSet it has to read, and its memory."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from provisioner.admission.keys import make_keys

_PODS = 1000
_AT_ONCE = 16
_SETS = 25
_HOST = "webhook.bench.svc"
_START_SECONDS = 30


class _Api(BaseHTTPRequestHandler):
    """Stands for the API server: any StatefulSet, with eight replicas."""

    protocol_version = "HTTP/1.1"
    #: An answer is sent in one piece: the second of two would wait for an acknowledgement.
    wbufsize = -1

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2].partition("?")[0]
        body = {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"replicas": 8, "serviceName": "s"}}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def measure(say: Callable[..., None]) -> None:
    """Admit 1,000 pods at 16 in parallel; print times in the server, times of the clients, and memory."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as (port, metrics, authority):
        context = ssl.create_default_context(cadata=authority)
        local = threading.local()

        def admit(number: int) -> float:
            if not hasattr(local, "connection"):
                plain = socket.create_connection(("127.0.0.1", port))
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                local.connection = http.client.HTTPConnection("webhook")
                local.connection.sock = context.wrap_socket(plain, server_hostname=_HOST)
            began = time.perf_counter()
            local.connection.request("POST", "/mutate", _review(number), {"Content-Type": "application/json"})
            answer = json.loads(local.connection.getresponse().read())
            if not answer["response"].get("patch"):
                raise AssertionError(answer)
            return time.perf_counter() - began

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(admit, range(_AT_ONCE * 4)))
            before = _values(metrics)
            seconds = sorted(threads.map(admit, range(_PODS)))
            after = _values(metrics)
        buckets = {le: after[le] - before[le] for le in after if le.startswith("le ")}
        within = next(le.removeprefix("le ") for le in buckets if buckets[le] >= 0.99 * _PODS)
        say(f"webhook: {_PODS} pods at {_AT_ONCE} at once: 99 % within, in the server", f"{within} s", "0.01 s")
        say("  median, of the client", f"{1000 * statistics.median(seconds):.1f} ms")
        say("  99 % within, of the client", f"{1000 * seconds[int(0.99 * _PODS)]:.1f} ms")
        say("  processor time of the server, each", f"{1000 * (after['cpu'] - before['cpu']) / _PODS:.2f} ms")
        say("  memory of the server", f"{after['memory'] / 2**20:.0f} MiB", "90 MiB")


def _review(number: int) -> bytes:
    name = f"set-{number % _SETS}"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": f"u-{name}", "controller": True}
    amount = {"google.com/tpu": "4"}
    pod = {
        "metadata": {
            "name": f"{name}-{number % 8}",
            "labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                "cloud.google.com/gke-tpu-topology": "4x4",
            },
            "containers": [{"name": "c", "image": "i", "resources": {"limits": amount, "requests": amount}}],
        },
    }
    request = {"uid": str(number), "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "ml", "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def _values(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            hook = sample.labels.get("hook")
            if sample.name == "tpu_provisioner_webhook_review_duration_seconds_bucket" and hook == "environment":
                found[f"le {sample.labels['le']}"] = sample.value
            elif sample.name == "process_cpu_seconds_total":
                found["cpu"] = sample.value
            elif sample.name == "process_resident_memory_bytes":
                found["memory"] = sample.value
    return found


@contextmanager
def _server(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Run the server as a process; yield its port, the address of its metrics, and whom to trust."""
    api = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    keys = make_keys([_HOST], now=datetime.now(UTC), valid=timedelta(days=1))
    (folder / "tls.crt").write_text(keys.certificate_pem)
    (folder / "tls.key").write_text(keys.key_pem)
    cluster = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}
    named = {
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster], **named}
    (folder / "kubeconfig").write_text(json.dumps(config))
    ports = [_free_port() for _ in range(2)]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "provisioner", "webhook", f"--kubeconfig={folder / 'kubeconfig'}"),
            *(f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-key-file={folder / 'tls.key'}"),
            *(f"--bind-address=127.0.0.1:{ports[0]}", f"--metrics-bind-address=127.0.0.1:{ports[1]}"),
            "--health-probe-bind-address=0",
        ],
        env={**os.environ, "LOG_LEVEL": "warning"},
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(ports[0])
        yield ports[0], f"http://127.0.0.1:{ports[1]}/metrics", keys.authority_pem
    finally:
        process.kill()
        process.wait()
        api.shutdown()
        api.server_close()


def _free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


def _await(port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
