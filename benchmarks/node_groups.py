"""Measures 200 node groups of 16 machines that are created at the same time: durations, calls and memory.

Ready times and calls are those of the simulation, in virtual time; tests/nodegroups/simulation/many.py has the
simulated durations of machines. Memory is that of a process with all modules of a controller, and with the data that
the simulated controller had when all groups were ready, after its client has read the metadata of all machines over
HTTP, 16 groups at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from provisioner.nodegroups.bootstrap.metadata import startup_script

_GROUPS = 200
_MACHINES = 16
#: Program that imports the modules of a controller, loads its data, and repeats its reads. Prints the memory in MiB
#: after each step, and the peak.
_HOLD = """
import pickle, sys, time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
def memory(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
import provisioner.cli.nodegroups, provisioner.nodegroups.app, provisioner.controller
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.compute.records import Scope
from provisioner.nodegroups.planning.decide import decide
from provisioner.nodegroups.metrics import Metrics
from provisioner.runtime import process
from provisioner.runtime.status import make_status_server
process.collect_garbage_rarely()
metrics = Metrics(version="benchmark")
server = make_status_server(
    "benchmark",
    metrics="127.0.0.1:0",
exposition=metrics.exposition,
    probes="127.0.0.1:0", alive=lambda: True, problems=tuple,
)
server.start()
imported = memory("VmRSS")
with open(sys.argv[1], "rb") as file:
    snapshot, known, settings = (pickle.loads(part) for part in pickle.load(file))
held = memory("VmRSS")
now = max(each.since for each in known.writes.values()) + timedelta(seconds=1)
started = time.process_time()
plan = decide(snapshot, known, settings, now)
seconds = time.process_time() - started
client, scope = ComputeClient(endpoint=sys.argv[2]), Scope(project="p", zone="us-central1-b")
names = [f"m-{index}" for index in range(16)]
with ThreadPoolExecutor(16) as threads:
    found = sum(len(each) for each in threads.map(lambda _: client.list_instances(scope, names), range(200)))
assert found == len(snapshot.nodes)
now_held, most = memory("VmRSS"), memory("VmHWM")
server.stop()
print(found, imported, held, now_held, most, seconds * 1000)
"""


def measure(say: Callable[..., None]) -> None:
    """Simulate one group and 200 groups, and measure the memory for the data of the 200 groups."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept"
        alone, many = _play("1"), _play(str(_GROUPS), str(kept))
        say("one group of 16 machines: created to Ready", f"{alone['all_ready_seconds']:.0f} s")
        say(f"{_GROUPS} groups at once: created to the first Ready", f"{many['first_ready_seconds']:.0f} s")
        say(f"{_GROUPS} groups at once: created to all Ready", f"{many['all_ready_seconds']:.0f} s")
        say("  ratio", f"{many['all_ready_seconds'] / alone['all_ready_seconds']:.2f}", "target: 1.2")
        say("  until no token is left in any machine", f"{many['settled_seconds']:.0f} s")
        say("  until all are deleted again", f"{many['gone_seconds']:.0f} s")
        for figures in (alone, many):
            what = f"  calls for each of {figures['groups']} groups, until no token is left"
            made, groups = figures["calls"], figures["groups"]
            say(what, f"{sum(made.values()) / groups:.0f}")
            say("    of these, changes", f"{(made['Insert'] + made['SetMetadata']) / groups:.0f}")
            say("    most for one group", str(figures["max_calls_of_a_group"]))
            say("  calls to delete each", f"{sum(figures['calls_to_delete'].values()) / groups:.0f}")
        say("  most calls of one sort in a minute", str(many["max_calls_a_minute"]), "Compute Engine: 1,500")
        _hold(say, kept)


def _play(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.nodegroups.simulation.many", *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _hold(say: Callable[..., None], kept: Path) -> None:
    with _machines() as address:
        done = subprocess.run(
            [sys.executable, "-c", _HOLD, str(kept), address], capture_output=True, text=True, check=True
        )
    nodes, imported, held, now, most, once = map(float, done.stdout.splitlines()[-1].split())
    say("memory after all imports, with the server of metrics", f"{imported:.0f} MiB")
    say(f"  with {nodes:.0f} machines and their nodes", f"{held:.0f} MiB")
    say("  after a decision, and lists of all machines with their metadata", f"{now:.0f} MiB", "target: 130 MiB")
    say("  most of all", f"{most:.0f} MiB")
    say("one decision", f"{once:.0f} ms")


@contextmanager
def _machines() -> Iterator[str]:
    """Serve a group of machines, each with the startup script in its metadata."""
    items = [{"key": "startup-script", "value": startup_script("https://pkgs.k8s.io")}]
    page = {
        "items": [
            {"name": f"m-{index}", "id": str(index + 1), "status": "RUNNING", "metadata": {"items": items}}
            for index in range(_MACHINES)
        ]
    }
    body = json.dumps(page).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
