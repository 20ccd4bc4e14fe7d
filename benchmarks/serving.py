"""Measures the serving of metrics and probes: imports, memory, and scrapes."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from provisioner.runtime import logs
from provisioner.runtime.http import HttpServer, Limits
from provisioner.runtime.metrics import Shown
from provisioner.runtime.status import make_status_server
from provisioner.slices.metrics import Metrics

_STARTS = 7
_SCRAPES = 200
_SLICES = 1000
#: Program that measures the imports for serving, after the other imports of a start.
_IMPORTS = """
import sys, time
def memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
import provisioner.kube, provisioner.slices.loop, provisioner.slices.suppliers.gke.client, provisioner.runtime.logs
before, started = memory(), time.process_time()
import provisioner.runtime.status
print((time.process_time() - started) * 1000, memory() - before)
"""


def measure(say: Callable[..., None]) -> None:
    """Measure the imports in fresh processes, then scrapes over one connection and over new ones."""
    starts = [_start() for _ in range(_STARTS)]
    say("http: processor time of the imports for serving", f"{statistics.median(start[0] for start in starts):.0f} ms")
    say("http: memory of these imports", f"{statistics.median(start[1] for start in starts):.1f} MiB")
    logs.configure("info")
    metrics = _metrics()
    server = make_status_server(
        "benchmark",
        metrics="127.0.0.1:0",
        exposition=metrics.exposition,
        probes="127.0.0.1:0",
        failures=tuple,
        problems=tuple,
        limits=Limits(),
    )
    server.start()
    [port] = server.ports
    try:
        size = len(metrics.exposition()) / 1024
        made = statistics.median(_timed(metrics.exposition) for _ in range(_SCRAPES))
        say(f"http: to make the exposition of {_SLICES} slices, {size:.0f} KiB", f"{made:.2f} ms")
        for path, what in (("/metrics", "a scrape of it"), ("/healthz", "a probe")):
            say(f"http: {what}, on a new connection", f"{_median(port, path, keep=False):.2f} ms")
            say(f"http: {what}, on one that is kept", f"{_median(port, path, keep=True):.2f} ms")
        say("http: processor time of a probe, on a connection that is kept", f"{_processor_time(server):.2f} ms")
    finally:
        server.stop()


def _processor_time(server: HttpServer) -> float:
    """Return the milliseconds that the server's thread spends on one probe."""
    [thread] = (thread for thread in threading.enumerate() if thread.name == "http")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    before = time.clock_gettime(clock)
    _median(server.ports[0], "/healthz", keep=True)
    return (time.clock_gettime(clock) - before) / _SCRAPES * 1000


def _start() -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    milliseconds, mebibytes = done.stdout.split()
    return float(milliseconds), float(mebibytes)


def _metrics() -> Metrics:
    """Return metrics as if 1,000 slices had been served."""
    metrics = Metrics(version="benchmark")
    for method in ("get", "list", "create", "delete", "operation"):
        for kind in (None, "quota", "stockout", "unknown"):
            metrics.gke.observe(method, seconds=0.2, error_kind=kind)
    phases = {"provisioning": _SLICES // 2, "in_use": _SLICES // 2}
    chips = {phase: 8 * slices for phase, slices in phases.items()}
    for name, values, label in (
        ("slices", phases, "phase"),
        ("node_pools", phases, "phase"),
        ("chips", chips, "state"),
    ):
        metrics.show([Shown(name, "A benchmark.", values, (label,))])
    metrics.observe_round(seconds=0.1, result="ok", ended_at_seconds=0.0)
    metrics.decide_seconds.observe(0.1)
    return metrics


def _median(port: int, path: str, *, keep: bool) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def ask() -> None:
        connection.request("GET", path)
        connection.getresponse().read()
        if not keep:
            connection.close()

    try:
        return statistics.median(_timed(ask) for _ in range(_SCRAPES))
    finally:
        connection.close()


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000
