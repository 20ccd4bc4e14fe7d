"""Acting: sends what was decided, and hands the answers back to the loop.

Nothing here waits for a partition: a call is submitted, and later rounds see how it went. Each V-IPU server has threads
of its own, and so have writes to Kubernetes, so that none waits for what is slower.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from provisioner import kube
from provisioner.kube.errors import failure_of
from provisioner.kube.gates import why_kept
from provisioner.kube.protocol import Api
from provisioner.model.capacity import Failure, FailureKind
from provisioner.model.writes import WriteFailure
from provisioner.partitions.gate import Gate
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
from provisioner.partitions.planning.ledger import Ledger
from provisioner.partitions.planning.plan import Plan
from provisioner.partitions.planning.snapshot import Reading
from provisioner.partitions.store import WRITE_SECONDS, LedgerStore
from provisioner.partitions.vipu.protocol import Vipu, VipuError
from provisioner.partitions.writing import open_gate, take_back
from provisioner.runtime.actor import NO_LEASE, CallingActor

_log = structlog.get_logger(__name__)


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
                functools.partial(self._write, write),
                self.write_executor,
                key=write.key,
                not_sent=functools.partial(self._not_written, write),
            )
        for call in plan.calls:
            line = self.servers[call.server]
            self.submit(
                functools.partial(self._call, line.vipu, call),
                line.reads if isinstance(call, ReadServer) else line.changes,
                key=call.key,
                not_sent=functools.partial(self._not_called, call),
            )

    # --- V-IPU ---

    def _call(self, vipu: Vipu, call: Call) -> CallAnswer:
        if not isinstance(call, ReadServer) and self.lease_seconds() <= 0:
            return self._not_called(call, NO_LEASE)
        if isinstance(call, RemovePartition):
            kept = why_kept(functools.partial(self.gate.pass_through, call), call=call.key)
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
        kind = failure.kind if failure is not None else None
        self.metrics.observe_call(name_of(call), seconds=self.monotonic() - started, failure=kind)
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


def name_of(call: Call) -> str:
    """Return the name of a call, as metrics and log lines have it."""
    match call:
        case ReadServer():
            return "read"
        case CreatePartition():
            return "create"
        case RemovePartition():
            return "remove"
