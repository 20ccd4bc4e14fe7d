"""`tpu-provisioner partitions` kills its `vipu` commands before it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli import main
from provisioner.partitions import app
from provisioner.partitions.vipu.records import VipuError
from provisioner.runtime import logs
from tests.support.processes import is_over
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(name="asked")
def _asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], Path]]:
    """Return a function that starts a hanging `vipu` command, and returns the file with its PID."""
    program, started = tmp_path / "vipu", tmp_path / "started"
    program.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 3600\n")
    program.chmod(0o755)
    monkeypatch.setenv("VIPU_SERVERS", "10.0.0.5")
    monkeypatch.setenv("VIPU_COMMAND", str(program))
    monkeypatch.setattr("provisioner.kube.api.connect", lambda _: None)
    monkeypatch.setattr(logs, "configure", lambda _: None)
    ended: list[VipuError] = []

    def ask(vipu: Any) -> None:
        try:
            vipu.list_partitions()
        except VipuError as error:
            ended.append(error)

    def start(clients: dict[str, Any]) -> Path:
        threading.Thread(target=ask, args=(clients["10.0.0.5:8090"],), daemon=True).start()
        wait_for(started.exists, what="the start of vipu")
        return started

    yield start
    wait_for(lambda: bool(ended), what="the end of vipu")


def test_vipu_command_is_killed_when_the_controller_ends(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging command would block the exit, and could still change a server while another replica leads."""

    def run(_settings: Any, _addresses: Any, _api: Any, clients: dict[str, Any], **_options: Any) -> int:
        asked(clients)
        return 0

    monkeypatch.setattr(app, "run", run)
    assert main(["partitions"]) == 0


def comes_to_its_end(process: int) -> bool:
    return bool(wait_for(lambda: is_over(process), what="the end of vipu", seconds=10))


def test_vipu_command_is_killed_when_the_lease_is_lost(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process exits immediately, even if calls hang, so no command may run while another replica leads."""
    found: list[tuple[int, bool]] = []

    def run(_settings: Any, _addresses: Any, _api: Any, clients: dict[str, Any], **options: Any) -> int:
        command = int(asked(clients).read_text("utf-8"))
        # `os._exit` would end the test; its replacement records whether the command is dead at that time.
        monkeypatch.setattr(os, "_exit", lambda code: found.append((code, comes_to_its_end(command))))
        options["exit_process"](1)
        return 0

    # The regular end of the command also kills `vipu`, but only after `exit_process` has been called.
    monkeypatch.setattr(app, "run", run)
    main(["partitions"])
    assert found == [(1, True)]
