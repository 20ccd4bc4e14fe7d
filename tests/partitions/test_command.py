"""`tpu-provisioner partitions` as a process: what it leaves behind."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from provisioner import kube
from provisioner.cli import partitions as cli
from provisioner.partitions import app
from provisioner.partitions.vipu.protocol import VipuError
from provisioner.runtime import logs
from tests.support.waiting import wait_for


@pytest.mark.timeout(30)
def test_no_vipu_command_outlives_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs would keep the process from its end, and change a server that somebody else leads by then."""
    program, started = tmp_path / "vipu", tmp_path / "started"
    program.write_text(f"#!/bin/sh\necho yes > {started}\nexec sleep 3600\n")
    program.chmod(0o755)
    ended: list[VipuError] = []

    def ask(vipu: Any) -> None:
        try:
            vipu.list_partitions()
        except VipuError as error:
            ended.append(error)

    def run(_settings: Any, _addresses: Any, _api: Any, clients: dict[str, Any]) -> int:
        threading.Thread(target=ask, args=(clients["10.0.0.5:8090"],), daemon=True).start()
        wait_for(started.exists, what="the start of vipu")
        return 0

    monkeypatch.setenv("VIPU_SERVERS", "10.0.0.5")
    monkeypatch.setenv("VIPU_COMMAND", str(program))
    monkeypatch.setattr(kube, "connect", lambda _: None)
    monkeypatch.setattr(logs, "configure", lambda _: None)
    monkeypatch.setattr(app, "run", run)
    assert cli._run(None) == 0
    wait_for(lambda: bool(ended), what="the end of vipu")
