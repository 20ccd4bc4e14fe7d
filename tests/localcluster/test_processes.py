"""Tests that child processes end with their parent, and that errors of waiting contain the reason."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rehearsal.localcluster import LocalClusterError
from rehearsal.localcluster.processes import Process, stop_all, wait_until
from tests.support.clock import FakeClock
from tests.support.processes import is_over
from tests.support.waiting import wait_for

#: Long time-out, because these tests start processes.
pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
SLEEPER = ["/bin/sh", "-c", "echo up; exec sleep 600"]
STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]


def _started(tmp_path: Path, command: list[str]) -> Process:
    process = Process("program", command, log=tmp_path / "program.log")
    process.start()
    wait_for(lambda: process.last_lines(1) == ["up"], what="the program to be up")
    return process


def test_program_that_is_never_ready_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    process = _started(tmp_path, SLEEPER)
    clock = FakeClock()
    with pytest.raises(LocalClusterError, match=r"a miracle did not happen within 5 s") as caught:
        wait_until(
            lambda: False,
            what="a miracle",
            timeout_seconds=5,
            processes=[process],
            sleep=lambda _: clock.advance(1),
            clock=clock,
        )
    assert caught.value.output == ("up",)
    process.kill()


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        pytest.param(SLEEPER, -signal.SIGTERM, id="one that listens is asked to end"),
        pytest.param(STUBBORN, -signal.SIGKILL, id="one that does not listen is killed"),
    ],
)
def test_stop_all_terminates_or_kills_the_program(tmp_path: Path, command: list[str], exit_code: int) -> None:
    process = _started(tmp_path, command)
    stop_all([process], grace_seconds=0.3)
    assert process.exit_code == exit_code


def test_a_program_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The kernel ends a child with the thread that created it, so children need a thread that never ends."""
    found: list[Process] = []
    thread = threading.Thread(target=lambda: found.append(_started(tmp_path, SLEEPER)))
    thread.start()
    thread.join()
    stop_all([], grace_seconds=0)
    second = _started(tmp_path, SLEEPER)
    assert found[0].running
    stop_all([found[0], second], grace_seconds=30)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_program_ends_with_a_killed_parent(tmp_path: Path) -> None:
    """A killed parent cannot stop its children, so the kernel must do it."""
    code = (
        "import sys, time; from pathlib import Path; from rehearsal.localcluster.processes import Process\n"
        f"p = Process('x', {SLEEPER!r}, log=Path(sys.argv[1])); p.start(); print(p.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(lambda: (tmp_path / "log").read_text() == "up\n", what="the child to be up")
        assert not is_over(child)
        parent.kill()
    wait_for(lambda: is_over(child), what="the child to end")
