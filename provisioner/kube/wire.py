"""Converts HTTP responses of an API server to lines, JSON objects, pages and errors. Opens no connections."""

import http.client
import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import structlog
import urllib3
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from provisioner.kube import errors, fields
from provisioner.kube.protocol import ANSWER_BYTES, JsonObject, Page

_log = structlog.get_logger(__name__)

MAX_LINE_BYTES = ANSWER_BYTES
CHUNK_BYTES = 64 * 1024

#: Errors of urllib3, http.client and ssl. A ValueError means an invalid header or a closed socket.
TRANSPORT_ERRORS = (HTTPError, http.client.HTTPException, OSError, ValueError)
_BY_STATUS: dict[int, type[errors.ClusterError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.Unavailable,
    409: errors.Conflict,
    410: errors.Gone,
    429: errors.TooManyRequests,
}


class LineStream:
    """Lines of one streamed response. One thread reads them; any thread may close the stream."""

    def __init__(self, response: urllib3.BaseHTTPResponse, *, title: str, read_seconds: float) -> None:
        self._response = response
        self._title = title
        self._read_seconds = read_seconds
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        try:
            self._response.close()
        except TRANSPORT_ERRORS as problem:
            _log.debug("stream.close_failed", what=self._title, error=str(problem))

    def close(self) -> None:
        """End the stream from any thread. A thread that waits for data returns immediately."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            # Closing the response would only free the file descriptor; a thread that waits in recv() would still wait.
            self._response.shutdown()
        except (*TRANSPORT_ERRORS, RuntimeError) as problem:
            _log.debug("stream.close_failed", what=self._title, error=str(problem))

    def __iter__(self) -> Iterator[bytes]:
        """Yield nonempty lines without line ends. An incomplete last line raises Unavailable, unless closed."""
        pending = bytearray()
        while chunk := self._read():
            start = 0
            # Only the new chunk is searched for line ends; searching `pending`, which has none, again would be slow.
            while (end := chunk.find(b"\n", start)) >= 0:
                pending += chunk[start:end]
                line = bytes(pending)
                pending.clear()
                start = end + 1
                if line.strip():
                    yield line
            pending += chunk[start:]
            if len(pending) > MAX_LINE_BYTES:
                raise errors.Malformed(f"{self._title}: a line of more than {MAX_LINE_BYTES} bytes")
        if pending.strip() and not self._closed.is_set():
            raise errors.Unavailable(f"{self._title}: the stream ended in the middle of a line")

    def _read(self) -> bytes:
        try:
            return self._response.read1(CHUNK_BYTES)
        except Urllib3TimeoutError as error:
            if self._closed.is_set():
                return b""
            raise errors.Unavailable(f"{self._title}: nothing was received for {self._read_seconds:g} s") from error
        except (*TRANSPORT_ERRORS, AttributeError) as error:
            # http.client and ssl raise AttributeError if another thread calls close() during the read.
            if self._closed.is_set():
                return b""
            raise errors.Unavailable(f"{self._title}: the stream broke: {error}") from error


def read_answer(title: str, response: urllib3.BaseHTTPResponse, *, max_bytes: int) -> bytes:
    """Return the body of a response. If it has more than `max_bytes`, close the connection and raise TooLarge."""
    data = bytearray()
    length = response.headers.get("content-length", "")
    announced = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
    if announced <= max_bytes:
        while chunk := response.read(CHUNK_BYTES):
            data += chunk
            if len(data) > max_bytes:
                break
        else:
            response.release_conn()
            return bytes(data)
    response.close()
    raise errors.TooLarge(f"{title}: the answer has more than {max_bytes:,} bytes")


def decode_object(title: str, data: bytes) -> JsonObject:
    """Decode a response or an event of a watch. Raises Malformed if it is not a JSON object."""
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise errors.Malformed(f"{title}: the answer is not JSON: {_excerpt(data)}") from error
    if not isinstance(decoded, dict):
        raise errors.Malformed(f"{title}: the answer is not a JSON object: {_excerpt(data)}")
    return decoded


def page_of(title: str, body: JsonObject) -> Page:
    """Read a page. `items` may be null, because Go encodes empty lists so. Raises Malformed if `body` is not a page."""
    metadata = body.get("metadata")
    items = body.get("items")
    if items is None and "items" in body:
        items = []
    if not isinstance(metadata, dict) or not isinstance(items, list):
        raise errors.Malformed(f"{title}: the answer is not a list: it lacks items or metadata")
    version = metadata.get("resourceVersion")
    token = metadata.get("continue") or ""
    if not isinstance(version, str) or not version or not isinstance(token, str):
        raise errors.Malformed(f"{title}: the list has no resourceVersion, or a continue token of a wrong type")
    return Page(items=items, resource_version=version, continue_token=token)


def _excerpt(data: bytes) -> str:
    return repr(data[:80].decode("utf-8", "replace"))


def error_of(title: str, response: urllib3.BaseHTTPResponse, data: bytes) -> errors.ClusterError:
    """Return the error for a response with an error status. The message is from the Status object, if present."""
    try:
        status = fields.mapping(json.loads(data))
    except (ValueError, RecursionError):
        status = {}
    fallback = f"{title}: {data[:200].decode('utf-8', 'replace').strip() or response.reason or 'no reason'}"
    return _error(response.status, status, fallback, header=response.headers.get("retry-after"))


def error_of_status(raw: JsonObject) -> errors.ClusterError:
    """Return the error for the Status object in an ERROR event of a watch."""
    code = raw.get("code")
    if not isinstance(code, int) or isinstance(code, bool):
        # Some proxies send only the reason, without the code.
        code = 410 if raw.get("reason") in ("Expired", "Gone") else 500
    return _error(code, raw, "the API server ended the watch with an error")


def _error(code: int, status: JsonObject, fallback: str, *, header: str | None = None) -> errors.ClusterError:
    kind = _BY_STATUS.get(code) or (errors.Invalid if 400 <= code < 500 else errors.Unavailable)
    return kind(
        fields.text(status.get("message")) or fallback,
        status=code,
        reason=fields.text(status.get("reason")),
        retry_after_seconds=_retry_after(header, status),
    )


def _retry_after(header: str | None, status: JsonObject) -> float:
    if header is not None and header.isascii() and header.isdigit():
        return float(header[:9])
    seconds = fields.at(status, "details").get("retryAfterSeconds")
    if isinstance(seconds, int) and not isinstance(seconds, bool) and seconds > 0:
        return float(min(seconds, 10**9))
    return 0.0
