"""What the status of ProvisioningRequests and CapacityBuffers is to say.

Kueue goes by the conditions of a request: it resumes the workload once Provisioned is true, retries with the next
flavor after Failed, and takes BookingExpired as the end of what the request has booked, so that a workload which is
evicted later asks anew. So that is true too as soon as pods run on all pools of the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.capacity import PoolName
from provisioner.model.sources import MACHINE_CONFIGS
from provisioner.model.wording import clock
from provisioner.model.workloads import Ask, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.planning.launch import limits
from provisioner.slices.planning.launch.specification import is_held
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import StatusWrite
from provisioner.slices.planning.round import Round, Supply
from provisioner.slices.planning.waits import WaitsFor
from provisioner.workloads.asks import NODE_POOLS

#: Until a create of this process has told how long one takes.
_USUAL = timedelta(minutes=5)


class _New(NamedTuple):
    type: str
    true: bool
    reason: str
    message: str


def statuses(
    round_: Round, matching: Matching, blocked: Mapping[SliceId, WaitsFor]
) -> tuple[tuple[StatusWrite, ...], tuple[datetime, ...]]:
    """Return the statuses to write, and the moments at which bookings end."""
    asking = [each for each in round_.workloads.by_uid.values() if each.ask is not None and each.lives]
    if not asking:
        return (), ()
    slices: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for slice_ in round_.slices.values():
        slices[slice_.workload.uid].append(slice_)
    place = {slice_id: round_.supply[name] for name, slice_id in matching.claimed.items()}
    found: list[StatusWrite] = []
    ends: list[datetime] = []
    for each in asking:
        own, ask = slices[each.uid], each.ask
        asked = [slice_.requirements for slice_ in own] or [group.template for group in each.groups] or [Requirements()]
        # Or would be if they asked for a slice.
        for_slices = (replace(requirements, node_selector={constants.TPU_TOPOLOGY: ""}) for requirements in asked)
        if ask is None or not any(round_.policy.serves(each, requirements) for requirements in for_slices):
            # Perhaps another provisioner serves it.
            continue
        if each.kind is WorkloadKind.CAPACITY_BUFFER:
            found += _write(each, ask, *_of_buffer(each, ask, own, place, blocked), round_.now)
            continue
        conditions, details = tuple(_of_request(each, ask, own, place, blocked, round_, matching)), {}
        if any(new.type == constants.PROVISIONED and new.true for new in conditions):
            details = {"provisioningClassDetails": _details(own, place, round_)}
        found += _write(each, ask, conditions, details, round_.now)
        end = _booked_until(ask, round_)
        ends += [end] if end is not None and end > round_.now else []
    return tuple(found), tuple(ends)


def _of_request(
    workload: Workload,
    ask: Ask,
    slices: Sequence[Slice],
    place: Mapping[SliceId, Supply],
    blocked: Mapping[SliceId, WaitsFor],
    round_: Round,
    matching: Matching,
) -> Iterator[_New]:
    if ask.is_true(constants.PROVISIONED):
        yield from _of_booking(workload, ask, round_, matching)
        return
    failed = (blocked[each.id].message for each in slices if each.id in blocked and blocked[each.id].failed)
    reasons = ((each, round_.policy.why_not(workload, each.requirements)) for each in slices)
    unserved = (f"{each.title} is not served: {reason.why}" for each, reason in reasons if reason is not None)
    problem = workload.problem or next(unserved, "") or next(failed, "") or limits.problem_of(slices, round_.settings)
    if problem:
        yield _New(constants.FAILED, True, "NotAvailable", problem)
    elif not slices:
        missing = "A PodTemplate that it names does not exist"
        if workload.full_name.text in round_.snapshot.rejected:
            missing = "Kubernetes rejected this status for long; the request is served once the status can be written"
        elif MACHINE_CONFIGS in round_.snapshot.unknown:
            missing += ", or the cluster has machine types that the provisioner cannot list"
        yield _New(constants.PROVISIONED, False, "Waiting", missing)
    else:
        done = all(each.id in place and _is_free(place[each.id]) for each in slices)
        reason = constants.PROVISIONED if done else "InProgress"
        yield _New(constants.ACCEPTED, True, constants.ACCEPTED, "tpu-provisioner serves the request")
        yield _New(constants.PROVISIONED, done, reason, _progress(slices, place, blocked, round_))


def _is_free(each: Supply) -> bool:
    return each.ready and not any(is_held(node.taints) for node in each.nodes)


def _of_booking(workload: Workload, ask: Ask, round_: Round, matching: Matching) -> Iterator[_New]:
    """Yield what ends a booking: its use, the loss of a pool, or the end of its time without any pods."""
    pools = [PoolName(each) for each in ask.named]
    absent = {each for each in pools if each not in round_.supply}
    # One whose nodes are there may only be missing from a list.
    with_nodes = {node.pool_name for node in round_.snapshot.nodes} if absent else set[PoolName]()
    gone = absent - with_nodes
    lost = [each for each in pools if each in gone or (each not in absent and not round_.supply[each].usable)]
    used = sum(bool(matching.holders.get(each)) for each in pools)
    end = _booked_until(ask, round_)
    if used == len(pools):
        message = "Pods run on all node pools of the request, which are kept for them from now on"
        yield _New(constants.BOOKING_EXPIRED, True, "Used", message)
    elif _has_ended(workload, round_):
        yield _New(constants.BOOKING_EXPIRED, True, "Used", "The workload that used the request has ended")
    elif lost:
        message = f"Node pool {lost[0]} was lost before pods ran on all node pools of the request"
        yield _New(constants.CAPACITY_REVOKED, True, "NodePoolLost", message)
    elif end is not None and end <= round_.now and not (used and _waits(workload, round_)):
        minutes = round_.settings.booking_seconds / 60
        message = f"Pods run on {used} of {len(pools)} node pools of the request after {minutes:.0f} minutes"
        yield _New(constants.BOOKING_EXPIRED, True, "NotUsed", message)


def _has_ended(request: Workload, round_: Round) -> bool:
    """Whether a workload whose pods used a request has ended, on other node pools or before anybody saw it."""
    return any(
        each.namespace == request.namespace
        and any(group.template.annotations.get(constants.CONSUMES_REQUEST) == request.name for group in each.groups)
        for each in round_.workloads.by_uid.values()
        # A suspended one may not have begun.
        if each.finished or each.deleting
    )


def _waits(workload: Workload, round_: Round) -> bool:
    """Whether pods that use the request wait for their nodes, not yet for as long as it is booked.

    Others may never wait: the scheduler puts them on any pool that fits.
    """
    before = round_.now - timedelta(seconds=round_.settings.booking_seconds)
    own = (each for each in round_.slices.values() if each.request == workload.name)
    leaders = (each.leader for each in own if each.workload.namespace == workload.namespace)
    since = (each.unschedulable_since or round_.now for each in leaders if each is not None and not each.node_name)
    return any(each > before for each in since)


def _booked_until(ask: Ask, round_: Round) -> datetime | None:
    since = ask.conditions[constants.PROVISIONED].since if ask.is_true(constants.PROVISIONED) else None
    # A moment yet to come was written by a clock that ran wrong, or by whoever may write the status.
    return min(since, round_.now) + timedelta(seconds=round_.settings.booking_seconds) if since is not None else None


def _progress(
    slices: Sequence[Slice], place: Mapping[SliceId, Supply], blocked: Mapping[SliceId, WaitsFor], round_: Round
) -> str:
    """Say how many slices are ready, what is in the way of the others, and when they are expected."""
    ready = sum(each.id in place and place[each.id].ready for each in slices)
    words = f"{ready} of {len(slices)} slices are ready"
    waits = next((blocked[each.id].message for each in slices if each.id in blocked), "")
    if waits:
        return f"{words}. {waits}"
    coming = (place[each.id].name for each in slices if each.id in place and not place[each.id].ready)
    phases = (round_.memory.phases[name] for name in coming if name in round_.memory.phases)
    usual = round_.memory.usual_creation or _USUAL
    eta = max((each.since + usual for each in phases if each.phase is Phase.PROVISIONING), default=None)
    return f"{words}; expected at {clock(eta, round_.now)}" if eta is not None and eta > round_.now else words


def _details(slices: Sequence[Slice], place: Mapping[SliceId, Supply], round_: Round) -> dict[str, str]:
    """Name the pools of a request; what all of them have in common can be selected by its pods."""
    pools = [place[each.id].name for each in slices]
    details = {NODE_POOLS: ",".join(pools)}
    if len(pools) == 1:
        details["node-pool"] = pools[0]
    if all(round_.made_for.get(place[each.id].name) == each.id for each in slices):
        details["workload-uid"] = slices[0].workload.uid
    return details


def _of_buffer(
    workload: Workload,
    ask: Ask,
    slices: Sequence[Slice],
    place: Mapping[SliceId, Supply],
    blocked: Mapping[SliceId, WaitsFor],
) -> tuple[tuple[_New, ...], dict[str, Any]]:
    known = bool(workload.groups) and not workload.problem
    missing = "the PodTemplate or the object of scalableRef does not exist"
    ready = sum(each.id in place and place[each.id].ready for each in slices)
    waits = next((f". {blocked[each.id].message}" for each in slices if each.id in blocked), "")
    reason = "BufferEmpty" if not slices else "FitsExistingCapacity" if ready == len(slices) else "RequiresNewCapacity"
    conditions = (
        _New(
            constants.READY_FOR_PROVISIONING,
            known,
            "TemplateRead" if known else "NoTemplate",
            "the slices of the buffer are known" if known else workload.problem or missing,
        ),
        _New(
            constants.PROVISIONING_BUFFER,
            ready == len(slices) > 0,
            reason,
            f"{ready} of {len(slices)} slices are ready{waits}",
        ),
    )
    rest = {"replicas": ready, "provisioningStrategy": constants.BUFFER_STRATEGY}
    template = ask.pod_sets[0][0]
    return conditions, {**rest, "podTemplateRef": {"name": template}} if template and known else rest


def _write(
    workload: Workload, ask: Ask, conditions: Iterable[_New], rest: Mapping[str, Any], now: datetime
) -> Iterator[StatusWrite]:
    new = {each.type: each._replace(message=bounds.cut(each.message, bounds.SCHEDULER_MESSAGE)) for each in conditions}
    old = {name: _New(name, *each[:3]) for name, each in ask.conditions.items()}
    if all(old.get(name) == each for name, each in new.items()):
        return
    merged = {**old, **new}
    since = {name: each.since for name, each in ask.conditions.items() if each.true is merged[name].true}
    conditions_now = [
        {
            "type": name,
            "status": str(each.true),
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": fields.format_time(since.get(name) or now),
        }
        for name, each in merged.items()
    ]
    yield StatusWrite(
        kind=workload.kind,
        namespace=workload.namespace,
        name=workload.name,
        resource_version=ask.resource_version,
        status={**rest, "conditions": conditions_now},
        minor=all(name in old and old[name][:3] == each[:3] for name, each in new.items()),
    )
