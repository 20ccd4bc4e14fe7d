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
from tests.support.localcluster import process_is_alive
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


def test_each_has_its_own_environment_log_and_exit_code(forker: Forker, tmp_path: Path) -> None:
    """As `python -m provisioner` has."""
    wrong = {"GKE_ENDPOINT": "http://127.0.0.1:1", "KUBECONFIG": "/nowhere"}
    one = _provisioner(forker, tmp_path / "one", "run", **wrong, NODE_MIN_LIFESPAN="a while")
    two = _provisioner(forker, tmp_path / "two", "topologies", "--help")
    for each in (one, two):
        each.start()
    for each in (one, two):
        each.wait_ended(timeout_seconds=30)
    assert (one.exit_code, two.exit_code) == (1, 0)
    assert "'a while'" in (tmp_path / "one").read_text()
    assert (tmp_path / "two").read_text().startswith("Usage: ")


def test_frozen_killed_and_started_again(forker: Forker, tmp_path: Path) -> None:
    """Signals arrive, and the log goes on."""
    process = _provisioner(forker, tmp_path / "log", "simulator", "--port=0")
    process.start()
    wait_for(lambda: process.last_lines(1), what="it speaks")
    first = process.pid
    process.pause()
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    process.start()
    assert process.pid != first
    wait_for(lambda: len(process.last_lines(50)) >= 2, what="it speaks again")
    process.terminate()
    process.wait_ended(timeout_seconds=30)
    assert process.exit_code == 0


def test_all_end_with_their_parent(tmp_path: Path) -> None:
    """A test run that is over leaves no provisioner."""
    forker = Forker()
    process = _provisioner(forker, tmp_path / "log", "simulator", "--port=0")
    process.start()
    wait_for(lambda: process.last_lines(1), what="it speaks")
    forker.close()
    wait_for(lambda: not process_is_alive(process.pid or 0), what="it has ended")
