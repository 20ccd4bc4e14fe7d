"""Starting provisioners as forks of one process that has imported everything: 0.3 s of processor time, not 1.6 s.

Most end-to-end tests start a provisioner of their own, and nearly all that a short life costs are imports. A fork is a
process like any other: it has its own log, environment and clock, can be killed and frozen, and ends with the test. The
demo, the image and the installation are tested with `python -m provisioner` as it is.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 200_000
_PR_SET_PDEATHSIG = 1
_START_SECONDS = 60


class Forked:
    """A started fork, as far as `Process` needs a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = threading.Event()
        self._code: int | None = None

    def end(self, code: int) -> None:
        """Take note of its end."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Raises TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("provisioner", timeout or 0.0)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if it has ended."""
        if self._code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Forker:
    """Starts forks; all end with it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
            )
        self._started: queue.SimpleQueue[Forked] = queue.SimpleQueue()
        self._forks: dict[int, Forked] = {}
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def popen(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: IO[bytes], **_options: object
    ) -> Forked:
        """Start `... -m PACKAGE ARGUMENTS`; the result stands for a `subprocess.Popen`."""
        package, *arguments = command[command.index("-m") + 1 :]
        order = {"package": package, "arguments": arguments, "environment": dict(env), "directory": str(cwd)}
        socket.send_fds(self._socket, [json.dumps(order).encode()], [stdout.fileno()])
        return self._started.get(timeout=_START_SECONDS)

    def close(self) -> None:
        """End."""
        self._socket.shutdown(socket.SHUT_RDWR)
        assert self._server.wait(_START_SECONDS) == 0
        self._socket.close()

    def _listen(self) -> None:
        while message := self._socket.recv(_MOST_BYTES):
            told = json.loads(message)
            if told["code"] is None:
                fork = self._forks[told["pid"]] = Forked(told["pid"])
                self._started.put(fork)
            else:
                self._forks.pop(told["pid"]).end(told["code"])


def _serve(orders: socket.socket) -> tuple[dict[str, Any], int] | None:
    """Fork for each order; return the order and its log in the fork, None when nobody orders any more."""
    forks: dict[int, int] = {}
    ready = select.poll()
    ready.register(orders, select.POLLIN)

    def tell(pid: int, code: int | None) -> None:
        orders.send(json.dumps({"pid": pid, "code": code}).encode())

    while True:
        for descriptor, _ in ready.poll():
            if descriptor in forks:
                ready.unregister(descriptor)
                os.close(descriptor)
                pid = forks.pop(descriptor)
                tell(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            message, logs, _, _ = socket.recv_fds(orders, _MOST_BYTES, 1)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                for each in (orders.fileno(), *forks):
                    os.close(each)
                return json.loads(message), logs[0]
            os.close(logs[0])
            end = os.pidfd_open(pid)
            forks[end] = pid
            ready.register(end, select.POLLIN)
            tell(pid, None)


def main() -> int:
    """Import what a provisioner imports, and become one whenever one is ordered."""
    from provisioner.cli import main as provisioner
    from provisioner.cli import run  # noqa: F401 - main imports it when it is chosen
    from rehearsal.commands.main import main as rehearsal

    server = os.getpid()
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is None:
        return 0
    order, log = found
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != server:
        return 1
    os.setsid()
    for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, target)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [order["package"], *order["arguments"]]
    return (rehearsal if order["package"] == "rehearsal" else provisioner)(order["arguments"])


if __name__ == "__main__":
    sys.exit(main())
