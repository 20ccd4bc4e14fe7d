"""A program that is run within bounds: of time, of output, and with an end for all that it starts.

It writes to memory: on a file system that is full, output would be cut without a sign.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: The end of a process is looked for so soon, and then ever more seldom: a create takes minutes.
_LOOK_SECONDS, _LATEST_LOOK_SECONDS = 0.002, 0.05
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
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float, most_bytes: int
    ) -> Ended:
        """Run a program until it ends, or reaches its bounds of time or of stdout or stderr. Raises StartError."""
        deadline = self._monotonic() + seconds
        with _memory() as stdout, _memory() as stderr:
            process = self._start(arguments, environment, folder, (stdout, stderr))
            try:
                # Between two looks it writes no more than that either.
                with contextlib.suppress(OSError):
                    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes + 1, most_bytes + 1))
                cause = self._watch(process, deadline, lambda: max(map(_size, (stdout, stderr))) > most_bytes)
            finally:
                self._end(process)
            if not cause and process.returncode < 0:
                cause = f"it was killed by {signal.Signals(-process.returncode).name}"
            texts = [_text(each, most_bytes) for each in (stdout, stderr)]
        return Ended(code=None if cause else process.returncode, stdout=texts[0], stderr=texts[1], cause=cause)

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

    def _start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: tuple[IO[bytes], IO[bytes]],
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise StartError("this process is ending")
            try:
                process = subprocess.Popen(
                    list(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=output[0],
                    stderr=output[1],
                    cwd=folder,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"cannot run {arguments[0]}: {error.strerror or error}") from None
            self._running.add(process.pid)
            return process

    def _watch(self, process: subprocess.Popen[bytes], deadline: float, is_too_much: Callable[[], bool]) -> str:
        """Wait until the program has ended; return why it is to be killed, empty where it has ended by itself."""
        pause_seconds = _LOOK_SECONDS
        while not _has_ended(process) and not is_too_much():
            if self._monotonic() >= deadline:
                return "it took too long"
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LATEST_LOOK_SECONDS)
        return "it wrote too much" if is_too_much() else ""

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


def _memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("output"), "w+b")


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _text(file: IO[bytes], most_bytes: int) -> str:
    file.seek(0)
    return file.read(most_bytes).decode("utf-8", "replace")
