"""Measures the client of GKE: imports, memory, and lists of many node pools, without the time of a server."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from provisioner.model.capacity import ClusterName
from provisioner.slices.suppliers.gke.client import GkeClient

_STARTS = 7
_LISTS = 20
_POOLS = (200, 1000)
#: Program that measures the client's imports; the controller's other modules, which share some, are imported first.
_IMPORTS = """
import time
import provisioner.kube, provisioner.slices.loop, provisioner.runtime.logs, provisioner.runtime.status
def memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
before, started = memory(), time.process_time()
from provisioner.model.capacity import ClusterName
from provisioner.slices.suppliers.gke.client import GkeClient
GkeClient(ClusterName(project="p", location="us-east5", cluster="c"), endpoint="http://127.0.0.1:9")
print((time.process_time() - started) * 1000, memory() - before, memory())
"""


def measure(say: Callable[..., None]) -> None:
    """Measure starts in fresh processes, then lists over one connection."""
    starts = [_start() for _ in range(_STARTS)]
    milliseconds, added, total = (statistics.median(column) for column in zip(*starts, strict=True))
    say("gke: processor time until the client exists", f"{milliseconds:.0f} ms")
    say("gke: memory of the client and its imports", f"{added:.1f} MiB")
    say("gke: memory of a process with the controller's imports and the client", f"{total:.0f} MiB")
    for count in _POOLS:
        say(f"gke: processor time of a list of {count} node pools", f"{_list_milliseconds(count):.1f} ms")


def _start() -> tuple[float, ...]:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def _list_milliseconds(count: int) -> float:
    """Return the CPU time in milliseconds that the calling thread needs for one list."""
    body = json.dumps({"nodePools": [_pool(index) for index in range(count)]}).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster = ClusterName(project="p", location="us-east5", cluster="c")
    client = GkeClient(cluster, endpoint=f"http://127.0.0.1:{server.server_address[1]}")
    try:
        times = []
        for _ in range(_LISTS):
            started = time.thread_time()
            if len(client.list_node_pools()) != count:
                raise RuntimeError(f"the client does not list {count} node pools")
            times.append(time.thread_time() - started)
    finally:
        client.close()
        server.shutdown()
        server.server_close()
    return statistics.median(times) * 1000


def _pool(index: int) -> dict[str, Any]:
    """Return a pool of the provisioner as GKE lists it with the client's field mask."""
    labels = {
        "google.com/nodepool-manager": "tpu-provisioner",
        "google.com/tpu-provisioner-jobset-name": f"train-{index}",
        "google.com/tpu-provisioner-jobset-namespace": "default",
        "google.com/tpu-provisioner-jobset-uid": f"0c2d7a54-6d0f-4c0e-9f0a-{index:012d}",
        "google.com/tpu-provisioner-slice": "w-0",
        "google.com/tpu-provisioner-nodepool-hash": f"{index:016x}",
        "google.com/tpu-provisioner-topology": "4x4",
        "team": "research",
    }
    return {
        "name": f"train-{index}-w-0-0123456789",
        "status": "RUNNING",
        "initialNodeCount": 4,
        "locations": ["us-east5-b"],
        "config": {
            "machineType": "ct6e-standard-4t",
            "diskType": "hyperdisk-balanced",
            "labels": labels,
            "taints": [{"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"}],
            "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
            "serviceAccount": "nodes@p.iam.gserviceaccount.com",
        },
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
    }
