"""Runs list-watches in threads, combines list-watches of several namespaces, and parses nodes."""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from provisioner import constants
from provisioner.kube import fields, podspec
from provisioner.kube.kept import Key, NamespaceBound
from provisioner.kube.protocol import Api, JsonObject, Pager, Request, Stream, Timeouts
from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, Reflector, WatchOptions
from provisioner.model import bounds
from provisioner.model.capacity import Node, Taint
from provisioner.model.membership import reported_pool
from provisioner.model.sources import Knowledge

T = TypeVar("T")

PAUSE_QUERY = {"fieldSelector": f"metadata.name={constants.PAUSE_CONFIGMAP_NAME}"}
UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
#: Maximum age in seconds of the last contact of fresh records. A healthy watch has contact about once a minute.
MAX_SILENCE_SECONDS = 150.0


class ListWatch(Reflector[T]):
    """Reflector with a thread that lists and watches. `Reflector` describes `parse`, `quiet` and `on_change`."""

    list_timeouts = Timeouts(read_seconds=30.0)
    #: Longer than a watch, because the stream of a healthy watch may be silent until its end.
    watch_timeouts = Timeouts(read_seconds=90.0)

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
        self._thread = threading.Thread(target=self._run, name=f"watch-{self.name}", daemon=True)
        self._stream: Stream | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Waits for at most 1 s, because the daemon thread may hang in a connect."""
        self._stopping.set()
        self._close_stream()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def invalidate(self) -> None:
        """Implement Reflector.invalidate. Also end the current list or watch, which would delay the new list."""
        super().invalidate()
        self._close_stream()

    def _close_stream(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()

    @property
    def _interrupted(self) -> bool:
        """Whether the current list or watch must end. Errors of an interrupted list or watch are ignored."""
        return self._stopping.is_set() or self._invalid

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
        except Exception as error:  # noqa: BLE001 - without its watch, the controller would see no changes
            return 0.0 if self._interrupted else self.failed(error)

    def _list(self) -> float:
        request = Request("GET", self.path, query=self.query, timeouts=self.list_timeouts)
        pager = Pager(self._api, request, max_limit=self.page_size)
        # No variable refers to a page, because it would keep the page in memory while the next page is read.
        token = self.take_page(pager.fetch())
        while token and not self._interrupted:
            token = self.take_page(pager.fetch(token))
        return 0.0

    def _watch(self, query: Mapping[str, str]) -> float:
        with self._api.stream(self.path, query, timeouts=self.watch_timeouts) as stream:
            with self._lock:
                self._stream = stream
            try:
                # stop() or invalidate() may have been called before `_stream` was set, and then did not close it.
                for line in () if self._interrupted else stream:
                    if self._interrupted:
                        break
                    self.take_line(line)
            finally:
                with self._lock:
                    self._stream = None
        return 0.0 if self._interrupted else self.watch_ended()


class CombinedWatch(Generic[T]):
    """Combines list-watches of one kind. The combination is synced or fresh if all its parts are."""

    def __init__(self, parts: Sequence[ListWatch[T]]) -> None:
        self.parts = tuple(parts)
        self._snapshots: tuple[Mapping[Key, T], ...] = ()
        self._merged: Mapping[Key, T] = MappingProxyType({})

    def start(self) -> None:
        """Start the threads of all parts."""
        for part in self.parts:
            part.start()

    def stop(self) -> None:
        """End the threads of all parts."""
        for part in self.parts:
            part.stop()

    def invalidate(self) -> None:
        """Request a new list of each part, because `parse` has changed."""
        for part in self.parts:
            part.invalidate()

    def records(self) -> Mapping[Key, T]:
        """Return the records of all parts by (namespace, name) as an immutable snapshot."""
        snapshots = tuple(part.records() for part in self.parts)
        if len(snapshots) == 1:
            return snapshots[0]
        if any(new is not old for new, old in itertools.zip_longest(snapshots, self._snapshots)):
            self._merged = MappingProxyType({key: record for snapshot in snapshots for key, record in snapshot.items()})
            self._snapshots = snapshots
        return self._merged

    @property
    def synced(self) -> bool:
        """Whether all parts are synced."""
        return all(part.synced for part in self.parts)

    @property
    def problem(self) -> str | None:
        """Problems of all parts; None if no part has a problem."""
        return "; ".join(part.problem for part in self.parts if part.problem) or None

    @property
    def missing(self) -> bool:
        """Whether `missing` is true for at least one part."""
        return any(part.missing for part in self.parts)

    def missing_seconds(self) -> float:
        """Return the seconds for which `missing` has been true for all parts; 0 if it is false for one."""
        return min(part.missing_seconds() for part in self.parts)

    @property
    def last_contact_monotonic(self) -> float | None:
        """The oldest of the last contacts of all parts; None if a part had no contact yet."""
        contacts = [part.last_contact_monotonic for part in self.parts]
        return None if None in contacts else min(filter(None, contacts))

    def fresh(self, *, max_silence_seconds: float) -> bool:
        """Whether all parts are fresh."""
        return all(part.fresh(max_silence_seconds=max_silence_seconds) for part in self.parts)

    def seen_deleted(self, uid: str) -> bool:
        """Whether `seen_deleted` is true for any part."""
        return any(part.seen_deleted(uid) for part in self.parts)


Watch: TypeAlias = ListWatch[T] | CombinedWatch[T]


def knowledge_of(watch: Watch[Any]) -> Knowledge:
    """Return KNOWN if the records of a watch are fresh, ABSENT if its kind is missing, otherwise UNKNOWN."""
    if watch.fresh(max_silence_seconds=MAX_SILENCE_SECONDS):
        return Knowledge.KNOWN
    return Knowledge.ABSENT if watch.missing else Knowledge.UNKNOWN


def doubt_of(name: str, watch: Watch[Any]) -> str:
    """Return the reason why the records of a watch may be incomplete or outdated; empty if they are fresh."""
    if not watch.synced:
        return watch.problem or f"the {name} are not listed yet"
    if not watch.fresh(max_silence_seconds=MAX_SILENCE_SECONDS):
        return watch.problem or f"nothing was received about the {name} for {MAX_SILENCE_SECONDS:.0f} s"
    return ""


def parse_labels(raw: object) -> dict[str, str]:
    """Return the labels of a node or namespace, at most the first CLUSTER_OBJECT_LABELS."""
    labels = fields.at(raw, "metadata", "labels")
    entries = ((fields.name(key), fields.name(value)) for key, value in labels.items() if isinstance(value, str))
    return dict(itertools.islice(entries, bounds.CLUSTER_OBJECT_LABELS))


@lru_cache(maxsize=256)
def _shared_amounts(*amounts: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the same tuple for equal amounts, so that thousands of equal nodes share one tuple."""
    return amounts


