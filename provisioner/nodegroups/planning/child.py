"""Decides the calls and writes for children, each of which represents one resource of Compute Engine. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime

from provisioner.kube.fields import format_time
from provisioner.kube.watches import MAX_SILENCE_SECONDS
from provisioner.model import bounds, waits
from provisioner.model.capacity import FailureKind, OperationName
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.statuses import (
    Condition,
    ConditionStatus,
    ConditionType,
    OperationRef,
    OperationType,
    Reason,
    condition_of,
    created,
    is_true,
    not_ready,
)
from provisioner.nodegroups.api.types import Child, InstanceTemplate, Kind, ManagedInstanceGroup, WorkloadPolicy
from provisioner.nodegroups.compute.records import READY, Manager, Resource, ResourcePolicy, parse_link
from provisioner.nodegroups.planning import events, manager, memory
from provisioner.nodegroups.planning.actions import Delete, Insert, ListMachines, Poll, Read, target_of, words_of
from provisioner.nodegroups.planning.nodes import fleet_of
from provisioner.nodegroups.planning.ownership import is_ours, mark_for, not_served, squats
from provisioner.nodegroups.planning.resource import difference, not_to_be_used
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, later, want

#: Maximum time in seconds for which an insert without a response may still take effect.
_ARRIVED_SECONDS = 60.0
#: Maximum time in seconds after a delete request in which decisions may use a cache that does not show it.
_SEEN_DELETED_SECONDS = MAX_SILENCE_SECONDS + _ARRIVED_SECONDS
#: Interval in seconds between polls of an operation: first, maximum, and factor by which the first 10 polls raise it.
_FIRST_POLL_SECONDS = 2.0
_LAST_POLL_SECONDS = 10.0
_POLL_GROWTH = 1.5
_MAX_POLLS_COUNTED = 10
#: Interval in seconds between reads of a resource that the child does not own, to see whether it still exists.
_FOREIGN_SECONDS = 600.0
#: Interval in seconds between reads of a policy or a template that has been ready for `_CONFIRMED_SECONDS`.
_SETTLED_SECONDS = 3600.0
#: Interval in seconds between reads of a workload policy that exists, but is not ready.
_UNUSABLE_SECONDS = 5.0
#: Interval in seconds between reads of a policy or a template until it has been ready for this time: it may still fail.
_CONFIRMED_SECONDS = 60.0
#: Kinds of failures that conditions do not report as rejections.
_PASSING = frozenset(
    {FailureKind.UNAVAILABLE, FailureKind.UNKNOWN_OUTCOME, FailureKind.TOO_MANY_OPERATIONS, FailureKind.ALREADY_EXISTS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of the decision about a child in one round."""

    step: Step = NOTHING
    #: Condition Ready; None to keep the current one. The next field is the address of the resource, None to keep it.
    condition: Condition | None = None
    url: str | None = None
    #: Whether the finalizer of this controller may be removed.
    done: bool = False


def _lasts(child: Child, now: datetime) -> bool:
    ready = condition_of(child.status.conditions, ConditionType.READY)
    if ready is None or not is_true(ready) or ready.last_transition_time is None:
        return False
    return (now - ready.last_transition_time).total_seconds() >= _CONFIRMED_SECONDS


def step_of(child: Child, ctx: Round) -> Step:
    """Return the calls and writes for one child in this round."""
    meta, known = child.meta, ctx.known(child)
    finalizer = names.CHILD_FINALIZERS[child.kind]
    if finalizer not in meta.finalizers and meta.deleting:
        return NOTHING
    refusal = not_served(child, ctx) or squats(child, ctx)
    kept_away = refusal is not None and refusal.reason == Reason.NOT_ALLOWED and meta.deleting
    if ctx.is_set(names.ABANDON, child) and (kept_away or _denied(child, known)):
        # While the resource can be deleted, the annotation is ignored; otherwise machines would remain and cost money.
        outcome = Outcome(done=True)
    elif refusal is not None:
        outcome = _refused(child, refusal)
    elif finalizer not in meta.finalizers:
        return events.set_finalizers(child, (*meta.finalizers, finalizer), ctx)
    else:
        outcome = _look(child, known, ctx)
    if outcome.done and finalizer in meta.finalizers:
        return events.set_finalizers(child, (kept for kept in meta.finalizers if kept != finalizer), ctx)
    return outcome.step + _status(child, known, outcome, ctx.now)


