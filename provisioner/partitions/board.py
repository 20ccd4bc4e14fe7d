"""Holds the latest decision on partitions, and encodes it as JSON for each request."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from starlette.responses import Response

from provisioner.partitions.planning.decide import Plan
from provisioner.partitions.planning.entry_status import Phase
from provisioner.partitions.planning.picture import PartitionLine, RejectedLine, View
from provisioner.partitions.planning.round import ServerView, Snapshot
from provisioner.runtime.clock import wall_clock
from provisioner.runtime.resources import Page

PATH = "/api/v1/partitions"
#: Maximum number of lines of each kind in `LeftOut`: clients that poll every two seconds must cost little.
_MAX_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLine:
    """State of a V-IPU server."""

    address: str
    #: Label of the nodes that reach the server's IPUs, as KEY=VALUE; empty if all nodes do.
    nodes: str
    read_at: datetime | None
    #: Failure of the last read; empty if the read succeeded, or none was tried.
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Numbers of lines that the document omits, by kind of line."""

    waiting: int = 0
    rejected: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(View):
    """The JSON document. `left_out` counts the lines beyond _MAX_LINES, which the document omits."""

    served_at: datetime
    release: str
    #: Identity of this process; in the Lease, a random suffix follows.
    identity: str
    leading: bool
    #: Reasons why the leader makes no decisions now. Empty if it decides, and on a follower after its first round.
    problems: tuple[str, ...] = ()
    decided_at: datetime | None = None
    servers: tuple[ServerLine, ...] = ()
    left_out: LeftOut = LeftOut()


@dataclass(slots=True, kw_only=True)
class Board:
    """Holds the latest decision. The loop's thread publishes it; any thread may read it."""

    release: str
    identity: str
    now: Callable[[], datetime] = wall_clock
    _leading: bool = False
    _problems: tuple[str, ...] = ("nothing has been decided yet",)
    _published: tuple[View, tuple[ServerView, ...], datetime] | None = None

    def publish(self, plan: Plan, snapshot: Snapshot, at: datetime) -> None:
        """Show the result of a round of the leader. If nothing could be decided, the last decision is still shown."""
        self._leading, self._problems = True, snapshot.not_synced
        if not snapshot.not_synced:
            self._published = plan.view, snapshot.servers, at

    def stand_by(self) -> None:
        """Show that this replica does not lead, and drop the last decision."""
        self._leading, self._problems, self._published = False, (), None

    def document(self) -> Document:
        """Return the document for the latest decision."""
        view, servers, at = self._published or (View(), (), None)
        waiting, rejected = view.waiting[:_MAX_LINES], _of_all_namespaces(view.rejected)
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
        """Return the page that serves the document."""
        return Page(
            path=PATH,
            make=lambda: Response(
                msgspec.json.encode(self.document()), 200, {"Cache-Control": "no-store"}, "application/json"
            ),
        )


def _of_all_namespaces(rejected: Sequence[RejectedLine]) -> tuple[RejectedLine, ...]:
    """Keep at most _MAX_LINES lines, equally many of each namespace if possible."""
    before = Counter[str]()
    ranks = []
    for place, line in enumerate(rejected):
        ranks.append((before[line.namespace], place))
        before[line.namespace] += 1
    return tuple(rejected[place] for place in sorted(place for _, place in sorted(ranks)[:_MAX_LINES]))


def _shown(partitions: Sequence[PartitionLine]) -> tuple[PartitionLine, ...]:
    """Keep at most _MAX_LINES lines in their order. Active partitions are left out first."""
    kept = sorted(range(len(partitions)), key=lambda place: partitions[place].phase == Phase.ACTIVE.value)
    return tuple(partitions[place] for place in sorted(kept[:_MAX_LINES]))


def _server(view: ServerView) -> ServerLine:
    label = view.server.node_selector
    return ServerLine(
        address=view.server.address,
        nodes=f"{label[0]}={label[1]}" if label is not None else "",
        read_at=view.reading.at if view.reading is not None else None,
        problem=view.failure.message if view.failure is not None else "",
    )
