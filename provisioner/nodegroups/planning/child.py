"""What the three kinds of children have in common: each stands for one resource of Compute Engine.

It is made, looked at from time to time, and deleted before the object goes. What is to be done is concluded from three
things alone: whether somebody deletes the object, whether an operation is open, and what was last read. Nothing is
latched: a failure delays the next try, and is forgotten when one succeeds or a reading shows that none is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar, cast

from provisioner.kube.quantities import format_time
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
    not_ready,
)
from provisioner.nodegroups.api.types import Child, InstanceTemplate, Kind, WorkloadPolicy
from provisioner.nodegroups.compute.records import Resource, Scope, same_resource
from provisioner.nodegroups.planning import answers, events
from provisioner.nodegroups.planning.actions import Call, Delete, Insert, Poll, Proof, Read, SetFinalizers, Target
from provisioner.nodegroups.planning.memory import LONG_AGO, Backoff, Reading, ResourceMemory
from provisioner.nodegroups.planning.ownership import is_ours, mark_for, squats
from provisioner.nodegroups.planning.round import NOTHING, Round, Step, Wanted, of_record

C = TypeVar("C", bound=Child)
R = TypeVar("R", bound=Resource)

#: An insert that an earlier process sent, or whose answer was lost, shows within this time, or never.
_ARRIVED_SECONDS = 60.0
#: So long after an object was deleted no process has it in its caches as one that nobody deletes.
_SEEN_DELETED_SECONDS = MAX_SILENCE_SECONDS + _ARRIVED_SECONDS
#: Operations are asked for this often at first, and at last.
_FIRST_POLL_SECONDS = 2.0
_LAST_POLL_SECONDS = 10.0
_POLL_GROWTH = 1.5
_MOST_POLLS_COUNTED = 10
#: A resource that is somebody else's is looked at again: they may delete it.
_FOREIGN_SECONDS = 600.0
#: A resource that is there and cannot be used yet.
_UNUSABLE_SECONDS = 5.0
#: A resource that has just been seen for the first time is read once more after this.
_CONFIRMED_SECONDS = 60.0
#: What says nothing about the request: it is on its way all the same.
_PASSING = frozenset(
    {
        FailureKind.UNAVAILABLE,
        FailureKind.UNKNOWN_OUTCOME,
        FailureKind.TOO_MANY_OPERATIONS,
        FailureKind.ALREADY_EXISTS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a delete has to wait; what is done meanwhile; what is proven live once it need not."""

    #: None: it need not.
    condition: Condition | None = None
    step: Step = NOTHING
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What there is to say and to do about a resource that is there and is ours."""

    condition: Condition
    #: It is read again after this.
    again_seconds: float
    step: Step = NOTHING


class Rules(ABC, Generic[C, R]):
    """What one kind of children has of its own."""

    #: In words.
    what: str
    #: One that is as it should be is read again after this.
    settled_seconds: float

    @abstractmethod
    def scope(self, child: C) -> Scope:
        """Return where its resource is."""

    @abstractmethod
    def refusal(self, child: C, round_: Round) -> Condition | None:
        """Say why it is not served; None where it is."""

    def not_to_be_made(self, child: C, round_: Round) -> Condition | None:  # noqa: ARG002 - as below
        """Say why its resource must not be made; what is there already stays and is served."""
        return None

    @abstractmethod
    def body(self, child: C, mark: str) -> R:
        """Return what Compute Engine is asked for."""

    @abstractmethod
    def difference(self, child: C, resource: R) -> str:
        """Say in what the resource is not what the object asks for; empty where it is."""

    def not_usable(self, resource: R) -> str:  # noqa: ARG002 - most can be used as soon as they are there
        """Say why the resource cannot be used as it is; empty where it can."""
        return ""

    @abstractmethod
    def hold(self, child: C, known: ResourceMemory, round_: Round) -> Hold:
        """Say what its delete has to wait for."""

    def beside(self, child: C, known: ResourceMemory, due_at: datetime, round_: Round) -> Step:  # noqa: ARG002
        """Ask for what is worth knowing along with the resource."""
        return NOTHING

    def sight(self, child: C, known: ResourceMemory, resource: R, round_: Round) -> Sight:  # noqa: ARG002
        """Say what there is to say of a resource that is ours."""
        problem = self.not_usable(resource)
        if problem:
            return Sight(condition=not_ready(Reason.PROVISIONING, problem), again_seconds=_UNUSABLE_SECONDS)
        return Sight(
            condition=created(self.difference(child, resource)),
            again_seconds=self.settled_seconds if _lasts(child, round_.now) else _CONFIRMED_SECONDS,
        )

    def target(self, child: C) -> Target:
        """Return its resource."""
        return Target(uid=child.meta.uid, kind=child.kind, scope=self.scope(child), name=child.meta.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a child comes to in one round."""

    known: ResourceMemory
    step: Step = NOTHING
    #: None: as it was.
    condition: Condition | None = None
    url: str | None = None
    #: The last finalizer may go.
    done: bool = False