def parse_node(raw: object) -> Node | None:
    """Read a node; None if it has neither a pool name nor the label NODEPOOL_MANAGER. Raises MalformedObject."""
    metadata, spec, status = (fields.at(raw, part) for part in ("metadata", "spec", "status"))
    labels, annotations = (fields.mapping(metadata.get(key)) for key in ("labels", "annotations"))
    pool_name = reported_pool(labels, annotations)
    if not (pool_name or constants.NODEPOOL_MANAGER in labels):
        return None
    name = fields.name(metadata.get("name"))
    title = f"node {name}"
    created_at = fields.created_at(raw)
    if not name or created_at is None:
        raise fields.MalformedObject(
            f"node {name or '?'} of pool {pool_name}: it has no name, or creationTimestamp "
            f"{fields.shown(metadata.get('creationTimestamp'))} is not an RFC 3339 time"
        )
    allocatable = fields.mapping(status.get("allocatable"))
    chips = podspec.quantity_of(title, "allocatable", constants.TPU_RESOURCE, allocatable)
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
        ready=fields.conditions(status).get("Ready", {}).get("status") == "True",
        cordoned=spec.get("unschedulable") is True,
        cordoned_by_us=annotations.get(constants.CORDONED) == "true",
        # The amount is an integer, because device plugins report whole devices.
        allocatable_chips=int(chips),
        allocatable_cpu_millicores=int(podspec.quantity_of(title, "allocatable", "cpu", allocatable) * 1000),
        allocatable_memory_bytes=int(podspec.quantity_of(title, "allocatable", "memory", allocatable)),
        allocatable_other_bytes=_shared_amounts(
            *(
                (key, int(podspec.quantity_of(title, "allocatable", key, allocatable)))
                for key in podspec.BYTE_RESOURCES
                if key in allocatable
            )
        ),
        provider_id=fields.name(spec.get("providerID")),
        created_at=created_at,
    )
