"""List-watches that threads feed, several of them as one, and the nodes.

Watches are short, and the read time-out is longer than one, so a hung connection is noticed. One that the server ends
at the agreed time counts as contact: on a quiet cluster bookmarks came only every two minutes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.kept import Key, NamespaceBound
from provisioner.kube.protocol import Api, JsonObject, Pager, Stream, Timeouts
from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, Reflector, WatchOptions
from provisioner.model import bounds
from provisioner.model.capacity import Node, Taint
from provisioner.model.membership import reported_pool
from provisioner.model.sources import Knowledge

T = TypeVar("T")

#: The one ConfigMap that pauses the creation of pools.
PAUSE_QUERY = {"fieldSelector": f"metadata.name={constants.PAUSE_CONFIGMAP_NAME}"}
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
#: API servers send a bookmark about every minute: a watch that is silent for longer than two is not to be trusted.
MAX_SILENCE_SECONDS = 150.0
_CONNECT_SECONDS = 5.0
_LIST_SECONDS = 30.0
#: A stream that says nothing for so long is hung: longer than a watch, which may be quiet to its end.
_SILENCE_SECONDS = 90.0


class ListWatch(Reflector[T]):
    """A Reflector that a thread of its own feeds; see there for `parse`, `quiet` and `on_change`."""

    def __init__(
        self,
        api: Api,
        collection: Collection,
        *,
        parse: Callable[[JsonObject], T | None],
        on_change: Callable[[], None],
        quiet: Callable[[T, T], bool] | None = None,
        options: WatchOptions = WATCH_DEFAULTS,
        bound: NamespaceBound[T] | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(collection, parse=parse, on_change=on_change, quiet=quiet, options=options, bound=bound)
        self._api = api
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self.list_timeouts = Timeouts(connect_seconds=_CONNECT_SECONDS, read_seconds=_LIST_SECONDS)
        self.watch_timeouts = Timeouts(connect_seconds=_CONNECT_SECONDS, read_seconds=_SILENCE_SECONDS)
        self._thread = threading.Thread(target=self._run, name=f"watch-{self.name}", daemon=True)
        self._stream: Stream | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in a connect is left to its time-out (it is a daemon)."""
        self._stopping.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    # --- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay_seconds = self.step()
            if delay_seconds > 0 and not self._stopping.is_set():
                self._wait(delay_seconds)

    def step(self) -> float:
        """List or watch once, whichever is due; return the seconds to wait before the next step."""
        try:
            query = self.begin()
            return self._list() if query is None else self._watch(query)
        except Exception as error:  # noqa: BLE001 - a dead watch is a controller that sees nothing
            return 0.0 if self._stopping.is_set() else self.failed(error)

    def _list(self) -> float:
        pager = Pager(self._api, self.path, self.query, most=self.page_size, timeouts=self.list_timeouts)
        # No name for a page: it would live on while the next one is read.
        token = self.take_page(pager.fetch())
        while token and not self._stopping.is_set():
            token = self.take_page(pager.fetch(token))
        return 0.0

    def _watch(self, query: Mapping[str, str]) -> float:
        with self._api.stream(self.path, query, timeouts=self.watch_timeouts) as stream:
            with self._lock:
                self._stream = stream
            try:
                # stop() may have looked for a stream to close just before there was one.
                for line in () if self._stopping.is_set() else stream:
                    if self._stopping.is_set():
                        break
                    self.take_line(line)
            finally:
                with self._lock:
                    self._stream = None
        return 0.0 if self._stopping.is_set() else self.watch_ended()


