"""Tests that the programs of a real cluster end with the command that started them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import is_over
from tests.support.waiting import wait_for

# Long time-out, because the first run on a machine builds the programs.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in text for child in path.read_text().split()]


def test_no_component_outlives_the_command(tmp_path: Path) -> None:
    """After SIGTERM, the command ends within 3.5 s. test_processes.py tests a killed command."""
    command = [sys.executable, "-m", "rehearsal", "up", "--no-jobset", "--directory", str(tmp_path / "c")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == f"export KUBECONFIG={tmp_path / 'c' / 'kubeconfig'}\n"
        children = _children(parent.pid)
        assert len(children) == 5
        started = time.monotonic()
        parent.terminate()
        assert parent.wait() == 0
        assert time.monotonic() - started < 3.5
        wait_for(lambda: all(is_over(child) for child in children), what="all children to end")
