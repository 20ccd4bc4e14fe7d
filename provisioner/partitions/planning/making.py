"""Making partitions that are in the ledger, opening the gates of their pods, and removing what nobody needs."""

from __future__ import annotations

from datetime import timedelta

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning import events
from provisioner.partitions.planning.calls import LEDGER, CreatePartition, OpenGate, RemovePartition, SaveLedger
from provisioner.partitions.planning.ledger import Entry
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing
from provisioner.partitions.planning.step import NOTHING, Notice, Step, Urgency, Wanted, merged
from provisioner.partitions.vipu.records import PartitionRequest


def step_of(standing: Standing, round_: Round) -> Step:
    """Say what is to be done for an entry."""
    made, released = _make(standing, round_), _release(standing, round_)
    return merged((made, released)) if released is not NOTHING else made


def _make(standing: Standing, round_: Round) -> Step:
    """Say what is to be done for a pod that needs its partition."""
    pod = standing.pod
    if pod is None or not standing.certain:
        return _without_server(standing, pod, round_) if pod is not None else NOTHING
    match standing.phase:
        case Phase.WANTED:
            return _create(standing, pod, round_)
        case Phase.LOST:
            step = _create(standing, pod, round_)
            return Step(
                calls=step.calls, notices=(events.lost(pod, standing.entry), *step.notices), moments=step.moments
            )
        case Phase.CREATING:
            since = standing.known.changed_at or standing.known.since
            return Step(moments=(since + timedelta(seconds=round_.settings.stuck_seconds),))
        case Phase.ACTIVE:
            return _hand_over(standing, pod, round_)
        case Phase.BROKEN:
            return _make_anew(standing, pod, round_, events.broken(pod, standing.entry, standing.partition))
        case Phase.MISPLACED if standing.partition is not None:
            return _make_anew(standing, pod, round_, events.misplaced(pod, standing.entry))
    return NOTHING


def _without_server(standing: Standing, pod: Pod, round_: Round) -> Step:
    entry, view = standing.entry, round_.servers.get(standing.entry.server)
    if standing.phase is not Phase.CREATING:
        return NOTHING
    if view is None:
        return Step(notices=(events.unnamed(pod, entry),))
    if view.failure is None or pod.begun:
        return NOTHING
    return Step(notices=(events.unreadable(pod, entry, view.failure, round_.settings.stuck_seconds),))


def _create(standing: Standing, pod: Pod, round_: Round) -> Step:
    entry, known = standing.entry, standing.known
    notices: tuple[Notice, ...] = ()
    if known.backoff is not None:
        notices = (events.failed(pod, entry, known.backoff.failure),)
        if known.backoff.until > round_.now:
            return Step(notices=notices, moments=(known.backoff.until,))
    call = CreatePartition(server=entry.server, request=request_of(entry))
    # The oldest pod has its turn first; who has failed comes after those that had none yet.
    due_at = known.backoff.until if known.backoff is not None else pod.created_at
    return Step(calls=(Wanted(call=call, urgency=Urgency.CHANGE, due_at=due_at),), notices=notices)


def request_of(entry: Entry) -> PartitionRequest:
    """Return what is asked of the server for an entry."""
    return PartitionRequest(
        id=entry.id, size=entry.size, allocation=entry.allocation, reconfigurable=entry.reconfigurable
    )


def _hand_over(standing: Standing, pod: Pod, round_: Round) -> Step:
    """Tell the pod, as soon as a reading shows that its partition is active."""
    entry = standing.entry
    notice = events.created(pod, entry)
    if not pod.gated:
        return Step(notices=(notice,)) if not pod.told_server else NOTHING
    if pod.deletion_deadline is not None or _is_being_removed(entry, round_) or _is_being_dropped(entry, round_):
        return NOTHING
    gate = OpenGate(pod=pod, partition_id=entry.id, server=round_.servers[entry.server].server)
    return Step(gates=(gate,), notices=(notice,))


def _is_being_removed(entry: Entry, round_: Round) -> bool:
    """Whether a remove is under way: a reading that shows it active meanwhile is no promise."""
    remove = RemovePartition(server=entry.server, id=entry.id, pod=None)
    under_way = round_.memory.calls.get(remove.key)
    return under_way is not None and isinstance(under_way.call, RemovePartition)


def _is_being_dropped(entry: Entry, round_: Round) -> bool:
    """Whether the ledger is being written without the entry: a partition that appears late is recorded again first."""
    under_way = round_.memory.writes.get(LEDGER)
    if under_way is None or under_way.answered_at is not None or not isinstance(under_way.write, SaveLedger):
        return False
    return entry.id not in {each.id for each in under_way.write.entries}


def _is_being_told(standing: Standing, pod: Pod, round_: Round) -> bool:
    """Whether the gate is being opened: then a pod that is read live has it still, and not a moment later."""
    gate = OpenGate(pod=pod, partition_id=standing.entry.id, server=round_.servers[standing.entry.server].server)
    write = round_.memory.writes.get(gate.key)
    return write is not None and write.answered_at is None


def _make_anew(standing: Standing, pod: Pod, round_: Round, notice: Notice) -> Step:
    """Remove what is of no use, as long as nothing of the pod but its init container has run."""
    entry, known = standing.entry, standing.known
    if pod.begun or _is_being_told(standing, pod, round_):
        return Step(notices=(notice,))
    notices = (notice, *events.not_removed(pod, entry, known))
    if known.removing is not None and known.removing.until > round_.now:
        return Step(notices=notices, moments=(known.removing.until,))
    proof = (entry.namespace, entry.pod, entry.pod_uid)
    call = RemovePartition(server=entry.server, id=entry.id, pod=proof, unused=True)
    due_at = known.removing.until if known.removing is not None else known.since
    return Step(calls=(Wanted(call=call, urgency=Urgency.CHANGE, due_at=due_at),), notices=notices)


def _release(standing: Standing, round_: Round) -> Step:
    """Say what is to be done for an entry whose pod has ended, or is gone; and when one that ends has."""
    pod, known, entry = standing.pod, standing.known, standing.entry
    if standing.phase is Phase.GONE:
        # Where no setting names the server nobody has seen that it is not there.
        return Step(notices=(events.released(pod, entry),)) if pod is not None and standing.certain else NOTHING
    if standing.phase is not Phase.RELEASING:
        lets_go_at = round_.lets_go_at(pod) if pod is not None else None
        return Step(moments=(lets_go_at,)) if lets_go_at is not None else NOTHING
    if not standing.certain or standing.partition is None or standing.outdated:
        return NOTHING
    notices = events.not_removed(pod, entry, known) if pod is not None else ()
    if known.removing is not None and known.removing.until > round_.now:
        return Step(notices=notices, moments=(known.removing.until,))
    call = RemovePartition(
        server=entry.server,
        id=entry.id,
        pod=(entry.namespace, entry.pod, entry.pod_uid),
        # Its pod waits for another one.
        unused=pod is not None and pod.gated,
        past_deletion=round_.past_deletion(pod),
    )
    due_at = known.removing.until if known.removing is not None else known.since
    return Step(calls=(Wanted(call=call, urgency=Urgency.CHANGE, due_at=due_at),), notices=notices)
