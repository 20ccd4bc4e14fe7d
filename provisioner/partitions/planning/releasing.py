"""Removing partitions that nobody needs any more."""

from __future__ import annotations

from provisioner.partitions.planning import events
from provisioner.partitions.planning.calls import RemovePartition
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import Phase, Standing
from provisioner.partitions.planning.step import NOTHING, Step, Urgency, Wanted


def step_of(standing: Standing, round_: Round) -> Step:
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
