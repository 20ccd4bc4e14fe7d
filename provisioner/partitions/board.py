"""The latest decision on partitions, published each round, and put together as JSON when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from starlette.responses import Response

from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.picture import PartitionLine, RejectedLine, View
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.partitions.planning.standing import Phase
from provisioner.runtime.clock import wall_clock
from provisioner.runtime.resources import Page

PATH = "/api/v1/partitions"
#: Of each kind, the lines that are shown: whoever asks every two seconds costs little, however many pods there are.
_MOST_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """A V-IPU server."""

    address: str
    #: The label of the nodes that reach it, KEY=VALUE; empty: all nodes do.
    nodes: str
    read_at: datetime | None
    #: Why it cannot be read; empty where it can.
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """How many lines there are beyond those that are shown."""

    waiting: int = 0
    rejected: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(View):
    """Everything that is served; of each kind of lines as many as are shown, `left_out` has the others."""

    served_at: datetime
    release: str
    #: This process, as the Lease names it.
    identity: str
    leading: bool
    #: Why nothing is decided at the moment; empty if decisions are made.
    problems: tuple[str, ...] = ()
    decided_at: datetime | None = None
    servers: tuple[ServerLine, ...] = ()
    left_out: LeftOut = LeftOut()


@dataclass(slots=True, kw_only=True)
class Board:
    """The latest decision; published by the loop's thread, read by any."""

    release: str
    identity: str
    now: Callable[[], datetime] = wall_clock
    _leading: bool = False
    _problems: tuple[str, ...] = ("nothing has been decided yet",)
    #: With the servers as they were, and when it was made.
    _published: tuple[View, tuple[ServerView, ...], datetime] | None = None

    def publish(self, plan: Plan, snapshot: Snapshot, at: datetime) -> None:
        """Show a round of the leader from now on; one that could decide nothing leaves the last decision shown."""
        self._leading, self._problems = True, snapshot.not_synced
        if not snapshot.not_synced:
            self._published = plan.view, snapshot.servers, at

    def stand_by(self) -> None:
        """Show that somebody else leads."""
        self._leading, self._problems, self._published = False, (), None

    def document(self) -> Document:
        """Return what there is to show; may be called from any thread."""
        view, servers, at = self._published or (View(), (), None)
        waiting, rejected = view.waiting[:_MOST_LINES], _of_all_namespaces(view.rejected)
        partitions = _shown(view.partitions)
        return Document(
            served_at=self.now(),
            release=self.release,
            identity=self.identity,
            leading=self._leading,
            problems=self._problems,
            decided_at=at,
            servers=tuple(map(_server, servers)),
            supply=view.supply,
            waiting=waiting,
            rejected=rejected,
            partitions=partitions,
            left_out=LeftOut(
                waiting=len(view.waiting) - len(waiting),
                rejected=len(view.rejected) - len(rejected),
                partitions=len(view.partitions) - len(partitions),
            ),
        )

    def page(self) -> Page:
        """Return the page that the document is served as."""
        return Page(
            path=PATH,
            make=lambda: Response(
                msgspec.json.encode(self.document()), 200, {"Cache-Control": "no-store"}, "application/json"
            ),
        )


def _of_all_namespaces(rejected: Sequence[RejectedLine]) -> tuple[RejectedLine, ...]:
    """Keep the first of each namespace, where there are too many; the order stays."""
    before = Counter[str]()
    ranks = []
    for place, each in enumerate(rejected):
        ranks.append((before[each.namespace], place))
        before[each.namespace] += 1
    return tuple(rejected[place] for place in sorted(place for _, place in sorted(ranks)[:_MOST_LINES]))


def _shown(partitions: Sequence[PartitionLine]) -> tuple[PartitionLine, ...]:
    """Leave out active ones first, where there are too many; the order stays."""
    kept = sorted(range(len(partitions)), key=lambda place: partitions[place].phase == Phase.ACTIVE.value)
    return tuple(partitions[place] for place in sorted(kept[:_MOST_LINES]))


def _server(view: ServerView) -> ServerLine:
    label = view.server.node_selector
    return ServerLine(
        address=view.server.address,
        nodes=f"{label[0]}={label[1]}" if label is not None else "",
        read_at=view.reading.at if view.reading is not None else None,
        problem=view.failure.message if view.failure is not None else "",
    )
