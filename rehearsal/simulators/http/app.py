"""Runs a simulated service on a local port, with a thread for HTTP and a thread for callbacks that are due."""

from __future__ import annotations

import random
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from provisioner.runtime import process
from rehearsal.simulators.http.exchange import Call, CallLog
from rehearsal.simulators.http.faults import BaseFault
from rehearsal.simulators.http.server import Server
from rehearsal.simulators.http.service import BaseService
from rehearsal.simulators.http.settings import BaseSettings
from rehearsal.simulators.http.world import BaseWorld, Clock, system_clock

_LONGEST_PAUSE_SECONDS = 1.0
_SHORTEST_PAUSE_SECONDS = 0.005


World = TypeVar("World", bound=BaseWorld[Any, Any])
Settings = TypeVar("Settings", bound=BaseSettings)


class LocalSimulator(Generic[World, Settings]):
    """A simulated service on a local port; use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock or system_clock()
        self.world = self._make_world(settings, self._clock, rng)
        self._calls = CallLog(kept=self.world.settings.calls_kept)
        self._address = host, port
        self._server: Server | None = None
        self._threads: list[threading.Thread] = []
        self._wake = threading.Event()
        self._stopping = threading.Event()

    @abstractmethod
    def _make_world(self, settings: Settings | None, clock: Clock, rng: random.Random | None) -> World:
        """Return the world with `settings`, or with its default settings if None."""

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{self._running.address}"

    @property
    def port(self) -> int:
        """The port that the simulator listens on."""
        return int(self._running.server_port)

    @property
    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the simulator is not started: call start() or use it as a context")
        return self._server

    @abstractmethod
    def start(self) -> None:
        """Open the port and serve. Raises OSError if the port is in use."""

    def _listen(self, make_service: Callable[[str], BaseService[Any]]) -> Server:
        """Open the port; requests are answered only after `_run`."""
        self._stopping.clear()
        self._server = Server(self._address, make_service=make_service, calls=self._calls, clock=self._clock)
        return self._server

    def _run(self) -> None:
        self.world.timeline.on_added = self._wake.set
        for name, target in (("http", self._running.listen), ("ticker", self._tick)):
            thread = threading.Thread(target=target, name=f"simulator-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Close the port and end all threads."""
        self._stopping.set()
        self._wake.set()
        if self._server is not None:
            self._server.stop()
        for thread in self._threads:
            thread.join()

    def _tick(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            due = self.world.advance()
            pause = _LONGEST_PAUSE_SECONDS
            if due is not None:
                pause = min(pause, (due - self._clock()).total_seconds())
            self._wake.wait(max(pause, _SHORTEST_PAUSE_SECONDS))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def serve(self, title: str, use: Callable[[str], str]) -> int:
        """Serve until SIGINT or SIGTERM, and return 0; return 1 if the port cannot be used.

        Prints one line with the title, the URL, and the text that `use` returns for the URL.
        """
        ended = threading.Event()
        process.on_end(lambda _signal_name: ended.set())
        try:
            self.start()
        except OSError as error:
            host, port = self._address
            sys.stderr.write(f"{title}: can't listen on {host}:{port}: {error.strerror or error}\n")
            return 1
        sys.stdout.write(f"{title} on {self.url}: {use(self.url)}; {self.url}/simulator/v1/state shows the state\n")
        sys.stdout.flush()
        ended.wait()
        self.stop()
        return 0

    @property
    def settings(self) -> Settings:
        """The current settings."""
        settings: Settings = self.world.settings
        return settings

    def set(self, **changes: Any) -> Settings:
        """Change settings while the simulator runs; return all settings."""
        changed: Settings = self.world.change_settings(changes)
        return changed

    @property
    def calls(self) -> tuple[Call, ...]:
        """The API calls in the log, oldest first."""
        return self._calls.all()

    def count(self, method: str) -> int:
        """Return the number of calls of that method that were answered, with any status."""
        return sum(self._calls.counts().get(method, {}).values())

    def call_counts(self) -> dict[str, dict[str, int]]:
        """Return the number of answered calls by method and HTTP status."""
        return self._calls.counts()

    def reset_calls(self) -> None:
        """Clear the log of calls and the counts."""
        self._calls.reset()

    def inject(self, fault: BaseFault) -> str:
        """Activate a fault and return its ID."""
        added: Any = self.world.faults.add(fault)
        return str(added.fault_id)

    def clear(self, fault_id: str | None = None) -> None:
        """Remove one fault, or all faults, and resume the operations that they delayed."""
        if fault_id is None:
            self.world.faults.clear()
        else:
            self.world.faults.remove(fault_id)
        self.world.release()
