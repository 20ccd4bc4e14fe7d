"""Keep a copy of one kind of objects: list it in pages, then watch it, for as long as the process lives.

A thread sends what a Reflector (reflector.py) asks for and feeds it what the server says. A hung connection is noticed
and continued from the last resource version: watches are short, the read time-out is longer than a watch, and a watch
that the server ends at the agreed time counts as contact, because on a quiet cluster bookmarks came only every two
minutes. `synced` and `fresh` tell what `records` is worth; records need not be current.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from provisioner.kube.protocol import Api, JsonObject, Pager, Stream, Timeouts
from provisioner.kube.reflector import WATCH_DEFAULTS, Collection, ListRequest, Reflector, WatchOptions, WatchRequest

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_LIST_SECONDS = 30.0


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
        wait: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(collection, parse=parse, on_change=on_change, quiet=quiet, options=options)
        self._api = api
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self.list_timeouts = Timeouts(connect_seconds=_CONNECT_SECONDS, read_seconds=_LIST_SECONDS)
        self.watch_timeouts = Timeouts(connect_seconds=_CONNECT_SECONDS, read_seconds=options.read_timeout_seconds)
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
            request = self.next_request()
            if isinstance(request, ListRequest):
                self._list(request)
                return 0.0
            return self._watch(request)
        except Exception as error:  # noqa: BLE001 - a dead watch is a controller that sees nothing
            return 0.0 if self._stopping.is_set() else self.failed(error)

    def _list(self, first: ListRequest) -> None:
        request: ListRequest | None = first
        pager = Pager(self._api, self.path, first.query, most=first.limit, timeouts=self.list_timeouts)
        while request is not None and not self._stopping.is_set():
            # No name for the page: it would live on while the next one is read.
            request = self.take_page(pager.fetch(request.continue_token))

    def _watch(self, request: WatchRequest) -> float:
        with self._api.stream(self.path, request.query, timeouts=self.watch_timeouts) as stream:
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
