"""Which pods wait for a partition, in which order, and which of them stand aside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial

from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.guard import Guard
from provisioner.partitions.planning.memory import Site
from provisioner.partitions.planning.round import Round
from provisioner.partitions.planning.supply import SiteSupply, servers_of


class Wait(Enum):
    """What a pod waits for; people are told of each once."""

    #: IPUs that others have, or that older pods are to have.
    QUEUE = "queue"
    #: Its namespace has all that it may have.
    LIMIT = "limit"
    #: No server has or may have an allocation that is large enough.
    IMPOSSIBLE = "impossible"
    #: IPUs of partitions that are not of this cluster, and may stay for ever.
    OTHERS = "others"
    #: The servers that it may use cannot be read.
    UNREADABLE = "unreadable"
    #: Somebody else's scheduling gates.
    HELD = "held"
    #: Where there was room, its partition could not be made.
    REFUSED = "refused"


#: Pods that wait for these are in nobody's way.
_ASIDE = frozenset({Wait.IMPOSSIBLE, Wait.OTHERS, Wait.UNREADABLE, Wait.HELD, Wait.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A pod that waits."""

    pod: Pod
    wait: Wait
    why: str
    #: Allocations that it may use now.
    sites: tuple[Site, ...] = ()
    #: When it need not stand aside any more; None: nobody knows.
    until: datetime | None = None

    @property
    def aside(self) -> bool:
        """Whether it is passed by whoever can be served."""
        return self.wait in _ASIDE


def queue_of(pods: Iterable[Pod], supply: Mapping[Site, SiteSupply], round_: Round, guard: Guard) -> list[Candidate]:
    """Return pods that wait, first those that are served first."""
    ordered = sorted(pods, key=lambda pod: pod.order)
    choices = _Choices(supply, round_)
    found = (guard.run(f"pod {pod.uid}", partial(_candidate, pod, choices, round_), None) for pod in ordered)
    return [candidate for candidate in found if candidate is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    wait: Wait
    why: str
    sites: tuple[Site, ...] = ()


class _Choices:
    """Where pods may have their partitions: the same for all that ask for the same."""

    def __init__(self, supply: Mapping[Site, SiteSupply], round_: Round) -> None:
        self._supply, self._round = supply, round_
        self._known: dict[tuple[frozenset[str] | None, str, int], _Choice] = {}

    def of(self, pod: Pod) -> _Choice:
        key = (pod.servers, pod.told_server, pod.size)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._choose(pod)
        return found

    def _choose(self, pod: Pod) -> _Choice:
        servers = frozenset(servers_of(pod, self._round))
        if not servers:
            return _Choice(
                wait=Wait.IMPOSSIBLE, why="Its node selector or affinity allows the nodes of no V-IPU server."
            )
        large = [
            each
            for site, each in sorted(self._supply.items())
            if site[0] in servers and (each.total is None or each.total >= pod.size)
        ]
        usable = [each for each in large if each.usable]
        sites = tuple(each.site for each in usable if each.within_reach is None or each.within_reach >= pod.size)
        if sites:
            why = f"{pod.size} IPUs have to be free in one allocation."
            return _Choice(wait=Wait.QUEUE, why=why, sites=sites)
        if usable:
            why = (
                f"Partitions of others leave no allocation {pod.size} IPUs: it has its turn when they are gone, and "
                "others pass it meanwhile."
            )
            return _Choice(wait=Wait.OTHERS, why=why)
        unread = sorted(
            {each.site[0] for each in large} | {a for a in servers if self._round.servers[a].reading is None}
        )
        if unread:
            # Just after a start nobody has tried yet.
            tried = any(self._round.servers[address].failure is not None for address in unread)
            how = "cannot be read" if tried else "is not read yet"
            return _Choice(wait=Wait.UNREADABLE, why=f"V-IPU server {', '.join(unread)} {how}.")
        why = f"No allocation of the V-IPU servers that it may use has {pod.size} IPUs."
        return _Choice(wait=Wait.IMPOSSIBLE, why=why)


def _candidate(pod: Pod, choices: _Choices, round_: Round) -> Candidate:
    if pod.held_by_others:
        return Candidate(pod=pod, wait=Wait.HELD, why="Other scheduling gates hold it.")
    choice = choices.of(pod)
    refusals = round_.memory.refusals.get(pod.uid)
    if not refusals or choice.wait is not Wait.QUEUE:
        return Candidate(pod=pod, wait=choice.wait, why=choice.why, sites=choice.sites)
    refused = {site: each for site, each in refusals.items() if each.until > round_.now}
    sites = tuple(site for site in choice.sites if site not in refused)
    if sites or not refused:
        return Candidate(pod=pod, wait=Wait.QUEUE, why=choice.why, sites=sites)
    first = min(refused.values(), key=lambda each: each.until)
    return Candidate(
        pod=pod, wait=Wait.REFUSED, why=f"Its partition could not be made: {first.failure.message}", until=first.until
    )
