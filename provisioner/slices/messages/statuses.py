"""Decides the status of ProvisioningRequests and CapacityBuffers. Pure.

Kueue reads the conditions of a request, and resumes the workload once Provisioned is true. BookingExpired ends the
booking, and is also set when pods run on all pools of the request, so that Kueue creates a new request if the workload
is evicted later.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from provisioner import constants
from provisioner.kube import fields
from provisioner.model import bounds
from provisioner.model.capacity import PoolName
from provisioner.model.sources import MACHINE_CONFIGS
from provisioner.model.wording import clock
from provisioner.model.workloads import CapacityRequest, Condition, Requirements, Workload, WorkloadKind, WorkloadUid
from provisioner.slices.demand import Slice, SliceId
from provisioner.slices.demand.capacity_requests import booked_until
from provisioner.slices.messages import waits
from provisioner.slices.planning.contention import limits
from provisioner.slices.planning.contention.waits import WaitsFor
from provisioner.slices.planning.match import Matching
from provisioner.slices.planning.memory.state import Phase
from provisioner.slices.planning.plan import StatusWrite
from provisioner.slices.planning.round import OwnedPool, Round
from provisioner.slices.planning.spec.specification import is_held
from provisioner.workloads.capacity_requests import NODE_POOLS

#: Expected duration of a create until this process has measured the first create.
_USUAL = timedelta(minutes=5)
#: Type of a condition and the condition. `_write` adds the time of the last transition.
_Typed = tuple[str, Condition]


@dataclass(frozen=True)
class _Facts:
    """Data of one round on which statuses depend. Requests are identified by namespace and name."""

    ctx: Round
    matching: Matching
    blocked: Mapping[SliceId, WaitsFor]

    @cached_property
    def place(self) -> Mapping[SliceId, OwnedPool]:
        """Pool that each slice counts on; other slices are missing."""
        return {slice_id: self.ctx.owned[name] for name, slice_id in self.matching.claimed.items()}

    @cached_property
    def with_nodes(self) -> AbstractSet[PoolName]:
        return {node.pool_name for node in self.ctx.snapshot.nodes}

    @cached_property
    def ended(self) -> AbstractSet[tuple[str, str]]:
        """Requests whose consumer has finished or is being deleted. A suspended consumer may still use its request."""
        over = [workload for workload in self.ctx.workloads.by_uid.values() if workload.finished or workload.deleting]
        templates = [(workload.namespace, group.template) for workload in over for group in workload.groups]
        return {(where, template.annotations.get(constants.CONSUMES_REQUEST, "")) for where, template in templates}

    @cached_property
    def awaited(self) -> AbstractSet[tuple[str, str]]:
        """Requests whose booking may be extended: an unbound leader pod has waited for less than the booking time."""
        now, booked = self.ctx.now, timedelta(seconds=self.ctx.settings.booking_seconds)
        leaders = ((slice_, slice_.leader) for slice_ in self.ctx.slices.values() if slice_.request and slice_.leader)
        return {
            (slice_.workload.namespace, slice_.request)
            for slice_, leader in leaders
            if not leader.node_name and (leader.unschedulable_since or now) > now - booked
        }

    def ready(self, slices: Iterable[Slice]) -> int:
        return sum(slice_.id in self.place and self.place[slice_.id].ready for slice_ in slices)

    def wait(self, slices: Iterable[Slice]) -> str:
        """Return why the first waiting slice waits, without amounts that other workloads change; empty if none does."""
        wait = next((self.blocked[slice_.id] for slice_ in slices if slice_.id in self.blocked), None)
        return "" if wait is None else waits.message(wait, self.ctx, lasting=True)


def statuses(
    ctx: Round, matching: Matching, blocked: Mapping[SliceId, WaitsFor]
) -> tuple[tuple[StatusWrite, ...], tuple[datetime, ...]]:
    """Return the statuses to write, and the future times at which bookings end."""
    asking = [
        workload
        for workload in ctx.workloads.by_uid.values()
        if workload.capacity_request is not None and workload.lives
    ]
    if not asking:
        return (), ()
    slices: dict[WorkloadUid, list[Slice]] = defaultdict(list)
    for slice_ in ctx.slices.values():
        slices[slice_.workload.uid].append(slice_)
    facts = _Facts(ctx, matching, blocked)
    found: list[StatusWrite] = []
    ends: list[datetime] = []
    for workload in asking:
        own, request = slices[workload.uid], workload.capacity_request
        asked = (
            [slice_.requirements for slice_ in own] or [group.template for group in workload.groups] or [Requirements()]
        )
        # A request without a topology counts as served, so that its status reports the missing topology.
        for_slices = (replace(requirements, node_selector={constants.TPU_TOPOLOGY: ""}) for requirements in asked)
        if request is None or not any(ctx.policy.serves(workload, requirements) for requirements in for_slices):
            # Another provisioner may serve the object, so its status is not written.
            continue
        if workload.kind is WorkloadKind.CAPACITY_BUFFER:
            found += _write(workload, request, *_of_buffer(facts, workload, request, own), ctx.now)
            continue
        conditions, details = tuple(_of_request(facts, workload, request, own)), {}
        if any(name == constants.PROVISIONED and new.true for name, new in conditions):
            details = {"provisioningClassDetails": _details(facts, own)}
        found += _write(workload, request, conditions, details, ctx.now)
        end = booked_until(request, ctx.settings.booking_seconds, ctx.now)
        ends += [end] if end is not None and end > ctx.now else []
    return tuple(found), tuple(ends)


def _of_request(
    facts: _Facts, workload: Workload, request: CapacityRequest, slices: Sequence[Slice]
) -> Iterator[_Typed]:
    if request.is_true(constants.PROVISIONED):
        yield from _of_booking(facts, workload, request)
        return
    ctx, place, blocked = facts.ctx, facts.place, facts.blocked
    failing = (blocked[slice_.id] for slice_ in slices if slice_.id in blocked and blocked[slice_.id].failed)
    failed = ((waits.message(wait, ctx),) for wait in failing)
    reasons = ((slice_, ctx.policy.why_not(workload, slice_.requirements)) for slice_ in slices)
    unserved = ((f"{slice_.title} is not served: {found.why[0]}", *found.why[1:]) for slice_, found in reasons if found)
    problem = workload.problem or next(unserved, ()) or next(failed, ()) or limits.problem_of(slices, ctx.settings)
    if problem:
        yield constants.FAILED, Condition(True, "NotAvailable", "; ".join(problem))
    elif not slices:
        missing = "A PodTemplate that it names does not exist"
        if workload.full_name.text in ctx.snapshot.rejected:
            missing = "Kubernetes rejected this status for long; the request is served once the status can be written"
        elif MACHINE_CONFIGS in ctx.snapshot.unknown:
            missing += ", or the cluster has machine types that the provisioner has not read"
        yield constants.PROVISIONED, Condition(False, "Waiting", missing)
    else:
        done = all(slice_.id in place and _is_free(place[slice_.id]) for slice_ in slices)
        reason = constants.PROVISIONED if done else "InProgress"
        yield constants.ACCEPTED, Condition(True, constants.ACCEPTED, "tpu-provisioner serves the request")
        yield constants.PROVISIONED, Condition(done, reason, _progress(facts, slices))


def _is_free(pool: OwnedPool) -> bool:
    return pool.ready and not any(is_held(node.taints) for node in pool.nodes)


def _of_booking(facts: _Facts, workload: Workload, request: CapacityRequest) -> Iterator[_Typed]:
    ctx, named = facts.ctx, (workload.namespace, workload.name)
    pools = [PoolName(name) for name in request.named]
    # A pool with nodes exists, even if the supplier does not list it.
    known = {pool: ctx.owned[pool].usable for pool in pools if pool in ctx.owned}
    lost = [pool for pool in pools if not known.get(pool, pool in facts.with_nodes)]
    used = sum(bool(facts.matching.holders.get(pool)) for pool in pools)
    end = booked_until(request, ctx.settings.booking_seconds, ctx.now)
    if used == len(pools):
        message = "Pods run on all node pools of the request, which are kept for them from now on"
        yield constants.BOOKING_EXPIRED, Condition(True, "Used", message)
    elif named in facts.ended:
        yield constants.BOOKING_EXPIRED, Condition(True, "Used", "The workload that used the request has ended")
    elif lost:
        message = f"Node pool {lost[0]} was lost before pods ran on all node pools of the request"
        yield constants.CAPACITY_REVOKED, Condition(True, "NodePoolLost", message)
    elif end is not None and end <= ctx.now and not (used and named in facts.awaited):
        minutes = ctx.settings.booking_seconds / 60
        message = f"Pods run on {used} of {len(pools)} node pools of the request after {minutes:.0f} minutes"
        yield constants.BOOKING_EXPIRED, Condition(True, "NotUsed", message)


def _progress(facts: _Facts, slices: Sequence[Slice]) -> str:
    ctx, place = facts.ctx, facts.place
    words = f"{facts.ready(slices)} of {len(slices)} slices are ready"
    if wait := facts.wait(slices):
        return f"{words}. {wait}"
    coming = (place[slice_.id].name for slice_ in slices if slice_.id in place and not place[slice_.id].ready)
    phases = filter(None, (ctx.memory.pool(name).phase for name in coming))
    usual = ctx.memory.last_creation_duration or _USUAL
    eta = max((phase.since + usual for phase in phases if phase.phase is Phase.PROVISIONING), default=None)
    return f"{words}; expected at {clock(eta, ctx.now)}" if eta is not None and eta > ctx.now else words


def _details(facts: _Facts, slices: Sequence[Slice]) -> dict[str, str]:
    """Return the names of a request's pools and, if possible, values by which pods can select the pools."""
    pools = [facts.place[slice_.id].name for slice_ in slices]
    details = {NODE_POOLS: ",".join(pools)}
    if len(pools) == 1:
        details["node-pool"] = pools[0]
    if all(facts.ctx.created_for.get(name) == slice_.id for slice_, name in zip(slices, pools, strict=True)):
        details["workload-uid"] = slices[0].workload.uid
    return details


