"""Traces for OpenTelemetry, where somebody collects them: one for each slice, from its wait to the end of its pool.

The root span is the node pool's whole story, as a row of the timeline is; its children are the states that it went
through, each with the slice that it was in for. A pool that is reused stays in one trace. Nothing is exported but over
OTLP, to the address in OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and the like), and only where the
extra `tracing` is installed. Spans that are open when the process ends are lost; a new process begins a new trace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

import provisioner
from provisioner.model.capacity import PoolName
from provisioner.slices.planning.plan import PoolState
from provisioner.slices.view.changes import Follower
from provisioner.slices.view.ids import slice_of_pool, workload_of_pool
from provisioner.slices.view.states import state_of
from provisioner.slices.view.types import State

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_log = structlog.get_logger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SERVICE = "tpu-provisioner"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STOP_SECONDS = 2.0


@dataclass(slots=True)
class _Open:
    """The spans of one pool that have not ended."""

    root: Span
    child: Span
    #: Whether it was ever more than wanted.
    created: bool = False


@dataclass(slots=True, kw_only=True)
class Tracing:
    """Turns what changes from round to round into spans. Used by the loop's thread alone."""

    provider: TracerProvider
    _open: dict[PoolName, _Open] = field(default_factory=dict)
    _follower: Follower = field(default_factory=Follower)

    def follow(self, pools: Iterable[PoolState], now: datetime) -> None:
        """Begin and end spans for what has changed since the last round."""
        changes = self._follower.follow(pools)
        for pool in changes.begun:
            self._begin(pool, now)
        for pool in changes.changed:
            self._go_on(self._open[pool.name], pool, now)
        for name in changes.ended:
            self._end(name, now)

    def stop(self) -> None:
        """Export what has ended; what is open is lost, and what a collector does not take in two seconds."""
        # Its own time limits do not end an export that is under way, which is tried for ten seconds.
        stopping = threading.Thread(target=self._export_the_rest, name="tracing-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS)

    def _export_the_rest(self) -> None:
        self.provider.force_flush(int(_STOP_SECONDS * 1000))
        self.provider.shutdown()

    def _begin(self, pool: PoolState, now: datetime) -> None:
        began = now
        if pool.leader is not None and pool.leader.unschedulable_since is not None:
            began = min(now, pool.leader.unschedulable_since)
        tracer = self.provider.get_tracer(_SERVICE, provisioner.__version__)
        attributes = {"tpu.node_pool": pool.name, **_attributes(pool)}
        root = tracer.start_span(f"slice {pool.group_name}", attributes=attributes, start_time=_ns(began))
        child = self._child(root, pool, began)
        self._open[pool.name] = _Open(root, child, created=not pool.phase.before_create)

    def _go_on(self, spans: _Open, pool: PoolState, now: datetime) -> None:
        spans.child.end(_ns(now))
        spans.child = self._child(spans.root, pool, now)
        spans.created = spans.created or not pool.phase.before_create
        # The last slice that it was for.
        spans.root.set_attributes(_attributes(pool))

    def _child(self, root: Span, pool: PoolState, began: datetime) -> Span:
        from opentelemetry.trace import Status, StatusCode, set_span_in_context  # noqa: PLC0415 - an optional extra

        state = state_of(pool)
        child = self.provider.get_tracer(_SERVICE, provisioner.__version__).start_span(
            state.value, context=set_span_in_context(root), attributes=_attributes(pool), start_time=_ns(began)
        )
        if pool.note:
            child.set_attribute("tpu.reason", pool.note)
        if state is State.FAILED:
            child.set_status(Status(StatusCode.ERROR, pool.note))
            root.set_status(Status(StatusCode.ERROR, pool.note))
        return child

    def _end(self, name: PoolName, now: datetime) -> None:
        spans = self._open.pop(name)
        spans.child.end(_ns(now))
        spans.root.set_attribute("tpu.outcome", "deleted" if spans.created else "not created")
        spans.root.end(_ns(now))


def make_tracing(environment: Mapping[str, str], *, cluster: str) -> Tracing | None:
    """Return what exports traces; None where nobody asks for them, or the extra is not installed."""
    if not any(environment.get(name) for name in _ENDPOINTS) or environment.get("OTEL_SDK_DISABLED") == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        _log.warning(
            "tracing.not_installed",
            error=str(error),
            advice="install tpu-provisioner[tracing], or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        return None
    resource = Resource.create(
        {
            "service.name": environment.get("OTEL_SERVICE_NAME") or _SERVICE,
            "service.version": provisioner.__version__,
            "k8s.cluster.name": cluster,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _log.info("tracing.started", endpoint=next(filter(None, map(environment.get, _ENDPOINTS))))
    return Tracing(provider=provider)


def _attributes(pool: PoolState) -> dict[str, Any]:
    return {
        "tpu.slice": slice_of_pool(pool),
        "tpu.workload": workload_of_pool(pool),
        "k8s.namespace.name": pool.namespace,
        "tpu.machine_type": pool.machine_type,
        "tpu.topology": pool.topology,
        "tpu.chips": pool.chips,
        "tpu.hosts": pool.nodes,
    }


def _ns(moment: datetime) -> int:
    """Return nanoseconds since 1970; exact, as floats are not."""
    delta = moment - _EPOCH
    return ((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000
