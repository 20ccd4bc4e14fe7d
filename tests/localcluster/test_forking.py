"""Forks that stand for provisioners of end-to-end tests: processes of their own, and none is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.localcluster.processes import Process
from tests.support.forking import Forker
from tests.support.waiting import wait_for

#: Importing the provisioner takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def forker() -> Iterator[Forker]:
    """Give what forks."""
    forker = Forker()
    yield forker
    forker.close()


def _provisioner(forker: Forker, log: Path, *arguments: str, **environment: str) -> Process:
    package = "rehearsal" if arguments[0] == "simulator" else "provisioner"
    command = [sys.executable, "-m", package, *arguments]
    return Process("provisioner", command, log=log, environment={**os.environ, **environment}, popen=forker.popen)


def test_frozen_killed_and_started_again(forker: Forker, tmp_path: Path) -> None:
    """Signals arrive, and the log goes on."""
    process = _provisioner(forker, tmp_path / "log", "simulator", "--port=0")
    process.start()
    wait_for(lambda: process.last_lines(1), what="it speaks")
    first = process.pid
    process.send(signal.SIGSTOP)
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    process.start()
    assert process.pid != first
    wait_for(lambda: len(process.last_lines(50)) >= 2, what="it speaks again")
    process.terminate()
    process.wait_ended(timeout_seconds=30)
    assert process.exit_code == 0
