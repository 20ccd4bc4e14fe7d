"""Pods that have their partition and no node: where others wait for IPUs, they give it back after a while."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

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
    wanted = {site for each in picture.queue if each.wait is Wait.QUEUE for site in each.sites}
    if not seconds or not wanted:
        return
    for standing in picture.standings.values():
        since, pod = unscheduled_since(standing, round_.now), standing.pod
        if pod is None or since is None or standing.site not in wanted or pod.deletion_deadline is not None:
            continue
        due_at = since + timedelta(seconds=seconds)
        if due_at > round_.now:
            yield Step(moments=(due_at,))
        else:
            yield Step(returns=(TakeBack(pod=pod, partition_id=standing.entry.id),))
