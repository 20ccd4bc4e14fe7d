"""Observing: pods, the ledger, and the servers as they were last read, put together into a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from provisioner.kube import fields
from provisioner.kube.errors import NotFound
from provisioner.kube.live import Rereading, read_cluster_uid
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.kube.reflector import Collection
from provisioner.kube.watches import UNFINISHED, ListWatch, Watch, doubt_of
from provisioner.model.capacity import Failure
from provisioner.partitions import names
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.planning.actions import CallAnswer, ReadServer, SaveLedger, WriteAnswer
from provisioner.partitions.planning.ledger import Ledger, ledger_of, of_cluster
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.vipu.protocol import Reading
from provisioner.runtime.clock import shifted
from provisioner.settings.partitions import Server

_log = structlog.get_logger(__name__)

#: The ledger is read so often though nobody else writes to it.
_REREAD_SECONDS = 60.0
#: The loop waits for these reads.
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)


def make_pod_watch(api: Api, on_change: Callable[[], None], parse: Callable[[object], Pod] = parse_pod) -> Watch[Pod]:
    """Make the list-watch of pods; it is not started yet."""
    return ListWatch(
        api,
        Collection(name="pods", resource="pods", query={"labelSelector": names.POD_LABEL, "fieldSelector": UNFINISHED}),
        parse=parse,
        on_change=on_change,
    )


def make_ledger_watch(api: Api, namespace: str) -> Watch[Ledger]:
    """Make the list-watch of the ledger, for replicas that only answer; it is not started yet."""
    return ListWatch(
        api,
        Collection(
            name="configmaps",
            resource="configmaps",
            namespace=namespace,
            query={"fieldSelector": f"metadata.name={names.LEDGER_CONFIGMAP_NAME}"},
        ),
        parse=_parse_ledger,
        # Requests read the ledger when they come.
        on_change=lambda: None,
    )


def _parse_ledger(raw: object) -> Ledger:
    whole = fields.mapping(raw)
    version = fields.text(fields.mapping(whole.get("metadata")).get("resourceVersion"))
    return ledger_of(whole.get("data"), resource_version=version)


@dataclass(slots=True, kw_only=True)
class Known(Rereading):
    """What is known beside the pods: the ledger, the cluster and its servers. Used by the loop's thread alone."""

    #: The controller's own, with the ledger.
    namespace: str
    servers: Sequence[Server]
    #: None: it has to be read before anything is decided.
    ledger: Ledger | None = None
    #: Of the namespace kube-system; empty until it was read.
    cluster_uid: str = ""
    _readings: dict[str, Reading] = field(default_factory=dict)
    _failing: dict[str, Failure] = field(default_factory=dict)

    def due_in_seconds(self, now: datetime, *, leading: bool) -> float:
        """Return in how many seconds something has to be read; a follower has to know the cluster alone."""
        if self.cluster_uid and not leading:
            return float("inf")
        is_known = self.cluster_uid and self.ledger is not None
        # Somebody may have repaired an entry by hand.
        return self.left_seconds(now, _REREAD_SECONDS if is_known else self.retry_seconds())

    def read(self, *, leading: bool) -> None:
        """Read what is not known, or the ledger again: two calls at most. What was known stays where that fails."""

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

    def fold(self, answer: CallAnswer | WriteAnswer) -> None:
        """Take note of an answer."""
        if isinstance(answer, WriteAnswer):
            if isinstance(answer.write, SaveLedger):
                # Whether a write took effect that failed is not known: what there is has to be read.
                self.ledger = answer.ledger if answer.failure is None else None
        elif isinstance(answer.call, ReadServer):
            address = answer.call.server
            if answer.failure is not None:
                self._failing[address] = answer.failure
            elif answer.reading is not None:
                self._readings[address] = answer.reading
                self._failing.pop(address, None)

    def clock_set(self, by: timedelta) -> None:
        """Take note that the clock was set: what was read is as old as it was."""
        self._readings = shifted(self._readings, by)
        self.tried_at = shifted(self.tried_at, by)

    def snapshot(self, pods: Watch[Pod], live: frozenset[str] = frozenset()) -> Snapshot:
        """Put together what one decision sees."""
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
