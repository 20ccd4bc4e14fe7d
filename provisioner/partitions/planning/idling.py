"""Pods that have their partition and no node: where others wait for what they have, they give it back after a while."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.calls import TakeBack
from provisioner.partitions.planning.picture import Picture
from provisioner.partitions.planning.queue import Wait
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.standing import OVER, Phase, Standing
from provisioner.partitions.planning.step import Step

_ENDED = frozenset({*OVER, Phase.RELEASING})


def unscheduled_since(standing: Standing, now: datetime) -> datetime | None:
    """Return since when a pod has been seen to have its partition and no node; None: it has one, or has none yet."""
    pod = standing.pod
    if pod is None or standing.phase in _ENDED or pod.gated or pod.node:
        return None
    return standing.known.unscheduled_since or now


def steps(picture: Picture, round_: Round) -> Iterable[Step]:
    """Say from which pods partitions are taken back now, and when from others.

    Who has a node may be about to start, and is left alone: the write fails where it got one meanwhile.
    """
    seconds = round_.settings.unscheduled_seconds
    waiting = [each for each in picture.queue if each.wait is Wait.QUEUE]
    if not seconds or not waiting:
        return
    wanted = {site for each in waiting for site in each.sites}
    short = {each.pod.namespace for each in waiting if _waits_for_its_limit(each.pod, picture, round_)}
    for standing in picture.standings.values():
        since, pod = unscheduled_since(standing, round_.now), standing.pod
        if pod is None or since is None or pod.deletion_deadline is not None:
            continue
        if standing.site not in wanted and pod.namespace not in short:
            continue
        due_at = since + timedelta(seconds=seconds)
        if due_at > round_.now:
            yield Step(moments=(due_at,))
        else:
            yield Step(returns=(TakeBack(pod=pod, partition_id=standing.entry.id),))


def _waits_for_its_limit(pod: Pod, picture: Picture, round_: Round) -> bool:
    """Whether others of its namespace have what it may have; more than the limit it never gets."""
    limit = round_.settings.limit_of(pod.namespace)
    return pod.uid in picture.schedule.limited and limit is not None and pod.size <= limit