class CombinedWatch(Generic[T]):
    """Several watches as one: synced and fresh when all of them are."""

    def __init__(self, parts: Sequence[ListWatch[T]]) -> None:
        self.parts = tuple(parts)
        self._snapshots: tuple[Mapping[Key, T], ...] = ()
        self._merged: Mapping[Key, T] = MappingProxyType({})

    def start(self) -> None:
        """Start watching."""
        for part in self.parts:
            part.start()

    def stop(self) -> None:
        """End watching."""
        for part in self.parts:
            part.stop()

    def records(self) -> Mapping[Key, T]:
        """Return (namespace, name) -> record, a snapshot that never changes."""
        snapshots = tuple(part.records() for part in self.parts)
        if len(snapshots) == 1:
            return snapshots[0]
        if any(new is not old for new, old in itertools.zip_longest(snapshots, self._snapshots)):
            self._merged = MappingProxyType({key: record for each in snapshots for key, record in each.items()})
            self._snapshots = snapshots
        return self._merged

    @property
    def synced(self) -> bool:
        """Whether all parts are synced."""
        return all(part.synced for part in self.parts)

    @property
    def problem(self) -> str | None:
        """Return the problems of all parts."""
        return "; ".join(part.problem for part in self.parts if part.problem) or None

    @property
    def missing(self) -> bool:
        """Whether the API server does not know the kind of any part."""
        return any(part.missing for part in self.parts)

    def missing_seconds(self) -> float:
        """Return for how long the API server has not known the kind of any part, 0 if it knows one."""
        return min(part.missing_seconds() for part in self.parts)

    @property
    def last_contact_monotonic(self) -> float | None:
        """Return the oldest of the parts' contacts."""
        contacts = [part.last_contact_monotonic for part in self.parts]
        known = [contact for contact in contacts if contact is not None]
        return min(known) if len(known) == len(contacts) else None

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether all parts are fresh."""
        return all(part.fresh(max_silence_seconds=max_silence_seconds) for part in self.parts)

    def seen_deleted(self, uid: str) -> bool:
        """Whether any part saw an object being deleted, or wanted no more."""
        return any(part.seen_deleted(uid) for part in self.parts)


#: What a controller watches, in one namespace or in several.
Watch: TypeAlias = ListWatch[T] | CombinedWatch[T]


def knowledge_of(watch: Watch[Any]) -> Knowledge:
    """Return the knowledge of a collection that the API server need not have."""
    if watch.fresh(max_silence_seconds=MAX_SILENCE_SECONDS):
        return Knowledge.KNOWN
    return Knowledge.ABSENT if watch.missing else Knowledge.UNKNOWN


def doubt_of(name: str, watch: Watch[Any]) -> str:
    """Say why nothing may be decided on what a watch shows; empty: it may. `name` is what it watches."""
    if not watch.synced:
        return watch.problem or f"the {name} are not listed yet"
    if not watch.fresh(max_silence_seconds=MAX_SILENCE_SECONDS):
        return watch.problem or f"nothing was received about the {name} for {MAX_SILENCE_SECONDS:.0f} s"
    return ""


def created_at(raw: object) -> datetime | None:
    """Return when an object was created."""
    return fields.parse_timestamp(fields.mapping(fields.mapping(raw).get("metadata")).get("creationTimestamp"))


def parse_labels(raw: object) -> dict[str, str]:
    """Read the labels of a node or namespace, as many as such an object needs; only administrators write them."""
    labels = fields.mapping(fields.mapping(fields.mapping(raw).get("metadata")).get("labels"))
    entries = ((fields.name(key), fields.name(value)) for key, value in labels.items() if isinstance(value, str))
    return dict(itertools.islice(entries, bounds.CLUSTER_OBJECT_LABELS))


def parse_node(raw: object) -> Node | None:
    """Read a node; None unless it belongs to a node pool. The provisioner's label alone does not tell to which."""
    metadata = fields.mapping(fields.mapping(raw).get("metadata"))
    labels, annotations = (fields.mapping(metadata.get(key)) for key in ("labels", "annotations"))
    pool_name = reported_pool(labels, annotations)
    if not (pool_name or constants.NODEPOOL_MANAGER in labels):
        return None
    name = fields.name(metadata.get("name"))
    what = f"node {name}"
    created_at = fields.parse_timestamp(metadata.get("creationTimestamp"))
    if not name or created_at is None:
        raise fields.MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{fields.shown(metadata.get('creationTimestamp'))} is not an RFC 3339 time"
        )
    spec = fields.mapping(fields.mapping(raw).get("spec"))
    status = fields.mapping(fields.mapping(raw).get("status"))
    allocatable = fields.mapping(status.get("allocatable"))
    chips = podspec.quantity_of(what, "allocatable", constants.TPU_RESOURCE, allocatable)
    return Node(
        name=name,
        uid=fields.name(metadata.get("uid")),
        pool_name=pool_name,
        labels=parse_labels(raw),
        taints=tuple(
            Taint(
                key=fields.name(taint.get("key")),
                value=fields.name(taint.get("value")),
                effect=fields.name(taint.get("effect")),
            )
            for taint in itertools.islice(fields.mappings(spec.get("taints")), bounds.NODE_TAINTS)
        ),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in fields.mappings(status.get("conditions"))
        ),
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=annotations.get(constants.CORDONED) == "true",
        # A device plugin reports whole devices; a fraction could only be a promise that no pod can use.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(podspec.quantity_of(what, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(podspec.quantity_of(what, "allocatable", "memory", allocatable)),
        provider_id=fields.name(spec.get("providerID")),
        created_at=created_at,
    )