def created(note: str = "") -> Condition:
    """Return the condition of a resource that is there."""
    return Condition(type=ConditionType.READY, status=ConditionStatus.TRUE, reason=Reason.CREATED, message=note)


def _lasts(child: Child, now: datetime) -> bool:
    """Whether a resource has been there for long enough to stay: one that is seen while it is made may still fail."""
    ready = condition_of(child.status.conditions, ConditionType.READY)
    if ready is None or ready.status is not ConditionStatus.TRUE or ready.last_transition_time is None:
        return False
    return (now - ready.last_transition_time).total_seconds() >= _CONFIRMED_SECONDS


def step_of(rules: Rules[C, R], child: C, round_: Round) -> tuple[ResourceMemory, Step]:
    """Decide about one child; return what is remembered of its resource, and what is to be done."""
    meta, status = child.meta, child.status
    finalizer = names.CHILD_FINALIZERS[child.kind]
    known = round_.remembered(meta.uid) or ResourceMemory(operation=status.operation, attempts=status.attempts)
    if finalizer not in meta.finalizers and meta.deleting:
        return known, NOTHING
    refusal = rules.refusal(child, round_) or squats(child, round_)
    kept_away = refusal is not None and refusal.reason == Reason.NOT_ALLOWED and meta.deleting
    if round_.is_set(names.ABANDON, child) and (kept_away or _denied(child, known)):
        # Where Compute Engine obeys, machines would go on costing, and count for nobody.
        outcome = Outcome(known=known, done=True)
    elif refusal is not None:
        outcome = _refused(child, known, refusal)
    elif finalizer not in meta.finalizers:
        return known, of_record(SetFinalizers(record=child, finalizers=(*meta.finalizers, finalizer)))
    else:
        outcome = _look(rules, child, known, round_)
    if outcome.done and finalizer in meta.finalizers:
        others = tuple(each for each in meta.finalizers if each != finalizer)
        return outcome.known, of_record(SetFinalizers(record=child, finalizers=others))
    return outcome.known, outcome.step + _status(child, outcome, round_.now)


def _denied(child: Child, known: ResourceMemory) -> bool:
    """Whether Compute Engine has refused, since the object was deleted, a call without which its resource stays."""
    denials, deleted_at = {FailureKind.PERMISSION}, child.meta.deleted_at
    if child.kind is not Kind.MANAGED_INSTANCE_GROUP:
        # Machines that stay use it, and it costs nothing itself.
        denials.add(FailureKind.OPERATION_IN_THE_WAY)
    waits_of = [known.backoffs[what] for what in (answers.READ, answers.POLL, answers.DELETE) if what in known.backoffs]
    return deleted_at is not None and any(wait.failure.kind in denials and wait.at >= deleted_at for wait in waits_of)


def want(known: ResourceMemory, what: str, call: Call, due_at: datetime, round_: Round) -> Step:
    """Ask for a call that is due, unless it is under way or has to wait after a failure."""
    if any(each.key == call.key for each in round_.calls.get(call.target.uid, ())):
        return NOTHING
    wait = known.backoffs.get(what)
    if wait is not None and wait.until > due_at:
        due_at = wait.until
    if due_at > round_.now:
        return Step(moments=(due_at,))
    return Step(calls=(Wanted(call=call, due_at=due_at),))


def later(moment: datetime, seconds: float, key: str) -> datetime:
    """Return a moment some time later, by up to a tenth sooner: what was read together is not all read again at once.

    Which tenth follows from the key.
    """
    return moment + timedelta(seconds=seconds * (1 - 0.1 * waits.share_of(key)))


def _refused(child: Child, known: ResourceMemory, refusal: Condition) -> Outcome:
    if not child.meta.deleting:
        return Outcome(known=known, condition=refusal)
    untouched = not (child.status.url or known.attempts or known.operation or known.reading)
    if untouched:
        return Outcome(known=known, done=True)
    note = f"{refusal.message}. Its resource in Compute Engine stays, and so does this object until that changes"
    return Outcome(known=known, condition=replace(refusal, message=note))


