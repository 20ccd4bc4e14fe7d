"""The command `tpu-provisioner nodegroups`: its flags, its environment, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.main import main
from provisioner.cli.output import ExitCode
from provisioner.controller.process import Addresses
from provisioner.nodegroups import app
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.runtime.http import ServerError
from provisioner.settings.nodegroups import OPTIONS, NodeGroupSettings
from tests.support.kubeconfig import write_kubeconfig


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("GCP_PROJECT_ID", "research-project")
    monkeypatch.setenv("GCE_ENDPOINT", "http://127.0.0.1:1")
    return str(write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NodeGroupSettings, Addresses]]:
    runs: list[tuple[NodeGroupSettings, Addresses]] = []

    def run(settings: NodeGroupSettings, addresses: Addresses, _api: Any, compute: Any) -> int:
        assert isinstance(compute, ComputeClient)
        runs.append((settings, addresses))
        return 0

    monkeypatch.setattr(app, "run", run)
    return runs


def test_flags_and_environment_are_passed_to_the_controller(
    kubeconfig: str, started: list[tuple[NodeGroupSettings, Addresses]]
) -> None:
    assert main(["nodegroups", "--kubeconfig", kubeconfig]) == 0
    flags = ["--leader-elect", "--dry-run", "--metrics-bind-address=:1", "--health-probe-bind-address=0"]
    assert main(["nodegroups", "--kubeconfig", kubeconfig, *flags]) == 0
    (plain, default), (dry, other) = started
    assert (plain.project_id, plain.dry_run, default) == ("research-project", False, Addresses())
    assert (dry.dry_run, other) == (True, Addresses(metrics=":1", probes="0", leader_elect=True))


def test_dry_run_in_the_environment_is_effective(
    kubeconfig: str, started: list[tuple[NodeGroupSettings, Addresses]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of the flag does not override the variable."""
    monkeypatch.setenv("DRY_RUN", "true")
    assert main(["nodegroups", "--kubeconfig", kubeconfig]) == 0
    assert started[0][0].dry_run


@pytest.mark.parametrize(
    ("variable", "text", "want"),
    [
        pytest.param("GCP_PROJECT_ID", "", "GCP_PROJECT_ID is not set", id="no project, and none to infer"),
        pytest.param("REPAIR_AFTER", "soon", "REPAIR_AFTER='soon'", id="a value of another form"),
    ],
)
def test_invalid_settings_are_refused(
    kubeconfig: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    want: str,
) -> None:
    monkeypatch.setenv(variable, text)
    assert main(["nodegroups", "--kubeconfig", kubeconfig]) == ExitCode.ERROR
    assert want in capsys.readouterr().err


def test_address_that_cannot_be_served_is_reported(
    kubeconfig: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> int:
        raise ServerError("the port is taken")

    monkeypatch.setattr(app, "run", run)
    assert main(["nodegroups", "--kubeconfig", kubeconfig]) == ExitCode.ERROR
    assert "the port is taken" in capsys.readouterr().err
