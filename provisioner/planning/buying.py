"""What is done for the slices that want a pool and have none: a create, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from provisioner import constants
from provisioner.demand import Slice, SliceId
from provisioner.model.capacity import FailureKind, NodePoolRequest, PoolName, PoolStatus
from provisioner.model.workloads import jobset_ref, pod_ref
from provisioner.planning import backoff
from provisioner.planning.lifecycle import Phase
from provisioner.planning.memory import Backoff, CallState, Memory
from provisioner.planning.names import pool_name
from provisioner.planning.plan import Create, PoolState, Verdict
from provisioner.planning.specification import UnmeetableError, pool_request
from provisioner.planning.supply import Supply
from provisioner.planning.verdicts import underused, verdict
from provisioner.settings import Settings

#: Nobody but GKE and the way to it is at fault: told only when it lasts, and not as a warning.
_QUIET = frozenset({FailureKind.OPERATION_IN_THE_WAY, FailureKind.TOO_MANY_OPERATIONS, FailureKind.UNAVAILABLE})
_QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Buying:
    """What came of the slices that have no pool."""

    creates: tuple[Create, ...]
    verdicts: tuple[Verdict, ...]
    #: One line of the read model for each pool that does not exist yet.
    wanted: tuple[PoolState, ...]
    wake_at: tuple[datetime, ...]
    waits_for_operations: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacle:
    """Why a create has to wait."""

    note: str
    verdict: Verdict | None
    until: datetime | None = None


def buy(
    unserved: Iterable[Slice],
    owned: Mapping[SliceId, list[Supply]],
    supply: Mapping[PoolName, Supply],
    taken: Iterable[PoolName],
    memory: Memory,
    settings: Settings,
    slots: int | None,
    now: datetime,
) -> Buying:
    """Decide on a create for each slice, as far as `slots` and back-off allow. `taken` are names in use."""
    names = set(taken)
    slots = _limited(slots, memory)
    probes = _pools_in_making(supply)
    creates: list[Create] = []
    verdicts: list[Verdict] = []
    wanted: list[PoolState] = []
    wake_at: list[datetime] = []
    waits = False
    for slice_ in unserved:
        attempt = _next_attempt(slice_, owned, memory)
        try:
            request = pool_request(slice_, settings, attempt)
            while request.name in names:
                # Something is left of an earlier pool of that name, or somebody made one by hand.
                attempt += 1
                request = pool_request(slice_, settings, attempt)
        except UnmeetableError as error:
            verdicts.append(verdict(slice_, constants.INVALID_REQUEST, f"No TPU node pool is made: {error}"))
            name = pool_name(slice_.jobset.name, slice_.id, attempt)
            wanted.append(_wanted(slice_, name, Phase.BLOCKED, now, str(error)))
            continue
        obstacle = _obstacle(slice_, request, memory, probes, now)
        if obstacle is not None:
            wanted.append(_wanted(slice_, request.name, Phase.BLOCKED, now, obstacle.note))
            verdicts += [obstacle.verdict] if obstacle.verdict is not None else []
            wake_at += [obstacle.until] if obstacle.until is not None else []
        elif slots is not None and len(creates) >= slots:
            waits = True
            note = "waits for other node pool operations of this cluster to end"
            wanted.append(_wanted(slice_, request.name, Phase.WANTED, now, note))
        else:
            creates.append(_create(slice_, request))
            wanted.append(_wanted(slice_, request.name, Phase.WANTED, now, ""))
            verdicts += underused(slice_)
            names.add(request.name)
            probes.setdefault(backoff.capacity_key(request), request.name)
    return Buying(
        creates=tuple(creates),
        verdicts=tuple(verdicts),
        wanted=tuple(wanted),
        wake_at=tuple(wake_at),
        waits_for_operations=waits,
    )


def _limited(slots: int | None, memory: Memory) -> int | None:
    if backoff.CLUSTER not in memory.backoffs:
        return slots
    # What the last call ran into concerns every call: one goes first to see whether it is over.
    unanswered = sum(call.state is CallState.UNDER_WAY for call in memory.creates.values())
    return min(1 if slots is None else slots, max(0, 1 - unanswered))


def _pools_in_making(supply: Mapping[PoolName, Supply]) -> dict[str, PoolName]:
    """Name one pool in the making for each capacity."""
    making: dict[str, PoolName] = {}
    for name in sorted(supply):
        pool = supply[name].pool
        if pool.status is PoolStatus.PROVISIONING:
            making.setdefault(backoff.capacity_key(pool), name)
    return making


def _next_attempt(slice_: Slice, owned: Mapping[SliceId, list[Supply]], memory: Memory) -> int:
    listed = max((each.attempt + 1 for each in owned.get(slice_.id, ())), default=0)
    return max(listed, memory.attempts.get(slice_.id, 0))


def _obstacle(
    slice_: Slice, request: NodePoolRequest, memory: Memory, probes: Mapping[str, PoolName], now: datetime
) -> _Obstacle | None:
    refusal = memory.refusals.get(slice_.id)
    if refusal is not None and refusal.fingerprint == request.labels[constants.NODEPOOL_HASH]:
        message = (
            f"GKE refuses node pool {request.name}: {refusal.failure.message} It is not tried again until the JobSet "
            f"or the provisioner's settings change."
        )
        return _Obstacle(note=message, verdict=verdict(slice_, constants.CREATION_FAILED, message))
    capacity = backoff.capacity_key(request)
    blocked = backoff.blocking(memory.backoffs, capacity, now)
    if blocked is not None:
        message = (
            f"Node pool {request.name} waits ({_words(blocked)}, next try {_clock(blocked.until)}): "
            f"{blocked.failure.message}"
        )
        return _Obstacle(note=message, verdict=_waiting(slice_, request, blocked, message, now), until=blocked.until)
    last, probe = backoff.probing(memory.backoffs, capacity), probes.get(capacity)
    if last is not None and probe is not None:
        message = (
            f"Node pool {request.name} waits ({_words(last)}, node pool {probe} tries first): {last.failure.message}"
        )
        return _Obstacle(note=message, verdict=_waiting(slice_, request, last, message, now))
    return None


def _waiting(slice_: Slice, request: NodePoolRequest, blocked: Backoff, message: str, now: datetime) -> Verdict | None:
    quiet = blocked.failure.kind in _QUIET
    if quiet and now - blocked.since < timedelta(seconds=_QUIET_SECONDS):
        return None
    key = f"{blocked.failure.kind.value} {request.name}"
    return verdict(slice_, constants.CREATION_WAITING, message, key=key, warning=not quiet)


def _create(slice_: Slice, request: NodePoolRequest) -> Create:
    if slice_.leader is None:
        raise ValueError(f"slice {slice_.id} has no leader pod and cannot be wanting")
    return Create(slice_id=slice_.id, request=request, pod=pod_ref(slice_.leader), jobset=jobset_ref(slice_.jobset))


def _wanted(slice_: Slice, name: PoolName, phase: Phase, now: datetime, note: str) -> PoolState:
    shape = slice_.shape
    return PoolState(
        name=name,
        phase=phase,
        since=now,
        slice_id=slice_.id,
        jobset=slice_.jobset,
        namespace=slice_.jobset.namespace,
        jobset_name=slice_.jobset.name,
        job_name=slice_.job_name,
        machine_type=shape.machine_type.name if shape is not None else "",
        topology=str(shape.topology) if shape is not None else "",
        chips=shape.machine_type.chips * slice_.nodes if shape is not None else 0,
        nodes=slice_.nodes,
        ready_nodes=0,
        note=note,
    )


def _words(blocked: Backoff) -> str:
    return f"{blocked.failure.kind.value.replace('_', ' ')} since {_clock(blocked.since)}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S} UTC"
