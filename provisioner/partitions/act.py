"""Acting: sends what was decided, and hands the answers back to the loop.

Nothing here waits for a partition: a call is submitted, and later rounds see how it went. Each V-IPU server has threads
of its own, and so have writes to Kubernetes, so that none waits for what is slower. Right before a partition is
removed, what was decided on a cache is read live (`Gate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import structlog

from provisioner import kube
from provisioner.kube.errors import failure_of
from provisioner.kube.gates import KeptError, why_kept
from provisioner.kube.live import list_all
from provisioner.kube.protocol import Api, Timeouts, collection_path, object_path
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.partitions import names
from provisioner.partitions.demand import Pod, parse_pod
from provisioner.partitions.metrics import Metrics
from provisioner.partitions.planning.calls import (
    Answer,
    Call,
    CallAnswer,
    CreatePartition,
    OpenGate,
    ReadServer,
    RemovePartition,
    SaveLedger,
    TakeBack,
    Write,
    WriteAnswer,
)
from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.vipu.protocol import Reading, Vipu, VipuError
from provisioner.partitions.writing import WRITE_SECONDS, LedgerStore, open_gate, take_back
from provisioner.runtime.actor import NO_LEASE, CallingActor

_log = structlog.get_logger(__name__)
#: As metrics have them.
_NAMES: Mapping[type[Call], str] = {ReadServer: "read", CreatePartition: "create", RemovePartition: "remove"}


_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Lets a removal through, or raises KeptError. Raises ClusterError where Kubernetes does not answer."""

    api: Api
    cluster_uid: Callable[[], str]

    def pass_through(self, call: RemovePartition) -> None:
        """Prove that no pod may use the partition any more."""
        if not call.id.startswith(names.id_prefix(self.cluster_uid())):
            raise KeptError("it is no partition of this cluster")
        if call.pod is None:
            query = {"labelSelector": names.POD_LABEL}
            for pod in list_all(self.api, collection_path("pods"), query, parse_pod):
                if names.owner_id(self.cluster_uid(), pod.uid) == names.owner_of(call.id):
                    self._refuse_if_used(pod, call)
            return
        namespace, name, uid = call.pod
        try:
            raw = self.api.get(object_path("pods", name, namespace=namespace), timeouts=_TIMEOUTS)
        except kube.NotFound:
            return
        pod = parse_pod(raw)
        if pod.uid == uid:
            self._refuse_if_used(pod, call)

    def _refuse_if_used(self, pod: Pod, call: RemovePartition) -> None:
        if pod.finished or pod.released:
            return
        if pod.told_partition not in ("", call.id):
            return
        if call.unused and not pod.begun:
            # Its init container waits for it.
            return
        if pod.deletion_deadline is not None and pod.deletion_deadline == call.past_deletion:
            # It has had its grace, as this process counts time.
            return
        raise KeptError(f"pod {pod.namespace}/{pod.name} has not ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A V-IPU server, and where its calls run."""

    vipu: Vipu
    #: Creates take minutes.
    changes: Executor
    reads: Executor


@dataclass(slots=True, kw_only=True)
class Actor(CallingActor[Answer]):
    """Carries plans out. The key of a call is that of its `Call` or `Write`."""

    #: By HOST:PORT.
    servers: Mapping[str, Line]
    api: Api
    store: LedgerStore
    gate: Gate
    #: Where writes to Kubernetes run.
    write_executor: Executor
    metrics: Metrics

    def carry_out(self, plan: Plan) -> None:
        """Submit everything in a plan; returns at once. What cannot be submitted costs nothing else its turn."""
        for write in plan.writes:
            self.submit(
                partial(self._write, write),
                self.write_executor,
                key=write.key,
                not_sent=partial(self._not_written, write),
            )
        for call in plan.calls:
            line = self.servers[call.server]
            self.submit(
                partial(self._call, line.vipu, call),
                line.reads if isinstance(call, ReadServer) else line.changes,
                key=call.key,
                not_sent=partial(self._not_called, call),
            )

    # --- V-IPU ---

    def _call(self, vipu: Vipu, call: Call) -> CallAnswer:
        if not isinstance(call, ReadServer) and self.lease_seconds() <= 0:
            return self._not_called(call, NO_LEASE)
        if isinstance(call, RemovePartition):
            kept = why_kept(partial(self.gate.pass_through, call), call=call.key)
            if kept is not None:
                return CallAnswer(call=call, asked_at=self.clock(), at=self.clock(), kept=kept)
            # Again: the gate may have taken long.
            if self.lease_seconds() <= 0:
                return self._not_called(call, NO_LEASE)
        return self._send(vipu, call)

    def _send(self, vipu: Vipu, call: Call) -> CallAnswer:
        asked_at, started = self.clock(), self.monotonic()
        failure: Failure | None = None
        reading: Reading | None = None
        try:
            match call:
                case ReadServer():
                    allocations, partitions = vipu.list_allocations(), vipu.list_partitions()
                    reading = Reading(
                        asked_at=asked_at, at=self.clock(), allocations=allocations, partitions=partitions
                    )
                case CreatePartition():
                    vipu.create_partition(call.request)
                case RemovePartition():
                    vipu.remove_partition(call.id)
        except VipuError as error:
            failure = error.failure
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            # Whatever it was, the command may have had its effect.
            _log.exception("call.crashed", call=call.key)
            failure = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=repr(error))
        self.metrics.call_seconds.labels(_NAMES[type(call)]).observe(self.monotonic() - started)
        if failure is not None:
            self.metrics.call_errors.labels(_NAMES[type(call)], failure.kind.value).inc()
        return CallAnswer(call=call, asked_at=asked_at, at=self.clock(), reading=reading, failure=failure)

    def _not_called(self, call: Call, why: str) -> CallAnswer:
        failure = Failure(kind=FailureKind.UNAVAILABLE, message=why)
        return CallAnswer(call=call, asked_at=self.clock(), at=self.clock(), failure=failure)

    # --- Kubernetes ---

    def _write(self, write: Write) -> WriteAnswer:
        if self.lease_seconds() <= WRITE_SECONDS:
            return self._not_written(write, NO_LEASE)
        failure, message = None, ""
        ledger: Ledger | None = None
        try:
            match write:
                case SaveLedger():
                    ledger = self.store.save(write.before, write.entries)
                case OpenGate():
                    open_gate(self.api, write)
                case TakeBack():
                    take_back(self.api, write)
        except kube.ClusterError as error:
            failure, message = failure_of(error), str(error)
        except Exception as error:  # noqa: BLE001 - the answer must not be lost
            _log.exception("write.crashed", write=write.key)
            failure, message = WriteFailure.UNAVAILABLE, repr(error)
        return WriteAnswer(write=write, at=self.clock(), failure=failure, message=message, ledger=ledger)

    def _not_written(self, write: Write, why: str) -> WriteAnswer:
        return WriteAnswer(write=write, at=self.clock(), failure=WriteFailure.UNAVAILABLE, message=why)
