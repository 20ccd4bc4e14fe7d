"""Alerts about partitions of Graphcore IPUs and their controller."""

from __future__ import annotations

from generators.alert_form import CRITICAL, EACH, ENDS, WARNING, Rule, gone, metric
from provisioner.kube.watches import MAX_SILENCE_SECONDS
from provisioner.partitions.metrics import PREFIX

_NOTHING_DONE = (
    "Until then pods that ask for IPUs wait, and IPUs of pods that have ended stay taken. Running pods are not "
    "affected."
)
RULES = (
    Rule(
        name="IPUPartitionsAbsent",
        slug="partitions-absent",
        query=gone(PREFIX),
        minutes=10,
        severity=CRITICAL,
        summary="No controller of IPU partitions is scraped any more.",
        description=f"Either none runs, or its metrics do not arrive. {_NOTHING_DONE} {ENDS}",
    ),
    Rule(
        name="IPUPartitionsWithoutLeader",
        slug="partitions-no-leader",
        query=f"{metric('leader', function='sum', prefix=PREFIX)} < 1",
        minutes=5,
        severity=CRITICAL,
        summary="No controller of IPU partitions leads.",
        description=f"The log says which process holds the Lease. {_NOTHING_DONE}",
    ),
    Rule(
        name="IPUPartitionsLoopStalled",
        slug="partitions-loop-stalled",
        query=f"time() - {metric('loop_last_round_timestamp_seconds', prefix=PREFIX)} > 300",
        minutes=5,
        severity=CRITICAL,
        summary="The controller of IPU partitions has not finished a round for five minutes.",
        description=f"The log says why. {_NOTHING_DONE}",
    ),
    Rule(
        name="IPUPartitionsWatchStale",
        slug="partitions-watch-stale",
        query=f"{metric('watch_last_contact_age_seconds', 'pod', 'resource', prefix=PREFIX)} > "
        f"{MAX_SILENCE_SECONDS:.0f}",
        minutes=5,
        severity=CRITICAL,
        labels=("pod", "resource"),
        summary="The controller of IPU partitions receives nothing about <resource> from the API server.",
        description=f"Replica <pod> decides nothing on a list that may be old. {_NOTHING_DONE}",
    ),
    Rule(
        name="IPUPartitionsLedgerUnknown",
        slug="partitions-ledger-unknown",
        # Only the leader counts, because other replicas need not know the ledger.
        query=f"{metric('ledger_known', prefix=PREFIX)} < 1 and {metric('leader', prefix=PREFIX)} > 0",
        minutes=10,
        severity=CRITICAL,
        summary="The controller of IPU partitions cannot read which partition is whose.",
        description=f"/readyz and the log (ledger.not_read) say why. {_NOTHING_DONE}",
    ),
    Rule(
        name="IPUPartitionsServerUnreadable",
        slug="partitions-server-unreadable",
        query=f"{metric('server_readable', 'server', prefix=PREFIX)} < 1",
        minutes=15,
        severity=WARNING,
        labels=("server",),
        summary="The V-IPU server <server> cannot be read.",
        description="Nothing is created or removed on it; other servers are not affected. The log (server.not_read) "
        "has its message.",
    ),
    Rule(
        name="IPUPartitionsPodWaits",
        slug="partitions-pod-waits",
        query=f"{metric('oldest_wait_seconds', prefix=PREFIX)} > 3600 and "
        f"{metric('ipus_free', prefix=PREFIX)} >= {metric('oldest_wait_ipus', prefix=PREFIX)}",
        minutes=30,
        severity=WARNING,
        summary="A pod has waited for IPUs for an hour, although an allocation has as many free.",
        description="An Event PartitionWaiting or PartitionFailed on the pod says what it waits for.",
    ),
    Rule(
        name="IPUPartitionsOrphans",
        slug="partitions-orphans",
        query=f"{metric('partitions', prefix=PREFIX, phase='orphan')} > 0",
        minutes=30,
        severity=WARNING,
        summary="For half an hour there have been IPU partitions of this cluster that no pod has.",
        description="Their IPUs stay taken. The log (partition.remove_failed, partition.kept) says what keeps them.",
    ),
    Rule(
        name="IPUPartitionsDecisionFaults",
        slug="partitions-decision-faults",
        query=f"sum by ({EACH}) (increase({PREFIX}decision_faults_total[10m])) > 0",
        minutes=1,
        severity=WARNING,
        summary="The controller of IPU partitions cannot decide about a pod, a partition or a server.",
        description="It is a mistake of the controller; others are not affected. The log (decision.failed) names it.",
    ),
)