def _denied(child: Child, known: memory.ResourceMemory) -> bool:
    """Return whether a read, poll or delete has failed at least LASTING_FAILURES times in a row.

    The last failure must be of a kind in `denials`, and not earlier than the delete request.
    """
    denials, deleted_at = {FailureKind.PERMISSION}, child.meta.deleted_at
    if child.kind is not Kind.MANAGED_INSTANCE_GROUP:
        # Policies and templates cost nothing, so they are given up even if machines use them.
        denials.add(FailureKind.OPERATION_IN_THE_WAY)
    waits_of = [known.backoffs[kind] for kind in (memory.READ, memory.POLL, memory.DELETE) if kind in known.backoffs]
    lasting = (wait for wait in waits_of if wait.failure.kind in denials and wait.failures >= memory.LASTING_FAILURES)
    return deleted_at is not None and any(wait.at >= deleted_at for wait in lasting)


def _refused(child: Child, refusal: Condition) -> Outcome:
    if not child.meta.deleting:
        return Outcome(condition=refusal)
    if refusal.reason == Reason.INVALID_SPEC and not child.status.url:
        # No create was sent for an invalid object. If an object is not allowed, it is kept: a create may be in flight.
        return Outcome(done=True)
    note = f"{refusal.message}. What it has in Compute Engine stays, and so does this object until that changes"
    return Outcome(condition=replace(refusal, message=note))


def _look(child: Child, known: memory.ResourceMemory, ctx: Round) -> Outcome:
    uid = child.meta.uid
    if ctx.calling(uid, Insert, Delete):
        # A read during the call could return an outdated resource, so the response is awaited.
        return Outcome()
    if known.operation is not None:
        return _poll(child, known, known.operation, ctx)
    reading = known.reading
    if reading is None or reading.asked_at < known.changed_at:
        due_at, words = max(known.changed_at, ctx.memory.began_at), f"the {words_of(child.kind)} cannot be read"
        step = want(known, memory.READ, Read(target=target_of(child)), due_at, ctx)
        if isinstance(child, ManagedInstanceGroup) and child.status.url and known.listing is None:
            # Both calls are sent in one round: a process that soon crashes again would otherwise never list machines.
            step += want(known, memory.LIST, ListMachines(target=target_of(child)), due_at, ctx)
        return Outcome(step=step, condition=_unknown(child, known, memory.READ, words))
    if reading.resource is None:
        return _absent(child, known, ctx)
    if not is_ours(child, reading.resource, ctx):
        return _foreign(child, known, reading, reading.resource, ctx)
    return _ours(child, known, reading, reading.resource, ctx)


def _poll(child: Child, known: memory.ResourceMemory, operation: OperationRef, ctx: Round) -> Outcome:
    polls = min(known.polls, _MAX_POLLS_COUNTED)
    seconds = min(_LAST_POLL_SECONDS, _FIRST_POLL_SECONDS * _POLL_GROWTH**polls)
    due_at = ctx.now if known.polled_at is None else later(known.polled_at, seconds, child.meta.uid)
    call = Poll(target=target_of(child), operation=OperationName(operation.name), type=operation.type)
    condition = _unknown(child, known, memory.POLL, f"the progress of the {words_of(child.kind)} cannot be read")
    if condition is None and operation.type is OperationType.DELETE:
        condition = not_ready(Reason.PROVISIONING, f"Compute Engine is deleting the {words_of(child.kind)}")
    elif condition is None and memory.INSERT not in known.backoffs:
        condition = _being_made(child)
    return Outcome(step=want(known, memory.POLL, call, due_at, ctx), condition=condition)


