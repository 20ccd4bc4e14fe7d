"""Runs the webhook server as a separate process with a certificate from files; reads its metrics; creates reviews."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from provisioner.admission.keeper import make_keys

PODS = 1000
AT_ONCE = 16
SETS = 25
REPLICAS = 8
NAMESPACE = "ml"
#: DNS name in the certificate of the server.
HOST = "tpu-provisioner-webhook.tpu-provisioner-system.svc"
_START_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values of the server's metrics at a time."""

    #: Number of reviews by maximum duration in seconds.
    within: dict[float, float]
    reviews: float
    seconds: float
    processor_seconds: float
    memory_bytes: float

    def since(self, before: Values) -> Values:
        """Return the difference to earlier values."""
        return Values(
            within={limit: count - before.within[limit] for limit, count in self.within.items()},
            reviews=self.reviews - before.reviews,
            seconds=self.seconds - before.seconds,
            processor_seconds=self.processor_seconds - before.processor_seconds,
            memory_bytes=self.memory_bytes,
        )

    def within_which(self, share: float) -> float:
        """Return the lowest bound in seconds of the histogram within which a share of the reviews was answered."""
        return min(limit for limit, count in self.within.items() if count >= share * self.reviews)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server."""

    port: int
    metrics_url: str
    #: Authority that signed the server's certificate, as PEM.
    authority_pem: str
    #: Name of the webhook that is measured.
    hook: str

    def values(self) -> Values:
        """Return the current values of its metrics."""
        samples = read_metrics(self.metrics_url)
        prefix = "tpu_provisioner_webhook_review_duration_seconds"
        mine = [sample for sample in samples if sample.labels.get("hook") == self.hook]
        return Values(
            within={float(sample.labels["le"]): sample.value for sample in mine if sample.name == f"{prefix}_bucket"},
            reviews=sum(sample.value for sample in mine if sample.name == f"{prefix}_count"),
            seconds=sum(sample.value for sample in mine if sample.name == f"{prefix}_sum"),
            processor_seconds=next(sample.value for sample in samples if sample.name == "process_cpu_seconds_total"),
            memory_bytes=next(sample.value for sample in samples if sample.name == "process_resident_memory_bytes"),
        )


def read_metrics(url: str) -> list[Any]:
    """Return the samples of a server's metrics."""
    with urllib.request.urlopen(url) as answer:
        return samples_of(answer.read().decode())


def samples_of(text: str) -> list[Any]:
    """Return the samples of a text in the exposition format."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@contextmanager
def webhook_server(folder: Path, kubeconfig: Path, *, hook: str = "environment", **variables: str) -> Iterator[Server]:
    """Run the server; `variables` are its settings."""
    keys = make_keys([HOST], now=datetime.now(UTC), valid=timedelta(days=1))
    (folder / "tls.crt").write_text(keys.certificate_pem)
    (folder / "tls.key").write_text(keys.key_pem)
    port, metrics = (_free_port() for _ in range(2))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "provisioner", "webhook", f"--kubeconfig={kubeconfig}"),
            *(f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-key-file={folder / 'tls.key'}"),
            *(f"--bind-address=127.0.0.1:{port}", f"--metrics-bind-address=127.0.0.1:{metrics}"),
            "--health-probe-bind-address=0",
        ],
        env={**os.environ, "LOG_LEVEL": "warning", **variables},
    )
    try:
        _await(port)
        url = f"http://127.0.0.1:{metrics}/metrics"
        yield Server(port=port, metrics_url=url, authority_pem=keys.authority_pem, hook=hook)
    finally:
        process.kill()
        process.wait()


def pod(number: int, owner_uids: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a pod as the controller of one of the StatefulSets creates it."""
    owner = f"set-{number % SETS}"
    uid = (owner_uids or {}).get(owner, f"u-{owner}")
    amount = {"google.com/tpu": "4"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            # The index is not 0, because the controller may have created pod 0 of the set already.
            "name": f"{owner}-{1 + number % (REPLICAS - 1)}",
            "namespace": NAMESPACE,
            "labels": {"tpu-provisioner.cloud.google.com/inject": "enabled"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": uid, "controller": True}
            ],
        },
        "spec": {
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
                "cloud.google.com/gke-tpu-topology": "4x4",
            },
            "containers": [{"name": "c", "image": "i", "resources": {"limits": amount, "requests": amount}}],
        },
    }


def pod_with_ipus(number: int) -> dict[str, Any]:
    """Return a pod that requests IPUs."""
    made = pod(number)
    made["metadata"]["annotations"] = {"graphcore.ai/ipus": "4"}
    made["spec"] = {"containers": [{"name": name, "image": "i"} for name in ("main", "sidecar")]}
    return made


def review(number: int, make: Callable[[int], dict[str, Any]] = pod) -> bytes:
    """Return the review of a pod."""
    request = {
        "uid": str(number),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "object": make(number),
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


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
