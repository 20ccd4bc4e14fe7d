"""Observes pods, the ledger and the last readings of the V-IPU servers, and combines them into a snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from provisioner.kube import fields
from provisioner.kube.errors import NotFound
from provisioner.kube.live import PeriodicRead, read_cluster_uid
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.kube.reflector import Collection
from provisioner.kube.watches import UNFINISHED, ListWatch, Watch, doubt_of
from provisioner.model.capacity import Failure
from provisioner.model.writes import AnsweredWrite
from provisioner.partitions import names
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.planning.actions import Answer, ReadServer, SaveLedger
from provisioner.partitions.planning.ledger import Ledger, ledger_of, of_cluster
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.records import Reading
from provisioner.runtime.clock import shifted
from provisioner.settings.partitions import Server

_log = structlog.get_logger(__name__)

#: Interval in seconds between reads of the ledger. Only the leader writes it, but a user may repair it by hand.
_REREAD_SECONDS = 60.0
#: Time-outs of reads of the ledger and of the cluster's UID. They are short, because the loop waits for these reads.
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)


def make_pod_watch(api: Api, on_change: Callable[[], None], parse: Callable[[object], Pod] = parse_pod) -> Watch[Pod]:
    """Return a list-watch of unfinished pods with POD_LABEL, without starting it."""
    return ListWatch(
        api,
        Collection(name="pods", resource="pods", query={"labelSelector": names.POD_LABEL, "fieldSelector": UNFINISHED}),
        parse=parse,
        on_change=on_change,
    )


def make_ledger_watch(api: Api, namespace: str) -> Watch[Ledger]:
    """Return a list-watch of the ledger for the REST API of this replica, without starting it."""
    return ListWatch(
        api,
        Collection(
            name="configmaps",
            resource="configmaps",
            namespace=namespace,
            query={"fieldSelector": f"metadata.name={names.LEDGER_CONFIGMAP_NAME}"},
        ),
        parse=_parse_ledger,
        # No reaction to changes is needed: each request reads the current ledger when it arrives.
        on_change=lambda: None,
    )


def _parse_ledger(raw: object) -> Ledger:
    version = fields.text(fields.at(raw, "metadata").get("resourceVersion"))
    return ledger_of(fields.mapping(raw).get("data"), resource_version=version)


@dataclass(slots=True, kw_only=True)
class Known(PeriodicRead):
    """The observed state except for the pods: ledger, cluster and servers. Only the loop's thread changes it."""

    #: Namespace of the controller and of the ledger.
    namespace: str
    servers: Sequence[Server]
    #: Ledger as last read or written; None if it has to be read before the next decision.
    ledger: Ledger | None = None
    #: UID of the namespace kube-system; empty until it has been read.
    cluster_uid: str = ""
    _readings: dict[str, Reading] = field(default_factory=dict)
    _failing: dict[str, Failure] = field(default_factory=dict)

    def due_in_seconds(self, now: datetime, *, leading: bool) -> float:
        """Return the seconds until the next read is due. A follower has to read only the cluster's UID."""
        if self.cluster_uid and not leading:
            return float("inf")
        is_known = self.cluster_uid and self.ledger is not None
        return self.left_seconds(now, _REREAD_SECONDS if is_known else self.retry_seconds())

    def read(self, *, leading: bool) -> None:
        """Read the cluster's UID if unknown, and the ledger if leading. If a read fails, the last values are kept."""

        def read() -> None:
            if not self.cluster_uid:
                self.cluster_uid = read_cluster_uid(self.api, timeouts=_TIMEOUTS)
            if leading:
                before, self.ledger = self.ledger, of_cluster(self._read_ledger(), self.cluster_uid)
                if self.ledger.unreadable and (before is None or before.unreadable != self.ledger.unreadable):
                    _log.warning("ledger.unreadable", entries=sorted(self.ledger.unreadable)[:10])

        trouble = "the ledger cannot be read:"
        self.attempt(read, trouble, failed_event="ledger.not_read", ended_event="ledger.read_again")

    def _read_ledger(self) -> Ledger:
        path = object_path("configmaps", names.LEDGER_CONFIGMAP_NAME, namespace=self.namespace)
        try:
            return _parse_ledger(self.api.get(path, timeouts=_TIMEOUTS))
        except NotFound:
            return Ledger()

    def fold(self, answer: Answer) -> None:
        """Record the ledger after a write, and a server's state or failure after a read."""
        if isinstance(answer, AnsweredWrite):
            if isinstance(answer.write, SaveLedger):
                # A failed write may have taken effect, so the ledger has to be read again.
                self.ledger = answer.result if answer.failure is None else None
        elif isinstance(answer.call, ReadServer):
            address = answer.call.server
            if answer.failure is not None:
                self._failing[address] = answer.failure
            elif answer.result is not None:
                self._readings[address] = answer.result
                self._failing.pop(address, None)

    def clock_set(self, by: timedelta) -> None:
        """Shift the recorded times after the clock was set, so that readings keep their age."""
        self._readings = shifted(self._readings, by)
        self.tried_at = shifted(self.tried_at, by)

    def snapshot(self, pods: Watch[Pod], live: frozenset[str] = frozenset()) -> Snapshot:
        """Return the snapshot for one decision."""
        is_known = self.ledger is not None and self.cluster_uid
        doubt = "" if is_known else self.problem or "the ledger is not read yet"
        return Snapshot(
            cluster_uid=self.cluster_uid,
            pods=tuple(pods.records().values()),
            ledger=self.ledger,
            servers=tuple(
                ServerView(
                    server=server, reading=self._readings.get(server.address), failure=self._failing.get(server.address)
                )
                for server in self.servers
            ),
            live=live,
            not_synced=tuple(filter(None, (doubt_of("pods", pods), doubt))),
        )
