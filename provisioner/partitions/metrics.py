"""Metrics of the controller of partitions. Labels have bounded values, and never contain names of pods."""

from __future__ import annotations

from provisioner.partitions.planning.picture import ORPHAN
from provisioner.partitions.planning.standing import Phase
from provisioner.runtime.metrics import LoopMetrics, Registry

PREFIX = "tpu_provisioner_partitions_"
DONE = "ok"
#: Values of the label `phase`, as the status page shows them.
PHASES = (*(each.value for each in Phase), ORPHAN)
_CALL_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


class Metrics(LoopMetrics):
    """Metrics of one process; any thread may change them."""

    def __init__(self, *, version: str) -> None:
        registry = Registry(PREFIX, version=version)
        super().__init__(registry)
        self.partitions = registry.picture("partitions", "Partitions of this cluster, by phase.", "phase")
        self.held = registry.picture("ipus_held", "IPUs of these partitions, by phase.", "phase")
        self.waiting = registry.gauge("pods_waiting", "Pods that wait for their partition.")
        self.oldest_seconds = registry.gauge(
            "oldest_wait_seconds", "How long the pod that waits longest has waited; 0: none waits."
        )
        self.oldest_ipus = registry.gauge("oldest_wait_ipus", "IPUs that this pod asks for.")
        self.ipus = registry.picture(
            "ipus", "IPUs of an allocation; absent if the server does not say.", "server", "allocation"
        )
        self.free = registry.picture("ipus_free", "IPUs of an allocation in no partition.", "server", "allocation")
        self.waited = registry.histogram(
            "pod_wait_seconds", "Time from a pod's creation until it could be scheduled.", _WAIT_BUCKETS
        )
        self.call_seconds = registry.histogram(
            "vipu_call_duration_seconds", "Duration of calls to V-IPU servers.", _CALL_BUCKETS, "call"
        )
        self.call_errors = registry.counter(
            "vipu_call_errors", "Calls to V-IPU servers that failed, by kind of failure.", "call", "kind"
        )
        self.kept = registry.counter(
            "removals_kept", "Removals of partitions that were not sent because the pod had not ended."
        )
        self.orphans = registry.counter("orphans_removed", "Removed partitions that no pod had.")
        self.writes = registry.counter(
            "writes", "Writes to Kubernetes, by what is written and result.", "write", "result"
        )
        self.readable = registry.picture(
            "server_readable", "1 when the last read of a V-IPU server succeeded.", "server"
        )
        self.faults = registry.counter(
            "decision_faults", "Decisions that failed because of a mistake in the controller."
        )
        self.ledger_known = registry.gauge("ledger_known", "1 when the ledger is known; 0: nothing is changed.")
