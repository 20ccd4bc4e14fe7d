"""Starts child processes that end with their parent, and waits until they work.

On Linux, a child is killed when this process ends, for any reason. On other systems a child survives if its parent is
killed, because only an orderly stop ends the child.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from rehearsal.localcluster.errors import LocalClusterError

_POLL_SECONDS = 0.02
_TAIL_BYTES = 64 * 1024

# A separate small program calls prctl, because a preexec_fn can deadlock in a process with threads. The id of the
# parent is checked afterwards, because the parent may have ended before the call.
_BIND_TO_PARENT = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} can't be run: {error}")
"""


def bound_to_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs a program. On Linux, the kernel kills it when the thread that started it ends."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _BIND_TO_PARENT, str(os.getpid()), *command]


class _Spawner:
    """Starts processes from one thread that lives as long as this process.

    PR_SET_PDEATHSIG kills a child when the *thread* that started it ends, so a short-lived thread must not start any.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._calls = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def spawn(self, call: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            # The thread is missing before the first call, and in a forked child of this process.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="localcluster-spawner", daemon=True)
                self._thread.start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._calls.put((call, future))
        return future.result()

    def _run(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except (OSError, ValueError) as error:
                future.set_exception(error)


_spawner = _Spawner()


class Process:
    """A program that can be started repeatedly with the same command; its output is in one log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environment = dict(os.environ if environment is None else environment)
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process ID; None before the first start."""
        return None if self._popen is None else self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the program is started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the program, or minus the number of the signal that ended it; None if it has not ended."""
        return None if self._popen is None else self._popen.poll()

    def start(self) -> None:
        """Start the program; its output is appended to the log."""
        if self.running:
            raise LocalClusterError(f"{self.name} is already running.", advice="Stop it first.")
        with self.log.open("ab") as log:
            try:
                self._popen = _spawner.spawn(
                    lambda: subprocess.Popen(
                        bound_to_parent(self.command),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self._environment,
                        cwd=self.log.parent,
                        # Ctrl-C in a terminal must reach only the parent, which then stops its children in order.
                        start_new_session=True,
                    )
                )
            except OSError as error:
                raise LocalClusterError(
                    f"{self.name} could not be started: {error}.",
                    advice=f"Check that {self.command[0]} is a program for this machine.",
                ) from error

    def send(self, signal_number: int) -> None:
        """Send a signal; do nothing if the program has ended."""
        if self._popen is not None:
            self._popen.send_signal(signal_number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send(signal.SIGTERM)

    def wait_ended(self, *, timeout_seconds: float) -> None:
        """Wait until the program has ended; kill it after the time-out."""
        if self._popen is None:
            return
        try:
            self._popen.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the program and wait until it has ended."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the log."""
        try:
            with self.log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(0, size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-count:] if count > 0 else []


def stop_all(processes: Sequence[Process], *, grace_seconds: float) -> None:
    """End programs that do not depend on each other: send SIGTERM, and kill each that runs after `grace_seconds`."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + grace_seconds
    for process in processes:
        process.wait_ended(timeout_seconds=max(0.0, deadline - time.monotonic()))


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float,
    processes: Sequence[Process] = (),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until the condition holds.

    Raises LocalClusterError, with the last lines of logs, if one of the processes ends before, or after the time-out.
    """
    deadline = clock() + timeout_seconds
    while True:
        # The processes are checked first: if a process ended because its port was taken, another program answers there.
        for process in processes:
            if process.exit_code is not None:
                raise LocalClusterError(
                    f"{process.name} ended with exit code {process.exit_code} while waiting for {what}.",
                    output=process.last_lines(20),
                    advice=f"Its complete log is {process.log}, as long as the cluster's directory exists.",
                )
        if condition():
            return
        if clock() > deadline:
            raise LocalClusterError(
                f"{what} did not happen within {timeout_seconds:g} s.",
                output=[line for process in processes for line in process.last_lines(20)],
                advice="Check whether this machine is very busy or low on memory. The local cluster needs about 1 GB.",
            )
        sleep(_POLL_SECONDS)
