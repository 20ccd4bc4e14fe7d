"""Metrics of the controller of partitions. Labels never contain names of pods."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from provisioner.partitions.planning.entry_status import Phase
from provisioner.partitions.planning.picture import ORPHAN, View
from provisioner.partitions.planning.round import ServerView
from provisioner.runtime.metrics import ActionMetrics, Registry, Shown

PREFIX = "tpu_provisioner_partitions_"
PHASES = (*(phase.value for phase in Phase), ORPHAN)
_CALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: Descriptions of the labels for docs/metrics.md.
LABELS = {
    "phase": f"the phase of a partition: {', '.join(f'`{phase}`' for phase in PHASES)}",
    "call": "`read`, `create` or `remove`, at a V-IPU server",
    "server": "a V-IPU server, HOST:PORT",
    "allocation": "an allocation of it",
}


class Metrics(ActionMetrics):
    """Metrics of one process; any thread may change them."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self.waited = registry.histogram(
            "pod_wait_seconds", "Time from a pod's creation until it could be scheduled.", _WAIT_BUCKETS
        )
        self._call_seconds = registry.histogram(
            "vipu_call_duration_seconds", "Duration of calls to V-IPU servers.", _CALL_BUCKETS, "call"
        )
        self._call_errors = registry.counter(
            "vipu_call_errors", "Calls to V-IPU servers that failed, by kind of failure.", "call", "kind"
        )
        self.kept = registry.counter(
            "removals_kept", "Removals of partitions that were not sent because the pod had not ended."
        )
        self.orphans = registry.counter("orphans_removed", "Removed partitions that no pod had.")
        self.faults = registry.counter(
            "decision_faults", "Decisions that failed because of a mistake in the controller."
        )
        self.ledger_known = registry.gauge("ledger_known", "1 when the ledger is known; 0: nothing is changed.")
        self.show(values_of(View(), (), datetime.now(UTC)))

    def observe_call(self, method: str, *, seconds: float, error_kind: str | None, code: int) -> None:  # noqa: ARG002
        """Implement ActionMetrics.observe_call. `code` is not used, because `vipu` returns no HTTP status."""
        self._call_seconds.labels(method).observe(seconds)
        if error_kind is not None:
            self._call_errors.labels(method, error_kind).inc()


def values_of(view: View, servers: Iterable[ServerView], now: datetime) -> Iterator[Shown]:
    """Yield the gauges that show a decision."""
    partitions, ipus = Counter(dict.fromkeys(PHASES, 0)), Counter(dict.fromkeys(PHASES, 0))
    for partition in view.partitions:
        partitions[partition.phase] += 1
        ipus[partition.phase] += partition.ipus
    yield Shown("partitions", "Partitions of this cluster, by phase.", partitions, ("phase",))
    yield Shown("ipus_held", "IPUs of these partitions, by phase.", ipus, ("phase",))
    waits = [((now - waiting.since).total_seconds(), waiting.ipus) for waiting in view.waiting]
    oldest_seconds, oldest_ipus = max(waits, default=(0.0, 0))
    yield Shown("pods_waiting", "Pods that wait for their partition.", len(waits))
    text = "How long the pod that waits longest has waited; 0: none waits."
    yield Shown("oldest_wait_seconds", text, max(0.0, oldest_seconds))
    yield Shown("oldest_wait_ipus", "IPUs that this pod asks for.", oldest_ipus)
    sites, labels = {(supply.server, supply.allocation): supply for supply in view.supply}, ("server", "allocation")
    all_ipus = {site: supply.ipus for site, supply in sites.items() if supply.ipus is not None}
    free = {site: supply.free for site, supply in sites.items() if supply.free is not None}
    yield Shown("ipus", "IPUs of an allocation; absent if the server does not say.", all_ipus, labels)
    yield Shown("ipus_free", "IPUs of an allocation in no partition.", free, labels)
    readable = {server.server.address: server.reading is not None and server.failure is None for server in servers}
    yield Shown("server_readable", "1 when the last read of a V-IPU server succeeded.", readable, ("server",))
