"""Replaces the threads of kube/watches.py: feeds the list-watches of one process on virtual time.

The list-watches are real. They get the same input as from real threads: pages of lists, lines and ends of watches, and
failures. Within one watch nothing is lost and the order is kept; between watches there is no order. Connections break
in the middle of a line, with an ERROR event, with a line that is not JSON, too early, or silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from provisioner.kube import errors
from provisioner.kube.protocol import JsonObject, Page
from provisioner.kube.watches import ListWatch
from tests.simulation.calls import Trouble
from tests.simulation.store import Change, selector

if TYPE_CHECKING:
    from tests.simulation.process import Process

#: Item that arrives over a watch: an event, a line, a failure, or None for the server's clean end.
_Arrival = JsonObject | bytes | errors.ClusterError | None
_FIRST_LIST_SECONDS = (0.05, 2.0)


class Feed:
    """Feeds one list-watch of one process."""

    def __init__(self, process: Process, watch: ListWatch[Any]) -> None:
        self._process = process
        self._watch = watch
        self._stage = process.stage
        self._calls = process.calls
        self.resource = watch.path.rpartition("/")[2]
        self._silent_until = 0.0
        self._stream: _Stream | None = None
        self._stage.agenda.after(self._stage.rng.uniform(*_FIRST_LIST_SECONDS), lambda: self._enter(self._next))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def fall_silent(self, seconds: float) -> None:
        """Deliver nothing for `seconds`, over the open connection or over new ones."""
        agenda = self._stage.agenda
        self._silent_until = agenda.now + seconds
        agenda.at(self._silent_until, self._hear_again)
        if self._stream is not None:
            self._stream.watch_silence()

    def lose_server(self) -> None:
        """Break the connection, as when the API server ends."""
        stream = self._stream
        if stream is not None:
            self._enter(lambda: stream.break_off(errors.Unavailable("connection reset")))

    def hear(self) -> None:
        """End the silence of the feed, and deliver the items that have arrived."""
        self._silent_until = min(self._silent_until, self._stage.agenda.now)
        self._hear_again()

    @property
    def silent(self) -> bool:
        return self._stage.agenda.now < self._silent_until

    def _hear_again(self) -> None:
        if not self.silent and self._stream is not None:
            self._stream.arrive()

    # --- steps that the real client runs in a thread

    def _enter(self, step: Callable[[], None]) -> None:
        self._process.enter(step)

    def _next(self) -> None:
        query = self._watch.begin()
        if query is None:
            self._list()
        else:
            self._open(query)

    def _failed(self, error: Exception) -> None:
        self._after(self._watch.failed(error))

    def _after(self, delay_seconds: float) -> None:
        self._stage.agenda.after(delay_seconds, lambda: self._enter(self._next))

    def _send(self, method: str, serve: Callable[[Trouble | None], None]) -> None:
        trouble = self._calls.kube_fault(self._process, method, self._watch.path)
        on_the_way = self._calls.latency_seconds() + (trouble.delay_seconds if trouble is not None else 0.0)

        def reach() -> None:
            if self._process.dead:
                return
            if trouble is not None and trouble.code is not None and trouble.before_effect:
                self._answer(errors.Unavailable(trouble.text, status=trouble.code))
            else:
                serve(trouble)

        self._stage.agenda.after(on_the_way, reach)

    def _answer(self, answer: Page | errors.ClusterError) -> None:
        """Deliver a response to the client, or a time-out if the feed is silent for longer than the client waits."""
        agenda = self._stage.agenda
        patience_ends = agenda.now + self._watch.list_timeouts.read_seconds

        def come() -> None:
            if not self.silent:
                self._enter(lambda: self._take(answer))
            elif self._silent_until < patience_ends:
                agenda.at(self._silent_until, come)
            else:
                timed_out = errors.Unavailable("no answer in time")
                agenda.at(patience_ends, lambda: self._enter(lambda: self._failed(timed_out)))

        agenda.after(self._calls.latency_seconds(), come)

    def _list(self, token: str = "") -> None:
        def serve(trouble: Trouble | None) -> None:
            answer: Page | errors.ClusterError
            if token and self._calls.list_expires():
                self._stage.store.compact()
            try:
                answer = self._stage.store.page(
                    self._watch.path, self._watch.query, limit=self._watch.page_size, continue_token=token
                )
            except errors.Gone as error:
                self._stage.fault("list expired between pages", self.resource)
                answer = error
            except (errors.NotFound, errors.Forbidden) as error:
                answer = error
            if trouble is not None and trouble.code is not None:
                answer = errors.Unavailable(trouble.text, status=trouble.code)
            self._answer(answer)

        self._send("GET", serve)

    def _take(self, answer: Page | errors.ClusterError) -> None:
        if isinstance(answer, errors.ClusterError):
            self._failed(answer)
            return
        try:
            token = self._watch.take_page(answer)
        except Exception as error:  # noqa: BLE001 - as the thread does
            self._failed(error)
            return
        if token:
            self._list(token)
        else:
            self._next()

    def _open(self, query: Mapping[str, str]) -> None:
        def serve(trouble: Trouble | None) -> None:
            try:
                missed = self._stage.store.changes_since(self.resource, int(query["resourceVersion"]))
            except errors.Gone as error:
                self._stage.fault("version compacted", self.resource)
                self._answer(error)
                return
            except (errors.NotFound, errors.Forbidden) as error:
                self._answer(error)
                return
            if trouble is not None and trouble.code is not None:
                self._answer(errors.Unavailable(trouble.text, status=trouble.code))
                return
            self._stream = _Stream(self, query, missed)

        self._send("WATCH", serve)


class _Stream:
    """One watch from its start to its end, with the items that are in transit."""

    def __init__(self, feed: Feed, query: Mapping[str, str], missed: list[Change]) -> None:
        self._feed = feed
        self._stage, self._calls = feed._stage, feed._calls
        self._agenda = feed._stage.agenda
        self._watch = feed._watch
        self._resource = feed.resource
        self._selects = selector(feed._watch.path, query)
        #: Items in transit, in order, with their time of arrival.
        self._coming: deque[tuple[float, _Arrival]] = deque()
        self._last_arrival = 0.0
        self._heard_at = self._agenda.now
        self._open = True
        self._closed = False
        self._stage.store.listen(self._resource, self._tell)
        for change in missed:
            if self._open:
                self._tell(change)
        ends, bookmark = self._calls.watch_ends(int(query["timeoutSeconds"]))
        self._agenda.after(ends, self._end)
        if bookmark is not None:
            self._agenda.after(bookmark, self._bookmark)
        if feed.silent:
            self.watch_silence()

    # --- server side of the watch

    def _tell(self, change: Change) -> None:
        before, after = change.before, change.after
        was = before is not None and self._selects(change.path, before)
        if after is not None and self._selects(change.path, after):
            event: _Arrival = {"type": "MODIFIED" if was else "ADDED", "object": after}
        elif was and before is not None:
            metadata = {**before["metadata"], "resourceVersion": str(change.version)}
            event = {"type": "DELETED", "object": {**before, "metadata": metadata}}
        else:
            return
        lag_seconds, breaks = self._calls.watch_trouble(self._resource)
        if breaks:
            if self._stage.chance(0.3):
                self._stage.store.compact()
            event = self._stage.rng.choice(_BREAKS)
            self._stop_sending()
        self._send(event, lag_seconds)

    def _bookmark(self) -> None:
        if self._open:
            version = str(self._stage.store.version)
            self._send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}, 0.02)

    def _end(self) -> None:
        if self._open:
            self._stop_sending()
            self._send(None, 0.02)

    def _send(self, arrival: _Arrival, lag_seconds: float) -> None:
        self._last_arrival = max(self._last_arrival, self._agenda.now + lag_seconds)
        self._coming.append((self._last_arrival, arrival))
        self._agenda.at(self._last_arrival, self.arrive)

    def _stop_sending(self) -> None:
        if self._open:
            self._open = False
            self._stage.store.unlisten(self._resource, self._tell)

    # --- client side of the watch

    def close(self) -> None:
        self._closed = True
        self._stop_sending()

    def arrive(self) -> None:
        """Let the client read the items that have arrived."""
        if self._coming and not self._closed and not self._feed.silent:
            self._heard_at = self._agenda.now
            self._feed._enter(self._read)

    def _read(self) -> None:
        while self._coming and not self._closed and self._coming[0][0] <= self._agenda.now:
            _, arrival = self._coming.popleft()
            if arrival is None:
                self.close()
                self._feed._after(self._watch.watch_ended())
            elif isinstance(arrival, errors.ClusterError):
                self.break_off(arrival)
            else:
                self._apply(arrival)

    def _apply(self, arrival: JsonObject | bytes) -> None:
        try:
            if isinstance(arrival, bytes):
                self._watch.take_line(arrival)
            else:
                self._watch.take_event(arrival)
        except Exception as error:  # noqa: BLE001 - as the thread does
            self.break_off(error)

    def break_off(self, error: Exception) -> None:
        if not self._closed:
            self.close()
            self._feed._failed(error)

    def watch_silence(self) -> None:
        """Let the client close the connection if it receives nothing for longer than its time-out."""
        heard_at = self._heard_at

        def look() -> None:
            if not self._closed and self._feed.silent and self._heard_at == heard_at:
                self._stage.fault("watch timed out", self._resource)
                self._feed._enter(lambda: self.break_off(errors.Unavailable("nothing was heard")))

        self._agenda.at(heard_at + self._watch.watch_timeouts.read_seconds, look)


#: Items that end a broken watch.
_BREAKS: tuple[_Arrival, ...] = (
    errors.Unavailable("the stream ended in the middle of a line"),
    errors.Unavailable("the stream broke: connection reset"),
    b"<html>bad gateway</html>",
    b'{"type":"ADDED","object":null}',
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}},
    {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd: leader changed"}},
    None,
)
