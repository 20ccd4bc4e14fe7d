"""One allocation while places are given: what is free from when on, and what older pods are promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from math import inf

from provisioner.partitions.demand import Order
from provisioner.partitions.planning.alignment import places_taken, surely_fits
from provisioner.partitions.planning.crowding import MOST_IN_VAIN
from provisioner.partitions.planning.memory import Crowding
from provisioner.partitions.planning.profile import SOON_SECONDS, Profile
from provisioner.partitions.planning.supply import Hold, Holder, SiteSupply


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a pod asks for."""

    ipus: int
    hold: Hold
    order: Order
    created_at: datetime


@dataclass(slots=True, kw_only=True)
class _Promise:
    """A start that a pod is promised, in seconds from now."""

    start: float
    ipus: int
    #: When it has ended by its deadline, should it start as late as it surely can.
    gone: float
    #: How many places of its size are left at the start, besides its own, wherever all lie that may be there then.
    spare: int


class Ground:
    """One allocation while places are given."""

    def __init__(self, supply: SiteSupply, crowding: Crowding | None) -> None:
        """Begin with who holds IPUs in it."""
        self.site = supply.site
        #: Who was crowded out is tried again here: what else is free is left to it, or it would never have enough.
        self.open = crowding is None or all(size < crowding.size for size in supply.trials)
        #: An allocation of unknown size takes one at a time; the server says whether there is room.
        self._one = supply.total is None
        self._taken = self._one and bool(supply.trials)
        self._in_vain = crowding is not None and crowding.in_vain >= MOST_IN_VAIN
        self._crowded_at = crowding.size if crowding is not None and crowding.holds else None
        self._holders = [*supply.ours, *supply.others]
        self._total = supply.total or 0
        self._profile = Profile(self._total, self._holders)
        #: How many partitions of each size there are.
        self._held = Counter(holder.ipus for holder in self._holders)
        #: Sizes of those that the server has yet to find a place for.
        self._unanswered = set(supply.unanswered)
        #: When the first partition may go, by their deadlines; 0: at any moment, for one has none.
        ends = [holder.ends_in_seconds for holder in self._holders]
        self._first_end = min(ends, default=inf) if inf not in ends else 0.0
        self._promises: list[_Promise] = []

    @property
    def has_room(self) -> bool:
        """Whether anybody could be placed."""
        return self.open and (not self._taken if self._one else self._profile.free_now > 0)

    def is_crowded_for(self, ipus: int) -> bool:
        """Whether so many are not to be had in one place, whatever the sum of what is free."""
        return self._crowded_at is not None and ipus >= self._crowded_at

    def earliest(self, asked: Asked) -> float:
        """Return in how many seconds a pod can start, and older ones still when promised; infinite: nobody knows."""
        if self.is_crowded_for(asked.ipus) or self.hangs_on_answers(asked):
            return inf
        if self._one:
            return inf if self._taken else 0.0
        start, longest = 0.0, asked.hold.longest_seconds
        while True:
            start = self._profile.earliest(asked.ipus, longest, not_before=start)
            after = self._in_the_way_until(asked.ipus, start, start + longest)
            if after <= start:
                return start
            start = after

    def _in_the_way_until(self, ipus: int, start: float, end: float) -> float:
        """Return the last promised start at which a partition may leave the older pod no place; 0: there is none."""
        last = 0.0
        for each in self._promises:
            if start < each.start < end and each.start > last and places_taken(ipus, each.ipus) > each.spare:
                last = each.start
        return last

    def is_sure(self, ipus: int) -> bool:
        """Whether the server surely finds a place for so many."""
        return not self._one and surely_fits(ipus, self._held + Counter((ipus,)), self._total)

    def hangs_on_answers(self, asked: Asked) -> bool:
        """Whether there is room by count, and it might be what another one is being tried on."""
        if self._one or not self._unanswered or self._profile.free_now < asked.ipus:
            return False
        held = self._held + Counter((asked.ipus,))
        if all(surely_fits(size, held, self._total) for size in self._unanswered):
            return False
        return self._profile.earliest(asked.ipus, asked.hold.longest_seconds) == 0.0

    def rest(self, ipus: int) -> float:
        """Return what is left after so many are taken now: the less, the better it fits."""
        return inf if self._one else self._profile.free_now - ipus

    def place(self, asked: Asked) -> None:
        """Let a pod start now."""
        ipus, hold = asked.ipus, asked.hold
        if self._one:
            self._taken = True
        else:
            self._profile.take(ipus, 0.0, hold.shortest_seconds)
        for promise in self._promises:
            # All of them are promised to older ones.
            if promise.start < hold.longest_seconds:
                promise.spare -= places_taken(ipus, promise.ipus)
        self._holders.append(Holder(ipus=ipus, ends_in_seconds=hold.shortest_seconds))
        self._held[ipus] += 1
        self._unanswered.add(ipus)
        self._first_end = min(self._first_end, hold.shortest_seconds if hold.shortest_seconds < inf else 0.0)

    def surely(self, asked: Asked, start: float) -> float:
        """Return when a pod surely has a place, however others lie, where those that passed it take their grace.

        `start` is when it may have one. Infinite: nobody knows.
        """
        if self._one or start == inf:
            return inf
        size, spare = asked.ipus, self._total // asked.ipus - 1
        changes: dict[float, int] = {start: 0}
        for holder in self._holders:
            gone = _surely_gone(holder, asked)
            if gone > start:
                places = places_taken(holder.ipus, size)
                spare -= places
                changes[gone] = changes.get(gone, 0) + places
        for older in self._promises:
            if older.gone > start:
                places = places_taken(older.ipus, size)
                begins = max(start, older.start)
                changes[begins] = changes.get(begins, 0) - places
                changes[older.gone] = changes.get(older.gone, 0) + places
        for moment in sorted(changes):
            spare += changes[moment]
            if moment == inf:
                break
            end = moment + asked.hold.longest_seconds
            if spare >= 0 and self._in_the_way_until(size, moment, end) <= moment:
                return moment
        return inf

    def promise(self, asked: Asked, start: float, surely: float) -> None:
        """Keep IPUs for a pod from a moment yet to come, at which it may have a place; it has one `surely` later."""
        ipus, spare = asked.ipus, self._total // asked.ipus - 1
        for holder in self._holders:
            if start < _end_for(holder, asked):
                spare -= places_taken(holder.ipus, ipus)
        for older in self._promises:
            if older.start <= start < older.gone:
                spare -= places_taken(older.ipus, ipus)
            elif start < older.start < start + asked.hold.longest_seconds:
                older.spare -= places_taken(ipus, older.ipus)
        shortest = asked.hold.shortest_seconds
        self._promises.append(_Promise(start=start, ipus=ipus, gone=surely + shortest, spare=spare))
        self._profile.take(asked.ipus, start, shortest)

    def leave(self, asked: Asked) -> None:
        """Leave all to a pod that cannot be promised anything here.

        It cannot start before a partition goes, unless it only waits for answers. One that is refused again and again
        although nothing is there may never start: nobody is held up for it.
        """
        if not self._holders:
            self.open = self.open and self._in_vain and self.is_crowded_for(asked.ipus)
        elif self._one or self._first_end <= SOON_SECONDS or self.hangs_on_answers(asked):
            self.open = False
        else:
            self._profile.close(self._first_end)


def _end_for(holder: Holder, asked: Asked) -> float:
    """Return when a pod may count on the IPUs that another one has.

    Who has passed it may take its grace; where others take theirs, it starts so much later itself.
    """
    return holder.gone_in_seconds if holder.passed(asked.order, asked.created_at) else holder.ends_in_seconds


def _surely_gone(holder: Holder, asked: Asked) -> float:
    """The same, where nobody counts on one that should be gone and is not."""
    return holder.gone_in_seconds if holder.ends_in_seconds <= 0.0 else _end_for(holder, asked)