def _of_buffer(
    facts: _Facts, workload: Workload, request: CapacityRequest, slices: Sequence[Slice]
) -> tuple[tuple[_Typed, ...], dict[str, Any]]:
    known = bool(workload.groups) and not workload.problem
    missing = "the PodTemplate or the object of scalableRef does not exist"
    ready, wait = facts.ready(slices), facts.wait(slices)
    reason = "BufferEmpty" if not slices else "FitsExistingCapacity" if ready == len(slices) else "RequiresNewCapacity"
    read = Condition(known, "TemplateRead", "the slices of the buffer are known")
    if not known:
        read = Condition(known, "NoTemplate", "; ".join(workload.problem) or missing)
    message = f"{ready} of {len(slices)} slices are ready{f'. {wait}' if wait else ''}"
    conditions = (
        (constants.READY_FOR_PROVISIONING, read),
        (constants.PROVISIONING_BUFFER, Condition(ready == len(slices) > 0, reason, message)),
    )
    rest = {"replicas": ready, "provisioningStrategy": constants.BUFFER_STRATEGY}
    template = request.pod_sets[0][0]
    return conditions, {**rest, "podTemplateRef": {"name": template}} if template and known else rest


def _write(
    workload: Workload, request: CapacityRequest, conditions: Iterable[_Typed], rest: Mapping[str, Any], now: datetime
) -> Iterator[StatusWrite]:
    new: dict[str, Condition] = {}
    for name, condition in conditions:
        before, message = request.conditions.get(name), bounds.cut(condition.message, bounds.SCHEDULER_MESSAGE)
        since = before.since if before is not None and before.true is condition.true else None
        new[name] = condition._replace(message=message, since=since)
    if all(request.conditions.get(name) == condition for name, condition in new.items()):
        return
    conditions_now = [
        {
            "type": name,
            "status": str(condition.true),
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": fields.format_time(condition.since or now),
        }
        for name, condition in {**request.conditions, **new}.items()
    ]
    yield StatusWrite(
        workload=workload.full_name,
        resource_version=request.resource_version,
        status={**rest, "conditions": conditions_now},
    )