def _unknown(child: Child, known: memory.ResourceMemory, kind: str, words: str) -> Condition | None:
    """Return a condition about failed calls of a kind (read, list or poll), None to keep the current condition."""
    wait, ready = known.backoffs.get(kind), condition_of(child.status.conditions, ConditionType.READY)
    if wait is None:
        return None
    passing = wait.failure.kind in _PASSING
    if wait.failures < memory.LASTING_FAILURES and (passing or ready is not None):
        return None
    is_settled = is_true(ready) and not child.meta.deleting
    # Lasting rejections of calls for a managed instance group are reported: its machines could be lost unnoticed.
    if is_settled and (passing or not isinstance(child, ManagedInstanceGroup)):
        return None
    reason = Reason.PROVISIONING if passing else Reason.REQUEST_REJECTED
    condition = not_ready(reason, f"{words}: {wait.failure.message}")
    # Status False would mean that the group has failed: the provisioner of slices would delete the group.
    return replace(condition, status=ConditionStatus.UNKNOWN) if child.status.url else condition


def _absent(child: Child, known: memory.ResourceMemory, ctx: Round) -> Outcome:
    target = target_of(child)
    if child.meta.deleting:
        sure_at = _nothing_arrives_after(child, known, ctx)
        if known.reading is not None and known.reading.asked_at >= sure_at:
            return Outcome(done=True)
        until = f"a create of an earlier process may arrive until {format_time(sure_at)}"
        condition = not_ready(Reason.PROVISIONING, f"the {words_of(child.kind)} is gone; {until}")
        return Outcome(step=want(known, memory.READ, Read(target=target), sure_at, ctx), condition=condition)
    refusal = None
    if isinstance(child, InstanceTemplate):
        refusal = not_to_be_used(child, ctx)
    elif isinstance(child, ManagedInstanceGroup):
        refusal = manager.not_to_be_made(child, ctx)
    if refusal is not None:
        return Outcome(condition=refusal, url="")
    attempt = known.attempts + 1
    call = Insert(
        target=target,
        child=child,
        mark=str(mark_for(child, ctx)),
        attempt=attempt,
        request_id=names.request_id(child.meta.uid, OperationType.CREATE, attempt),
    )
    wait = known.backoffs.get(memory.INSERT)
    condition = _failing(child, wait, "created") if wait is not None else _being_made(child)
    wanted, reading = want(known, memory.INSERT, call, known.changed_at, ctx), known.reading
    is_old = reading is not None and (ctx.now - reading.asked_at).total_seconds() > _ARRIVED_SECONDS
    if wanted.calls and is_old:
        # Another client may have created a resource of this name since the last read, so it is read again first.
        wanted = want(known, memory.READ, Read(target=target), ctx.now, ctx)
    return Outcome(step=wanted, condition=condition, url="")


def _nothing_arrives_after(child: Child, known: memory.ResourceMemory, ctx: Round) -> datetime:
    """Return the time after which no insert for a deleted object can take effect."""
    # An earlier process may have sent an insert right before this process began.
    before_us = waits.after(ctx.memory.began_at, _ARRIVED_SECONDS)
    if child.meta.deleted_at is not None:
        # This limit holds even if processes restart often: no process inserts after its caches show the delete request.
        before_us = min(before_us, waits.after(child.meta.deleted_at, _SEEN_DELETED_SECONDS + _ARRIVED_SECONDS))
    return max(before_us, waits.after(known.unsure_at or memory.LONG_AGO, _ARRIVED_SECONDS))


def _foreign(
    child: Child, known: memory.ResourceMemory, reading: memory.Reading, resource: Resource, ctx: Round
) -> Outcome:
    if child.meta.deleting:
        return Outcome(done=True)
    due_at = later(reading.asked_at, _FOREIGN_SECONDS, child.meta.uid)
    words = f"its description is {bounds.quoted(resource.description)}" if resource.description else "it has no mark"
    advice = "Delete it, or create this object with another name"
    if ctx.parent_of(child) is not None:
        advice = f'Delete it, or set the annotation {names.ADOPT}: "true" to take over one of gke-labs/tpu-operator'
    message = f"a {words_of(child.kind)} {resource.name} exists that was not created for this object: {words}. {advice}"
    step = want(known, memory.READ, Read(target=target_of(child)), due_at, ctx)
    return Outcome(step=step, condition=not_ready(Reason.REQUEST_REJECTED, message), url="")