def _look(rules: Rules[C, R], child: C, known: ResourceMemory, round_: Round) -> Outcome:
    uid = child.meta.uid
    if round_.calling(uid, Insert, Delete):
        # Its answer comes first: a reading that crosses it says nothing.
        return Outcome(known=known)
    if known.operation is not None:
        return _poll(rules, child, known, known.operation, round_)
    reading = known.reading
    if reading is None or reading.asked_at < known.changed_at:
        due_at = max(known.changed_at, round_.memory.began_at or LONG_AGO)
        step = want(known, answers.READ, Read(target=rules.target(child)), due_at, round_)
        step += rules.beside(child, known, due_at, round_)
        return Outcome(known=known, step=step, condition=_unread(rules, child, known))
    if reading.resource is None:
        return _absent(rules, child, known, round_)
    if not is_ours(child, reading.resource, round_):
        return _foreign(rules, child, known, reading, reading.resource, round_)
    return _ours(rules, child, known, reading, round_)


def _poll(rules: Rules[C, R], child: C, known: ResourceMemory, operation: OperationRef, round_: Round) -> Outcome:
    polls = min(known.polls, _MOST_POLLS_COUNTED)
    seconds = min(_LAST_POLL_SECONDS, _FIRST_POLL_SECONDS * _POLL_GROWTH**polls)
    due_at = round_.now if known.polled_at is None else later(known.polled_at, seconds, child.meta.uid)
    call = Poll(target=rules.target(child), operation=OperationName(operation.name), type=operation.type)
    condition = None
    wait = known.backoffs.get(answers.POLL)
    if wait is not None and wait.failure.kind not in _PASSING:
        message = f"how far the {rules.what} is cannot be read: {wait.failure.message}"
        condition = not_ready(Reason.REQUEST_REJECTED, message)
    elif operation.type is OperationType.CREATE and answers.INSERT not in known.backoffs:
        condition = _being_made(rules)
    return Outcome(known=known, step=want(known, answers.POLL, call, due_at, round_), condition=condition)


def _unread(rules: Rules[C, R], child: C, known: ResourceMemory) -> Condition | None:
    """Say that the resource cannot be read, where nothing is known of it."""
    wait = known.backoffs.get(answers.READ)
    if condition_of(child.status.conditions, ConditionType.READY) is not None and known.reading is None:
        # An earlier process knew more.
        return None
    if wait is None or wait.failure.kind in _PASSING:
        return None
    return not_ready(Reason.REQUEST_REJECTED, f"the {rules.what} cannot be read: {wait.failure.message}")


def _absent(rules: Rules[C, R], child: C, known: ResourceMemory, round_: Round) -> Outcome:
    target = rules.target(child)
    if child.meta.deleting:
        sure_at = _nothing_arrives_after(child, known, round_)
        if known.reading is not None and known.reading.asked_at >= sure_at:
            return Outcome(known=known, done=True)
        words = f"the {rules.what} is gone; a create of an earlier process may arrive until {format_time(sure_at)}"
        step = want(known, answers.READ, Read(target=target), sure_at, round_)
        return Outcome(known=known, step=step, condition=not_ready(Reason.PROVISIONING, words))
    refusal = rules.not_to_be_made(child, round_)
    if refusal is not None:
        return Outcome(known=known, condition=refusal, url="")
    attempt = known.attempts + 1
    mark = mark_for(child, round_)
    call = Insert(
        target=target,
        resource=rules.body(child, str(mark)),
        attempt=attempt,
        request_id=names.request_id(child.meta.uid, OperationType.CREATE, attempt),
    )
    wait = known.backoffs.get(answers.INSERT)
    condition = _failing(rules, wait, "made") if wait is not None else _being_made(rules)
    wanted = want(known, answers.INSERT, call, known.changed_at, round_)
    if not wanted.calls:
        return Outcome(known=known, step=wanted, condition=condition, url="")
    reading = known.reading
    if reading is not None and (round_.now - reading.asked_at).total_seconds() > _ARRIVED_SECONDS:
        # Somebody may have made one of this name since.
        wanted = want(known, answers.READ, Read(target=target), round_.now, round_)
    return Outcome(known=known, step=wanted, condition=condition, url="")


def _nothing_arrives_after(child: C, known: ResourceMemory, round_: Round) -> datetime:
    """Return from when on no insert for a deleted object can take effect any more.

    Earlier processes may have sent one right before this one began. One that crashes again and again never gets as old
    as that needs; but none of them sends an insert for an object that it sees deleted.
    """
    before_us = waits.after(round_.memory.began_at or LONG_AGO, _ARRIVED_SECONDS)
    if child.meta.deleted_at is not None:
        before_us = min(before_us, waits.after(child.meta.deleted_at, _SEEN_DELETED_SECONDS + _ARRIVED_SECONDS))
    return max(before_us, waits.after(known.unsure_at or LONG_AGO, _ARRIVED_SECONDS))


