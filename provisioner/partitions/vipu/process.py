"""A program that is run within bounds: of time, of output, and with an end for all that it starts.

It is given an argument list, never a shell, and an environment of its own. It leads a process group, which is killed
when the program has ended, however it did, so that nothing of it stays and nothing holds its output open.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 16
#: The end of a process makes no file descriptor readable, so it is looked for so often.
_LOOK_SECONDS = 0.05
_LOOK_SECONDS_WHEN_SILENT = 0.002
#: A program that is being started may hang; whoever ends waits no longer for it.
_CLOSE_SECONDS = 0.2


class StartError(Exception):
    """The program did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    #: Its exit code; None where it did not exit by itself.
    code: int | None
    stdout: str
    stderr: str
    #: Why it has no exit code, in words; empty where it has one.
    cause: str = ""


class Runner:
    """Runs programs as processes."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        seconds: float,
        most_bytes: int,
    ) -> Ended:
        """Run a program in a folder until it ends or its bounds are reached: of time, and of stdout and stderr each.

        Raises StartError. May be called from many threads.
        """
        deadline = self._monotonic() + seconds
        process = self._start(arguments, environment, folder)
        output = _Output(process, most_bytes)
        try:
            cause = self._watch(process, output, deadline)
        except OSError as error:
            cause = f"its output cannot be read: {error.strerror}"
        finally:
            self._end(process)
            output.finish()
        if cause or process.returncode < 0:
            cause = cause or f"it was killed by {signal.Signals(-process.returncode).name}"
            return Ended(code=None, stdout=output.stdout, stderr=output.stderr, cause=cause)
        return Ended(code=process.returncode, stdout=output.stdout, stderr=output.stderr)

    def close(self) -> None:
        """Kill what runs, and run nothing more."""
        self._closed = True
        held = self._lock.acquire(timeout=_CLOSE_SECONDS)
        try:
            for pid in tuple(self._running):
                _kill_group(pid)
        finally:
            if held:
                self._lock.release()

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise StartError("this process is ending")
            try:
                process = subprocess.Popen(
                    list(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=folder,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"cannot run {arguments[0]}: {error.strerror or error}") from None
            self._running.add(process.pid)
            return process

    def _watch(self, process: subprocess.Popen[bytes], output: _Output, deadline: float) -> str:
        """Read until the program has ended; return why it is to be killed, empty where it has ended by itself."""
        while not _has_ended(process):
            left = deadline - self._monotonic()
            if left <= 0:
                return "it took too long"
            output.read(min(left, _LOOK_SECONDS if output.is_open else _LOOK_SECONDS_WHEN_SILENT))
            if output.is_full:
                return "it wrote too much"
        return ""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # The program has not been waited for, so its number is still that of its group and of nobody else.
        with self._lock:
            _kill_group(process.pid)
            self._running.discard(process.pid)
        process.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a program has ended, without taking note of it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Output:
    """What a program writes, as far as it may."""

    def __init__(self, process: subprocess.Popen[bytes], most_bytes: int) -> None:
        self._most = most_bytes
        self._selector = selectors.DefaultSelector()
        self._parts: list[bytearray] = [bytearray(), bytearray()]
        self._streams: list[IO[bytes]] = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        for number, stream in enumerate(self._streams):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, number)

    @property
    def is_open(self) -> bool:
        """Whether there may be more."""
        return bool(self._selector.get_map())

    @property
    def is_full(self) -> bool:
        """Whether there is more than may be."""
        return any(len(part) > self._most for part in self._parts)

    @property
    def stdout(self) -> str:
        """What went to stdout."""
        return self._parts[0][: self._most].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What went to stderr."""
        return self._parts[1][: self._most].decode("utf-8", "replace")

    def read(self, seconds: float) -> bool:
        """Wait so long for something to read, and read some of it; False: there was nothing."""
        if not self.is_open:
            time.sleep(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            chunk = os.read(key.fd, _CHUNK_BYTES)
            if chunk:
                self._parts[key.data] += chunk
            else:
                self._selector.unregister(key.fileobj)
        return bool(ready)

    def finish(self) -> None:
        """Read what is left there, as far as it can be read, and close."""
        with contextlib.suppress(OSError):
            while not self.is_full and self.is_open and self.read(0):
                pass
        self._selector.close()
        for stream in self._streams:
            stream.close()
