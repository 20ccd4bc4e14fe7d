"""Traces of slices, exported to a collector in this process."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from provisioner.model.capacity import FailureKind
from provisioner.slices.tracing import Tracing, make_tracing
from tests.support.models import make_jobset
from tests.support.world import World, failure


class Collector:
    """Takes what is exported over OTLP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - name of http.server
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Note the spans of one request."""
        for resource in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return a collector, which ends with the test."""
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def tracing(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Tracing:
    """Return what exports to it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    made = make_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}, cluster="my-cluster")
    assert made is not None
    return made


def follow(world: World, tracing: Tracing) -> None:
    """Let one round be traced, and carry its plan out."""
    plan = world.step(seconds=0)
    tracing.follow(plan.pools, world.now)


def life(world: World, tracing: Tracing) -> None:
    """Bring a world's slices from waiting to running, half a minute for each step."""
    for act in (lambda: None, lambda: None, world.finish_creates, world.schedule):
        act()
        follow(world, tracing)
        world.pass_time(30)


def by_name(collector: Collector) -> dict[str, Any]:
    """Index the spans."""
    return {each.name: each for each in collector.spans}


def attributes(span: Any) -> dict[str, str]:
    """Return the attributes of a span that are texts."""
    return {each.key: each.value.string_value for each in span.attributes}


def test_one_trace_from_unschedulable_to_deleted(collector: Collector, tracing: Tracing) -> None:
    """Its children are the states, one after the other, within the root."""
    workload = make_jobset("train")
    world = World(workload)
    began = world.now
    world.pass_time(5)
    life(world, tracing)
    world.finish(workload)
    for _ in range(3):
        follow(world, tracing)
        world.pass_time(60)
    world.finish_deletes()
    follow(world, tracing)
    tracing.stop()
    spans = by_name(collector)
    root = spans.pop("slice train-slice-0")
    assert set(spans) == {"waiting", "joining", "ready", "running", "idle", "deleting"}
    assert {each.trace_id for each in spans.values()} == {root.trace_id}
    assert {each.parent_span_id for each in spans.values()} == {root.span_id}
    in_order = sorted(spans.values(), key=lambda each: each.start_time_unix_nano)
    assert all(one.end_time_unix_nano == other.start_time_unix_nano for one, other in itertools.pairwise(in_order))
    assert root.start_time_unix_nano == in_order[0].start_time_unix_nano == int(began.timestamp()) * 10**9
    assert root.end_time_unix_nano == in_order[-1].end_time_unix_nano == int(world.now.timestamp()) * 10**9
    told = attributes(root)
    assert told["tpu.workload"] == "JobSet/default/train"
    assert told["tpu.outcome"] == "deleted"
    assert told["tpu.node_pool"] in world.created
    assert collector.resources[0]["service.name"] == "tpu-provisioner"
    assert collector.resources[0]["k8s.cluster.name"] == "my-cluster"


def test_a_reused_pool_stays_in_one_trace(collector: Collector, tracing: Tracing) -> None:
    """Each state says which slice it was for."""
    first = make_jobset("first")
    world = World(first)
    life(world, tracing)
    world.finish(first)
    world.add(make_jobset("second"))
    world.schedule()
    follow(world, tracing)
    world.pass_time(30)
    world.pods.clear()
    world.workloads.clear()
    for _ in range(4):
        follow(world, tracing)
        world.pass_time(60)
        world.finish_deletes()
    follow(world, tracing)
    tracing.stop()
    running = [each for each in collector.spans if each.name == "running"]
    assert [attributes(each)["tpu.workload"] for each in running] == ["JobSet/default/first", "JobSet/default/second"]
    assert len({each.trace_id for each in running}) == 1


def test_a_failure_is_an_error_with_the_suppliers_words(collector: Collector, tracing: Tracing) -> None:
    """Those who look for errors find it."""
    world = World(make_jobset("train"))
    follow(world, tracing)
    (name,) = world.pools
    world.fail_pool(name, failure(FailureKind.STOCKOUT, "GCE_STOCKOUT: none left."))
    for _ in range(3):
        world.pass_time(30)
        follow(world, tracing)
        world.finish_deletes()
    follow(world, tracing)
    tracing.stop()
    failed = [each for each in collector.spans if each.status.code == 2]
    assert failed
    assert "none left" in failed[0].status.message


def test_a_slice_that_finds_another_pool_ends_its_trace(collector: Collector, tracing: Tracing) -> None:
    """Nothing was created for it."""
    world = World(make_jobset("train"))
    world.refuse_create = lambda _: failure(FailureKind.STOCKOUT, "No capacity.")
    follow(world, tracing)
    world.workloads.clear()
    world.pods.clear()
    world.now += timedelta(seconds=10)
    follow(world, tracing)
    follow(world, tracing)
    tracing.stop()
    outcomes = {attributes(each).get("tpu.outcome") for each in collector.spans if each.name.startswith("slice")}
    assert outcomes <= {"not created", "deleted"}
    assert outcomes


def test_nobody_asks_for_traces() -> None:
    """Nothing is imported, nothing runs."""
    assert make_tracing({}, cluster="c") is None
    disabled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}
    assert make_tracing(disabled, cluster="c") is None


def test_without_the_extra_the_log_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller runs all the same."""
    for name in [each for each in sys.modules if each.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with capture_logs() as logged:
        assert make_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, cluster="c") is None
    assert [each["event"] for each in logged] == ["tracing.not_installed"]
    assert "tpu-provisioner[tracing]" in logged[0]["advice"]


def test_a_collector_that_is_away_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be exported is dropped."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    made = make_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, cluster="c")
    assert made is not None
    world = World(make_jobset("train"))
    life(world, made)
    made.stop()
    assert world.created


def test_a_collector_that_accepts_and_never_answers_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has 30 seconds to end; most of them are for calls to GKE."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        made = make_tracing(os.environ, cluster="my-cluster")
        assert made is not None
        world = World(make_jobset("train"))
        made.follow(world.look().pools, world.now)
        made.follow((), world.now)
        began = time.monotonic()
        made.stop()
        assert time.monotonic() - began < 4
