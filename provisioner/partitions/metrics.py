"""Every metric of the controller of partitions: a definition, and the method that sets it.

Labels are bounded: servers and allocations of the settings' making, calls, kinds; never names of pods. docs/metrics.md
is made from the texts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provisioner.model.capacity import FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.partitions.planning.plan import Supply
from provisioner.runtime.metrics import LoopMetrics, Registry

PREFIX = "tpu_provisioner_partitions_"
DONE = "ok"
WRITE_RESULTS = (DONE, *(failure.value for failure in WriteFailure))
#: As `Holding.phase` has them.
PHASES = ("wanted", "creating", "active", "broken", "misplaced", "lost", "withdrawn", "releasing", "gone", "orphan")
_CALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


class Metrics(LoopMetrics):
    """The metrics of one process; setters may be called from any thread."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self._partitions = registry.picture("partitions", "Partitions of this cluster, by phase.", "phase")
        self._held = registry.picture("ipus_held", "IPUs of these partitions, by phase.", "phase")
        self._waiting = registry.gauge("pods_waiting", "Pods that wait for their partition.")
        self._oldest = registry.gauge(
            "oldest_wait_seconds", "For how long the pod has waited that has waited for longest; 0 where none waits."
        )
        self._oldest_size = registry.gauge("oldest_wait_ipus", "How many IPUs that pod asks for; 0 where none waits.")
        self._total = registry.picture(
            "ipus", "IPUs of an allocation; absent where the server does not tell.", "server", "allocation"
        )
        self._free = registry.picture("ipus_free", "IPUs of an allocation in no partition.", "server", "allocation")
        self._waited = registry.histogram(
            "pod_wait_seconds", "How long pods waited from their creation until they could be scheduled.", _WAIT_BUCKETS
        )
        self._seconds = registry.histogram(
            "vipu_call_duration_seconds", "Duration of calls to V-IPU servers.", _CALL_BUCKETS, "call"
        )
        self._errors = registry.counter(
            "vipu_call_errors", "Calls to V-IPU servers that failed, by kind of failure.", "call", "kind"
        )
        self._kept = registry.counter(
            "removals_kept", "Removals of partitions that were not sent, because their pod had not ended."
        )
        self._orphans = registry.counter("orphans_removed", "Partitions of this cluster removed that no pod had.")
        self._writes = registry.counter(
            "writes", "Writes to Kubernetes, by what is written and result.", "write", "result"
        )
        self._readable = registry.picture(
            "server_readable", "1 when the last read of a V-IPU server succeeded, 0 when not.", "server"
        )
        self._faults = registry.counter(
            "decision_faults",
            "Pods, entries and servers about which nothing could be decided, because of a mistake here.",
        )
        self._ledger_known = registry.gauge(
            "ledger_known", "1 when the ledger is known; without it nothing is changed."
        )

    def observe_call(self, call: str, *, seconds: float, failure: FailureKind | None) -> None:
        """Take note of one call to a V-IPU server."""
        self._seconds.labels(call).observe(seconds)
        if failure is not None:
            self._errors.labels(call, failure.value).inc()

    def count_faults(self, count: int) -> None:
        """Count what could not be decided about."""
        self._faults.inc(count)

    def count_kept(self) -> None:
        """Count a removal that was not sent because its proof failed."""
        self._kept.inc()

    def count_orphan(self) -> None:
        """Count an orphan that was removed."""
        self._orphans.inc()

    def count_write(self, write: str, *, result: str) -> None:
        """Count a write that was answered; the result is one of `WRITE_RESULTS`."""
        self._writes.labels(write, result).inc()

    def observe_wait(self, *, seconds: float) -> None:
        """Take note of a pod that can be scheduled now."""
        self._waited.observe(seconds)

    def set_holdings(self, partitions: Mapping[str, int], ipus: Mapping[str, int]) -> None:
        """Set how many partitions and IPUs there are in each of `PHASES`; those not named become 0."""
        self._partitions.replace({phase: partitions.get(phase, 0) for phase in PHASES})
        self._held.replace({phase: ipus.get(phase, 0) for phase in PHASES})

    def set_waiting(self, count: int, *, oldest_seconds: float, oldest_ipus: int) -> None:
        """Set how many pods wait, for how long at most, and for how many IPUs that one does."""
        self._waiting.set(count)
        self._oldest.set(oldest_seconds)
        self._oldest_size.set(oldest_ipus)

    def set_supply(self, supply: Iterable[Supply]) -> None:
        """Set what there is."""
        told = [(each, each.total) for each in supply]
        self._total.replace({(each.server, each.allocation): total for each, total in told if total is not None})
        self._free.replace(
            {
                (each.server, each.allocation): max(0, total - each.ours - each.others)
                for each, total in told
                if total is not None
            }
        )

    def set_servers(self, readable: Mapping[str, bool]) -> None:
        """Set which servers can be read."""
        self._readable.replace({server: int(each) for server, each in readable.items()})

    def set_ledger_known(self, *, known: bool) -> None:
        """Set whether the ledger is known."""
        self._ledger_known.set(known)
