"""Signals end the process, regardless of the state of the main thread."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from provisioner.runtime import process

#: Time-out longer than the default, because some of these tests start Python.
pytestmark = pytest.mark.timeout(60)

#: Time-out in seconds, much longer than any step of these tests.
_PATIENCE_SECONDS = 10


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_action_gets_the_name_of_the_signal(number: signal.Signals) -> None:
    told: list[tuple[str, bool]] = []
    done = threading.Event()

    def action(name: str) -> None:
        told.append((name, threading.current_thread() is threading.main_thread()))
        done.set()

    process.on_end(action)
    signal.raise_signal(number)
    assert done.wait(_PATIENCE_SECONDS)
    assert told == [(number.name, False)]


def test_event_whose_lock_the_main_thread_holds_is_set() -> None:
    """The test needs a separate process, because a handler that waits for its own thread would never return."""
    program = """
import signal, threading
from provisioner.runtime import process

class Lock:
    # The lock of an Event, with a signal while the main thread holds it.
    def __init__(self, lock):
        self.lock = lock
    def __enter__(self):
        self.lock.__enter__()
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
    def __exit__(self, *error):
        return self.lock.__exit__(*error)
    def __getattr__(self, name):
        return getattr(self.lock, name)

wake, stopped = threading.Event(), threading.Event()
process.on_end(lambda name: (wake.set(), stopped.set()))
wake._cond = Lock(wake._cond)
wake.clear()
print("stopped", stopped.wait(10))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS * 2,
        check=False,
        env=os.environ,
    )
    assert done.stdout == "stopped True\n", done.stderr


def test_log_line_during_another_log_line_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A buffer rejects a nested write of the same thread, so in the past the line was lost with a traceback."""

    class Raw(io.RawIOBase):
        """Written bytes, with a signal during the first write."""

        def __init__(self) -> None:
            self.written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            first = not self.written
            self.written += bytes(data)  # type: ignore[call-overload]
            if first:
                signal.raise_signal(signal.SIGTERM)
            return len(data)  # type: ignore[arg-type]

    raw = Raw()
    log = logging.Logger("test")  # noqa: LOG001 - not shared with other tests
    log.addHandler(logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(raw))))
    done = threading.Event()

    def action(name: str) -> None:
        log.info("stopping: %s", name)
        done.set()

    process.on_end(action)
    log.info("a round")
    assert done.wait(_PATIENCE_SECONDS)
    assert raw.written == b"a round\nstopping: SIGTERM\n"
    assert capsys.readouterr().err == ""