def _ours(
    child: Child, known: memory.ResourceMemory, reading: memory.Reading, resource: Resource, ctx: Round
) -> Outcome:
    if child.meta.deleting:
        return _delete(child, known, ctx)
    step, url = NOTHING, resource.url
    if isinstance(resource, ResourcePolicy) and resource.status not in ("", READY):
        condition = not_ready(Reason.PROVISIONING, f"the workload policy is {resource.status}")
        again, url = _UNUSABLE_SECONDS, ""
    elif isinstance(child, ManagedInstanceGroup) and isinstance(resource, Manager):
        condition, again, step = manager.sight(child, known, resource, ctx)
        condition = _unlisted(child, known, ctx) or condition
    else:
        condition = created(difference(child, resource))
        again = _SETTLED_SECONDS if _lasts(child, ctx.now) else _CONFIRMED_SECONDS
    due_at = later(reading.asked_at, again, child.meta.uid)
    step += want(known, memory.READ, Read(target=target_of(child)), due_at, ctx)
    return Outcome(step=step, condition=condition, url=url)


def _delete(child: Child, known: memory.ResourceMemory, ctx: Round) -> Outcome:
    if isinstance(child, ManagedInstanceGroup):
        hold, step = manager.drain(child, known, ctx)
    else:
        hold, step = _in_use(child, ctx), NOTHING
    if isinstance(hold, Condition):
        return Outcome(step=step, condition=_unlisted(child, known, ctx) or hold)
    attempt = known.attempts + 1
    call = Delete(
        target=target_of(child),
        attempt=attempt,
        request_id=names.request_id(child.meta.uid, OperationType.DELETE, attempt),
        proof=hold,
    )
    wait = known.backoffs.get(memory.DELETE)
    condition = _failing(child, wait, "deleted") if wait is not None else None
    due_at = known.changed_at
    if known.kept is not None:
        due_at = known.kept.until
        condition = not_ready(Reason.DRAINING_NODES, known.kept.failure.message)
    return Outcome(step=step + want(known, memory.DELETE, call, due_at, ctx), condition=condition)


def _unlisted(child: Child, known: memory.ResourceMemory, ctx: Round) -> Condition | None:
    if not isinstance(child, ManagedInstanceGroup) or fleet_of(child, ctx) is not None:
        return None
    return _unknown(child, known, memory.LIST, "its machines cannot be listed")


def _being_made(child: Child) -> Condition:
    return not_ready(Reason.PROVISIONING, f"the {words_of(child.kind)} is being created")


def _failing(child: Child, wait: waits.Backoff, verb: str) -> Condition:
    if wait.failure.kind in _PASSING:
        return not_ready(Reason.PROVISIONING, f"the {words_of(child.kind)} is not {verb} yet: {wait.failure.message}")
    reason = Reason.OPERATION_FAILED if wait.accepted else Reason.REQUEST_REJECTED
    return not_ready(reason, f"the {words_of(child.kind)} is not {verb}, and is retried: {wait.failure.message}")


def _status(child: Child, known: memory.ResourceMemory, outcome: Outcome, now: datetime) -> Step:
    condition = outcome.condition
    status = replace(
        child.status,
        url=child.status.url if outcome.url is None else outcome.url,
        operation_name=known.operation.name if known.operation is not None else "",
        operation_type=known.operation.type if known.operation is not None else None,
        attempts=known.attempts,
    )
    return events.propose(child, status, () if condition is None else (condition,), now)


def _in_use(child: WorkloadPolicy | InstanceTemplate, ctx: Round) -> Condition | None:
    # Compute Engine would reject the delete. Groups in other namespaces are ignored: users may write any address there.
    url = child.status.url
    user = ctx.users.get((child.meta.namespace, parse_link(url) or url)) if url else None
    if user is None:
        return None
    return not_ready(Reason.PROVISIONING, f"ManagedInstanceGroup {user.meta} uses it, and is deleted first")
