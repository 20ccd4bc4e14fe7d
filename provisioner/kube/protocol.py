"""Interface of clients of a Kubernetes API server. Also reads lists in pages, and builds the paths of objects."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from provisioner.kube import errors

JsonObject = dict[str, Any]

#: Maximum number of objects per page; kubectl and client-go have the same default.
PAGE_SIZE = 500
#: Maximum bytes of a page if several objects were requested. The decoded page may need twenty times as much memory.
PAGE_BYTES = 4 * 1024 * 1024
#: Maximum bytes of a response: enough for an object of etcd's maximum size, 1.5 MiB, which is larger as JSON.
ANSWER_BYTES = 16 * 1024 * 1024
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
#: Content type of server-side apply. The body may be JSON, because JSON is YAML.
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Time-outs of a call. Their sum limits its duration, except for token refresh, DNS look-up and stream reading."""

    connect_seconds: float = 5.0
    #: Maximum wait for the next bytes of a response or stream.
    read_seconds: float = 15.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list."""

    items: list[Any]
    resource_version: str
    #: Token of the next page; empty on the last page.
    continue_token: str = ""
    #: Bytes of the response; 0 if not counted.
    size_bytes: int = 0


class Stream(Iterable[bytes], AbstractContextManager["Stream", None], Protocol):
    """Lines of a watch. An interruption or an incomplete last line raises ClusterError, except after `close`."""

    def close(self) -> None:
        """End the stream; a thread that waits for a line returns immediately. May be called from any thread."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to an API server."""

    method: str
    path: str
    _: KW_ONLY
    query: Mapping[str, str] = field(default_factory=dict)
    body: JsonObject | None = None
    content_type: str = "application/json"
    metadata_only: bool = False
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    #: Maximum bytes of the response; a larger response raises TooLarge. Ignored by `Api.list_page`.
    max_bytes: int = ANSWER_BYTES

    @property
    def title(self) -> str:
        """Method and path, such as "GET /api/v1/pods", for messages."""
        return f"{self.method} {self.path}"


class Api(ABC):
    """Calls to a Kubernetes API server with raw JSON. A call that fails raises ClusterError."""

    @abstractmethod
    def exchange(self, request: Request) -> JsonObject:
        """Send a request; return the JSON object in the response."""

    @abstractmethod
    def list_page(self, request: Request, *, limit: int = PAGE_SIZE, continue_token: str = "") -> Page:
        """Return a page of at most `limit` objects of a collection; the first page if `continue_token` is empty.

        Raises TooLarge if the page has more than PAGE_BYTES, or more than ANSWER_BYTES if `limit` is 1.
        """

    @abstractmethod
    def stream(self, path: str, query: Mapping[str, str], *, timeouts: Timeouts) -> Stream:
        """Send a GET request; return the lines of the response as a stream."""

    def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        max_bytes: int = ANSWER_BYTES,
    ) -> JsonObject:
        """Return one object. Raises TooLarge if it has more than `max_bytes`."""
        return self.exchange(Request("GET", path, query=query or {}, timeouts=timeouts, max_bytes=max_bytes))

    def post(self, path: str, body: JsonObject, *, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Create an object. Raises Conflict if its name exists."""
        return self.exchange(Request("POST", path, body=body, timeouts=timeouts))

    def put(self, path: str, body: JsonObject, *, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Replace an object. Raises Conflict if the resourceVersion in `body` is outdated."""
        return self.exchange(Request("PUT", path, body=body, timeouts=timeouts))

    def patch(
        self, path: str, body: JsonObject, *, strategic: bool = False, timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> JsonObject:
        """Change an object by a merge patch, or a strategic one if `strategic`. Return at least the metadata."""
        kind = STRATEGIC_PATCH if strategic else MERGE_PATCH
        return self.exchange(
            Request("PATCH", path, body=body, content_type=kind, metadata_only=True, timeouts=timeouts)
        )

    def apply(self, path: str, body: JsonObject, *, manager: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Do a forced server-side apply; `manager` then owns exactly the fields in `body`. Return at least metadata."""
        query = {"fieldManager": manager, "force": "true"}
        return self.exchange(
            Request(
                "PATCH", path, query=query, body=body, content_type=APPLY_PATCH, metadata_only=True, timeouts=timeouts
            )
        )

    def delete(self, path: str, *, uid: str = "", timeouts: Timeouts = DEFAULT_TIMEOUTS) -> JsonObject:
        """Delete an object. Raises Conflict if `uid` is set and the object has another UID."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}} if uid else None
        return self.exchange(Request("DELETE", path, body=body, timeouts=timeouts))


LEASES_ROOT = "/apis/coordination.k8s.io/v1"


def collection_path(resource: str, *, namespace: str = "", root: str = "/api/v1") -> str:
    """Return the path of a collection. An empty `namespace` means all namespaces, or a cluster-scoped kind."""
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{where}/{resource}"


def object_path(resource: str, name: str, *, namespace: str = "", root: str = "/api/v1") -> str:
    """Return the path of an object. Raises ValueError for the names "", "." and "..", which lead to other objects."""
    if not name or name in (".", ".."):
        raise ValueError(f"{name!r} is not the name of an object in {resource}: specify the object's name")
    return f"{collection_path(resource, namespace=namespace, root=root)}/{quote(name, safe='')}"


@dataclass(slots=True)
class Pager:
    """Reads the pages of one list. If a page has too many bytes, it is requested again with half as many objects."""

    api: Api
    request: Request
    max_limit: int = PAGE_SIZE
    limit: int = field(init=False)

    def __post_init__(self) -> None:
        self.limit = self.max_limit

    def fetch(self, continue_token: str = "") -> Page:
        """Return the page at `continue_token`, by default the first. Raises TooLarge if one object is too large."""
        while True:
            try:
                page = self.api.list_page(self.request, limit=self.limit, continue_token=continue_token)
            except errors.TooLarge:
                if self.limit == 1:
                    raise
                self.limit //= 2
            else:
                # If this page has at most a third of PAGE_BYTES, a page with twice as many objects will probably fit.
                if page.size_bytes * 3 <= PAGE_BYTES:
                    self.limit = min(self.max_limit, self.limit * 2)
                return page

    def pages(self) -> Iterator[Page]:
        """Yield the pages of the list."""
        page = self.fetch()
        while page.continue_token:
            yield page
            page = self.fetch(page.continue_token)
        yield page