def _foreign(
    rules: Rules[C, R], child: C, known: ResourceMemory, reading: Reading, resource: Resource, round_: Round
) -> Outcome:
    if child.meta.deleting:
        # Not ours to delete.
        return Outcome(known=known, done=True)
    due_at = later(reading.asked_at, _FOREIGN_SECONDS, child.meta.uid)
    words = f"its description is {bounds.quoted(resource.description)}" if resource.description else "it has no mark"
    advice = "Delete it, or make this object anew with another name"
    if round_.parent_of(child) is not None:
        advice = f'Delete it, or set the annotation {names.ADOPT}: "true" to take one that gke-labs/tpu-operator made'
    message = f"a {rules.what} {resource.name} is there that was not made for this object: {words}. {advice}"
    step = want(known, answers.READ, Read(target=rules.target(child)), due_at, round_)
    return Outcome(known=known, step=step, condition=not_ready(Reason.REQUEST_REJECTED, message), url="")


def _ours(rules: Rules[C, R], child: C, known: ResourceMemory, reading: Reading, round_: Round) -> Outcome:
    # What is read for a kind of children is of one sort.
    resource = cast("R", reading.resource)
    if answers.INSERT in known.backoffs:
        known = replace(known, backoffs=answers.without(known.backoffs, answers.INSERT))
    if child.meta.deleting:
        return _delete(rules, child, known, round_)
    sight = rules.sight(child, known, resource, round_)
    due_at = later(reading.asked_at, sight.again_seconds, child.meta.uid)
    step = sight.step + want(known, answers.READ, Read(target=rules.target(child)), due_at, round_)
    usable = not rules.not_usable(resource)
    return Outcome(known=known, step=step, condition=sight.condition, url=resource.url if usable else "")


def _delete(rules: Rules[C, R], child: C, known: ResourceMemory, round_: Round) -> Outcome:
    hold = rules.hold(child, known, round_)
    if hold.condition is not None:
        return Outcome(known=known, step=hold.step, condition=hold.condition)
    attempt = known.attempts + 1
    call = Delete(
        target=rules.target(child),
        attempt=attempt,
        request_id=names.request_id(child.meta.uid, OperationType.DELETE, attempt),
        proof=hold.proof,
    )
    wait = known.backoffs.get(answers.DELETE)
    condition = _failing(rules, wait, "deleted") if wait is not None else None
    due_at = known.changed_at
    if known.kept is not None:
        due_at = known.kept.until
        condition = not_ready(Reason.DRAINING_NODES, known.kept.failure.message)
    return Outcome(known=known, step=hold.step + want(known, answers.DELETE, call, due_at, round_), condition=condition)


def _being_made(rules: Rules[C, R]) -> Condition:
    return not_ready(Reason.PROVISIONING, f"the {rules.what} is being made")


def _failing(rules: Rules[C, R], wait: Backoff, verb: str) -> Condition:
    """Say what is in the way of a create or a delete."""
    if wait.failure.kind in _PASSING:
        return not_ready(Reason.PROVISIONING, f"the {rules.what} is not {verb} yet: {wait.failure.message}")
    reason = Reason.OPERATION_FAILED if wait.accepted else Reason.REQUEST_REJECTED
    return not_ready(reason, f"the {rules.what} is not {verb}, and is tried again: {wait.failure.message}")


def _status(child: Child, outcome: Outcome, now: datetime) -> Step:
    """Propose the status, where it is not as it is already."""
    old, known, condition = child.status, outcome.known, outcome.condition
    status = replace(
        old,
        # Nothing concluded yet is nothing to write.
        observed_generation=child.meta.generation if condition is not None else old.observed_generation,
        url=old.url if outcome.url is None else outcome.url,
        operation_name=known.operation.name if known.operation is not None else "",
        operation_type=known.operation.type if known.operation is not None else None,
        attempts=known.attempts,
    )
    return events.propose(child, status, () if condition is None else (condition,), now)


def in_use(child: WorkloadPolicy | InstanceTemplate, round_: Round) -> Hold:
    """Hold the delete of what a managed instance group of its namespace uses: Compute Engine would refuse it.

    Those of other namespaces hold nothing by what they say; where one really uses it, Compute Engine says so.
    """
    if not child.status.url:
        return Hold()
    for manager in round_.snapshot.managers:
        is_policy = child.kind is Kind.WORKLOAD_POLICY
        url = manager.spec.workload_policy if is_policy else manager.spec.instance_template
        if manager.meta.namespace != child.meta.namespace:
            continue
        if url and manager.meta.finalizers and same_resource(url, child.status.url):
            message = f"ManagedInstanceGroup {manager.meta} uses it, and is deleted first"
            return Hold(condition=not_ready(Reason.PROVISIONING, message))
    return Hold()
