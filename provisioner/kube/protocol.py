"""What the package needs of an API server: calls that raise ClusterError and are never repeated, pages, addresses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from provisioner.kube import errors

#: A decoded JSON object; its values are anything that JSON can say.
JsonObject = dict[str, Any]

#: Objects a page: what the API server itself recommends.
PAGE_SIZE = 500
#: Bytes of a page of more than one object: decoded, they may take twenty times as many.
PAGE_BYTES = 4 * 1024 * 1024
#: Bytes of any answer. etcd refuses objects above 1.5 MiB, the API server requests above 3 MiB; as JSON they grow.
ANSWER_BYTES = 16 * 1024 * 1024
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
#: JSON is YAML.
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time-outs of one call, which ends within both together; of a stream, of the call that opens it."""

    connect_seconds: float = 5.0
    #: Of the answer, and of silence while the lines of a stream are read.
    read_seconds: float = 15.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list."""

    items: list[Any]
    resource_version: str
    #: Empty on the last page.
    continue_token: str = ""
    #: Of the answer; 0 where nobody counted.
    size_bytes: int = 0


class Stream(Iterable[bytes], AbstractContextManager["Stream", None], Protocol):
    """The whole lines of a watch response, while they come; an incomplete last line raises."""

    def close(self) -> None:
        """End the stream; may be called from any thread, wakes a reader at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the API server that is answered by an object."""

    method: str
    path: str
    _: KW_ONLY
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"
    #: Nobody reads more of the answer than the object's metadata.
    metadata_only: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    #: TooLarge where the answer has more bytes.
    most_bytes: int = ANSWER_BYTES

    @property
    def title(self) -> str:
        """What is asked, for messages."""
        return f"{self.method} {self.path}"


class Api(ABC):
    """A Kubernetes API server, raw JSON in and out. Each call raises ClusterError when it fails."""

    @abstractmethod
    def exchange(self, request: Request) -> JsonObject:
        """Send a request; return the object that answers it."""

    @abstractmethod
    def list_page(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        limit: int = PAGE_SIZE,
        continue_token: str = "",
        metadata_only: bool = False,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> Page:
        """Return one page; TooLarge where it has too many bytes. `metadata_only` leaves out spec and status."""

    @abstractmethod
    def stream(self, path: str, query: Mapping[str, str], *, timeouts: Timeouts) -> Stream:
        """Open a response and hand out its lines as they arrive."""

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        most_bytes: int = ANSWER_BYTES,
    ) -> JsonObject:
        """Return one object; TooLarge where it has more bytes."""
        return self.exchange(Request("GET", path, query=query or {}, timeouts=timeouts, most_bytes=most_bytes))

    def post(self, path: str, body: JsonObject, *, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Create an object in a collection; Conflict where its name is taken."""
        return self.exchange(Request("POST", path, body=body, timeouts=timeouts))

    def put(self, path: str, body: JsonObject, *, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Replace an object; Conflict where body's resourceVersion is not the current one."""
        return self.exchange(Request("PUT", path, body=body, timeouts=timeouts))

    def patch(
        self, path: str, body: JsonObject, *, strategic: bool = False, timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> JsonObject:
        """Change an object by a JSON merge patch, or a strategic one; return its metadata, and not always more."""
        kind = STRATEGIC_PATCH if strategic else MERGE_PATCH
        return self.exchange(
            Request("PATCH", path, body=body, content_type=kind, metadata_only=True, timeouts=timeouts)
        )

    def apply(self, path: str, body: JsonObject, *, manager: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Apply `body` on the server: the manager has its fields, from others too, and no more; return the metadata."""
        query = {"fieldManager": manager, "force": "true"}
        return self.exchange(
            Request(
                "PATCH", path, query=query, body=body, content_type=APPLY_PATCH, metadata_only=True, timeouts=timeouts
            )
        )

    def delete(self, path: str, *, uid: str = "", timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Delete an object, only the one with this uid where given."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}} if uid else None
        return self.exchange(Request("DELETE", path, body=body, timeouts=timeouts))


LEASES_ROOT = "/apis/coordination.k8s.io/v1"


def collection_path(resource: str, *, namespace: str = "", root: str = "/api/v1") -> str:
    """Return the address of a collection: of one namespace, of all, or of a cluster-scoped kind."""
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{where}/{resource}"


def object_path(resource: str, name: str, *, namespace: str = "", root: str = "/api/v1") -> str:
    """Return the address of one object; an empty name would address the collection, so it is refused."""
    if not name or name in (".", ".."):
        raise ValueError(f"{name!r} is not the name of an object in {resource}: specify the object's name")
    return f"{collection_path(resource, namespace=namespace, root=root)}/{quote(name, safe='')}"


@dataclass(slots=True)
class Pager:
    """Fetches the pages of one list; one of too many bytes is asked for again with half as many objects (`limit`)."""

    api: Api
    path: str
    query: Mapping[str, str]
    _: KW_ONLY
    most: int = PAGE_SIZE
    metadata_only: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.most

    def fetch(self, continue_token: str = "") -> Page:
        """Return the page that a token stands for; TooLarge where a single object is beyond all bounds."""
        while True:
            try:
                page = self.api.list_page(
                    self.path,
                    self.query,
                    limit=self.limit,
                    continue_token=continue_token,
                    metadata_only=self.metadata_only,
                    timeouts=self.timeouts,
                )
            except errors.TooLarge:
                if self.limit == 1:
                    raise
                self.limit //= 2
            else:
                # Twice as many objects of this size would still leave room.
                if page.size_bytes * 3 <= PAGE_BYTES:
                    self.limit = min(self.most, self.limit * 2)
                return page

    def pages(self) -> Iterator[Page]:
        """Yield all pages of the list."""
        page = self.fetch()
        while page.continue_token:
            yield page
            page = self.fetch(page.continue_token)
        yield page
