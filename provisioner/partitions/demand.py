"""What pods ask of V-IPU servers, and the servers that there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A V-IPU server, as the settings name it."""

    host: str
    port: int
    #: Label and value of the nodes that reach its IPUs; None: all nodes do.
    node_selector: tuple[str, str] | None = None

    @property
    def address(self) -> str:
        """Names it: HOST:PORT, in brackets where the host is an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


#: Sorts pods; the first is served first.
Order = tuple[int, datetime, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that asks for IPUs, or that did: every pod with one of the annotations or with the label."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at: datetime
    #: IPUs: a power of two; 0 where `problem` says what is wrong.
    size: int
    #: Why it cannot be served as it is, as a sentence; empty: it can.
    problem: str = ""
    #: It has been injected, and not by Graphcore's plugin: our init container is there.
    injected: bool = False
    #: It has our scheduling gate still.
    gated: bool = False
    #: Other scheduling gates than ours hold it.
    held_by_others: bool = False
    #: spec.priority.
    priority: int = 0
    #: Where it is bound; empty: nowhere.
    node: str = ""
    #: Succeeded or Failed: it needs its partition no more.
    finished: bool = False
    #: metadata.deletionTimestamp: when its grace ends; None while nobody deletes it.
    deletion_deadline: datetime | None = None
    #: metadata.deletionGracePeriodSeconds: what it may take to end, once it is being deleted.
    deletion_grace_seconds: float = 30.0
    #: It gives its partition back before it ends.
    released: bool = False
    #: spec.activeDeadlineSeconds: the longest that it runs, from its start on; None: for ever.
    active_deadline_seconds: float | None = None
    #: spec.terminationGracePeriodSeconds: what it may take to end, past its deadline.
    grace_seconds: float = 30.0
    #: status.startTime: when the kubelet took it.
    started_at: datetime | None = None
    #: HOST:PORT that it was told when its gate was opened (annotations); empty: it was told nothing yet.
    told_server: str = ""
    #: Id of the partition that it was told then; it uses no other.
    told_partition: str = ""
    #: Its init container has ended well, so that the others may use its partition.
    begun: bool = False
    #: Its nodeSelector and the required terms of its node affinity allow the nodes of these servers (HOST:PORT);
    #: None: of all.
    servers: frozenset[str] | None = None

    @property
    def order(self) -> Order:
        """By priority, then age."""
        return -self.priority, self.created_at, self.uid
