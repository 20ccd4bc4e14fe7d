"""What is served to people: the latest decision on partitions, as JSON and on the status page.

The loop publishes each round, which costs next to nothing; the document is put together when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from provisioner.partitions.planning.plan import Holding, Plan, Rejected, View
from provisioner.partitions.planning.snapshot import ServerView, Snapshot
from provisioner.partitions.planning.standing import Phase
from provisioner.runtime.clock import wall_clock
from provisioner.runtime.pages import Content, Page

PATH = "/api/v1/partitions"
#: Of each kind, the lines that are shown: whoever asks every two seconds costs little, however many pods there are.
_MOST_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """A V-IPU server."""

    address: str
    #: The label of the nodes that reach it, KEY=VALUE; empty: all nodes do.
    nodes: str
    #: When it was last read; None: never.
    read_at: datetime | None
    #: Why it cannot be read; empty where it can.
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyLine:
    """The IPUs of an allocation; `ipus` and `free` are None where its server does not tell."""

    server: str
    allocation: str
    ipus: int | None
    ours: int
    others: int
    free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """A pod that waits."""

    namespace: str
    pod: str
    ipus: int
    #: 1 is the first.
    place: int
    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLine:
    """A pod that gets no partition as it is."""

    namespace: str
    pod: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """A partition of this cluster."""

    id: str
    server: str
    allocation: str
    ipus: int
    #: As namespace/name; empty of an orphan.
    pod: str
    phase: str
    since: datetime
    #: What is in its way; empty: nothing is.
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many lines there are beyond those that are shown."""

    waiting: int = 0
    rejected: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Everything that is served."""

    #: The time of day at the process when it put this together: what durations are counted up to.
    served_at: datetime
    release: str
    #: This process, as the Lease names it.
    identity: str
    leading: bool
    #: Why nothing is decided at the moment; empty: it is.
    problems: tuple[str, ...] = ()
    #: When this was decided; None: nothing was yet.
    decided_at: datetime | None = None
    servers: tuple[ServerLine, ...] = ()
    supply: tuple[SupplyLine, ...] = ()
    #: Those whose turn comes first.
    waiting: tuple[WaitingLine, ...] = ()
    #: The youngest pods first; where there are too many, the youngest of each namespace are shown.
    rejected: tuple[RejectedLine, ...] = ()
    #: Those first of which people have to know, such as broken ones.
    partitions: tuple[PartitionLine, ...] = ()
    left_out: LeftOut = LeftOut()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    view: View
    servers: tuple[ServerView, ...]
    at: datetime


@dataclass(slots=True, kw_only=True)
class Board:
    """The latest decision; published by the loop's thread, read by any."""

    release: str
    identity: str
    now: Callable[[], datetime] = wall_clock
    _leading: bool = False
    _problems: tuple[str, ...] = ("nothing has been decided yet",)
    _published: _Published | None = None

    def publish(self, plan: Plan, snapshot: Snapshot, at: datetime) -> None:
        """Show a round of the leader from now on; one that could decide nothing leaves the last decision shown."""
        self._leading, self._problems = True, snapshot.not_synced
        if not snapshot.not_synced:
            self._published = _Published(view=plan.view, servers=snapshot.servers, at=at)

    def stand_by(self) -> None:
        """Show that somebody else leads."""
        self._leading, self._problems, self._published = False, (), None

    def document(self) -> Document:
        """Return what there is to show; may be called from any thread."""
        published = self._published
        document = Document(
            served_at=self.now(),
            release=self.release,
            identity=self.identity,
            leading=self._leading,
            problems=self._problems,
        )
        return document if published is None else _with(document, published)

    def json(self) -> bytes:
        """Return the document as JSON."""
        return msgspec.json.encode(self.document())


def _with(document: Document, published: _Published) -> Document:
    view = published.view
    waiting = view.waiting[:_MOST_LINES]
    rejected = _of_all_namespaces(view.rejected)
    holdings = _shown(view.holdings)
    return replace(
        document,
        decided_at=published.at,
        servers=tuple(map(_server, published.servers)),
        supply=tuple(
            SupplyLine(
                server=each.server,
                allocation=each.allocation,
                ipus=each.total,
                ours=each.ours,
                others=each.others,
                free=max(0, each.total - each.ours - each.others) if each.total is not None else None,
            )
            for each in view.supply
        ),
        waiting=tuple(
            WaitingLine(
                namespace=each.pod.namespace,
                pod=each.pod.name,
                ipus=each.pod.size,
                place=each.place,
                since=each.pod.created_at,
                why=each.why,
            )
            for each in waiting
        ),
        rejected=tuple(
            RejectedLine(namespace=each.pod.namespace, pod=each.pod.name, why=each.why) for each in rejected
        ),
        partitions=tuple(
            PartitionLine(
                id=each.id,
                server=each.server,
                allocation=each.allocation,
                ipus=each.size,
                pod=each.pod,
                phase=each.phase,
                since=each.since,
                why=each.why,
            )
            for each in holdings
        ),
        left_out=LeftOut(
            waiting=len(view.waiting) - len(waiting),
            rejected=len(view.rejected) - len(rejected),
            partitions=len(view.holdings) - len(holdings),
        ),
    )


def _of_all_namespaces(rejected: Sequence[Rejected]) -> Sequence[Rejected]:
    """Return the youngest first; where there are too many, the youngest of each namespace are kept."""
    found: list[tuple[int, int, Rejected]] = []
    before = Counter[str]()
    youngest = sorted(rejected, key=lambda each: (each.pod.created_at, each.pod.uid), reverse=True)
    for place, each in enumerate(youngest):
        found.append((before[each.pod.namespace], place, each))
        before[each.pod.namespace] += 1
    kept = sorted(found, key=lambda each: each[:2])[:_MOST_LINES]
    return [each for _, _, each in sorted(kept, key=lambda each: each[1])]


def _shown(holdings: Sequence[Holding]) -> Sequence[Holding]:
    """Leave out active ones first, where there are too many; the order stays."""
    if len(holdings) <= _MOST_LINES:
        return holdings
    kept = sorted(range(len(holdings)), key=lambda place: holdings[place].phase == Phase.ACTIVE.value)[:_MOST_LINES]
    return [holdings[place] for place in sorted(kept)]


def _server(view: ServerView) -> ServerLine:
    label = view.server.node_selector
    return ServerLine(
        address=view.server.address,
        nodes=f"{label[0]}={label[1]}" if label is not None else "",
        read_at=view.reading.at if view.reading is not None else None,
        problem=view.failure.message if view.failure is not None else "",
    )


def pages(board: Board) -> tuple[Page, ...]:
    """Return the pages that the board is served as."""
    return (
        Page(
            path=PATH,
            make=lambda: Content(
                body=board.json(), media_type="application/json", headers={"Cache-Control": "no-store"}
            ),
        ),
    )
