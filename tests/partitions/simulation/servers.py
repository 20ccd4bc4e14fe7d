"""V-IPU servers in virtual time, which use the model of the simulated server."""

from __future__ import annotations

import random
from collections.abc import Callable

from provisioner.model.capacity import Failure, FailureKind
from provisioner.partitions.planning.actions import Call, CreatePartition, ReadServer, RemovePartition
from provisioner.partitions.vipu.records import Allocation, Partition, PartitionState
from provisioner.settings.partitions import Server
from rehearsal.simulators.vipu.model import World
from rehearsal.simulators.vipu.records import Asked, PartitionView, Phase, VipuRefusalError
from rehearsal.simulators.vipu.settings import VipuSettings
from tests.support.simulations.stage import Stage

_KINDS = {
    "InvalidArgument": FailureKind.INVALID,
    "NotFound": FailureKind.NOT_FOUND,
    "AlreadyExists": FailureKind.ALREADY_EXISTS,
    "FailedPrecondition": FailureKind.OPERATION_IN_THE_WAY,
    "ResourceExhausted": FailureKind.STOCKOUT,
    "Unavailable": FailureKind.UNAVAILABLE,
}
_STATES = {
    Phase.CREATING: PartitionState.OTHER,
    Phase.REMOVING: PartitionState.OTHER,
    Phase.ACTIVE: PartitionState.ACTIVE,
    Phase.BROKEN: PartitionState.ERROR,
}


class VipuServer:
    """One simulated V-IPU server."""

    def __init__(self, stage: Stage, server: Server, settings: VipuSettings, *, tells_sizes: bool) -> None:
        self.stage, self.server = stage, server
        self.world = World(settings, clock=stage.wall, rng=random.Random(stage.rng.random()))
        self.tells_sizes = tells_sizes
        self.on_change: Callable[[Call], None] = lambda _call: None
        #: Time at which a fault last took each partition from its pod, by partition id.
        self.robbed: dict[str, float] = {}
        #: Start of the last outage, and time from which the server can be reached again.
        self.down_at = self.back_at = 0.0

    def partitions(self) -> dict[str, PartitionView]:
        return {view.id: view for view in self.world.all_partitions()}

    @property
    def is_down(self) -> bool:
        return self.stage.agenda.now < self.back_at

    def is_active(self, partition_id: str) -> bool:
        view = self.partitions().get(partition_id)
        return view is not None and view.phase is Phase.ACTIVE

    def send(self, call: Call, answer: Callable[[object | None, Failure | None], None]) -> None:
        """Execute a request. Call `answer` when the simulated server would answer, with the result or a failure."""
        self.on_change(call)
        try:
            if isinstance(call, ReadServer):
                answer(self._read(), None)
                return
            number = self._begin(call)
        except VipuRefusalError as refusal:
            failure = failure_of(refusal, changing=not isinstance(call, ReadServer))
            answer(None, failure)
            return
        self._await(number, answer)

    def _begin(self, call: CreatePartition | RemovePartition) -> int:
        if isinstance(call, RemovePartition):
            return self.world.remove(call.id)
        request = call.request
        return self.world.create(
            Asked(
                id=request.id, size=request.size, allocation=request.allocation, reconfigurable=request.reconfigurable
            )
        )

    def _await(self, number: int, answer: Callable[[object | None, Failure | None], None]) -> None:
        outcome = self.world.outcome(number)
        if outcome.done:
            failed = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message=outcome.failure) if outcome.failure else None
            answer(None, failed)
        elif outcome.at is None:
            # The change never ends, so the client gives up after its deadline of 120 s.
            lost = Failure(kind=FailureKind.UNKNOWN_OUTCOME, message="deadline exceeded")
            self.stage.after(120.0, lambda: answer(None, lost))
        else:
            seconds = max(0.001, (outcome.at - self.stage.wall()).total_seconds())
            self.stage.after(seconds, lambda: self._await(number, answer))

    def _read(self) -> tuple[tuple[Allocation, ...], tuple[Partition, ...]]:
        listed = self.world.settings.lists_allocations
        return (
            tuple(
                Allocation(
                    name=allocation.name, cluster=allocation.cluster, ipus=allocation.ipus if self.tells_sizes else None
                )
                for allocation in self.world.allocations()
            ),
            tuple(
                Partition(
                    id=partition.id,
                    size=partition.size,
                    state=_STATES[partition.phase],
                    state_text=partition.state,
                    cluster=partition.cluster,
                    allocation=partition.allocation if listed else "",
                )
                for partition in self.world.partitions()
            ),
        )

    def restart(self, *, keeps_partitions: bool, down_seconds: float) -> None:
        """Restart the server; unless `keeps_partitions` is true, its partitions are lost."""
        if not keeps_partitions:
            self._rob(*self.partitions())
        self._rob(*(view.id for view in self.partitions().values() if view.phase is not Phase.ACTIVE))
        if not self.is_down:
            self.down_at = self.stage.agenda.now
        self.back_at = self.stage.agenda.now + down_seconds
        self.world.restart(keeps_partitions=keeps_partitions, down_seconds=down_seconds)

    def vanish(self, partition_id: str) -> None:
        self._rob(partition_id)
        self.world.vanish(partition_id)

    def spoil(self, partition_id: str) -> None:
        self._rob(partition_id)
        self.world.spoil(partition_id)

    def _rob(self, *partition_ids: str) -> None:
        for id_ in partition_ids:
            self.robbed[id_] = self.stage.agenda.now


def failure_of(refusal: VipuRefusalError, *, changing: bool) -> Failure:
    kind = _KINDS.get(refusal.grpc_code)
    if kind is None:
        kind = FailureKind.UNKNOWN_OUTCOME if changing else FailureKind.UNAVAILABLE
    return Failure(kind=kind, message=refusal.message)
