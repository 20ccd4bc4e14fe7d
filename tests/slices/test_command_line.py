"""Tests of the command `run`: its flags, the flags of the Go provisioner, and invalid settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import provisioner
from provisioner.cli import main, run
from provisioner.settings import readable
from tests.support.kubeconfig import write_kubeconfig
from tests.support.settings import REQUIRED, settings

#: Time-out in seconds of each test, because some tests start a Python process.
pytestmark = pytest.mark.timeout(60)

COMPLETE = REQUIRED | {"GKE_ENDPOINT": "http://127.0.0.1:9"}


def flags(*arguments: str) -> dict[str, Any]:
    return run.command.make_context("run", [*arguments]).params


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param([], False, id="left out"),
        pytest.param(["--leader-elect"], True, id="two dashes"),
        pytest.param(["-leader-elect"], True, id="one dash"),
        pytest.param(["--leader-elect=true"], True, id="set to true"),
        pytest.param(["-leader-elect=false"], False, id="one dash and set to false"),
        pytest.param(["--leader-elect=F"], False, id="set to F, which Go accepts"),
        pytest.param(["--leader-elect", "--zap-devel"], True, id="before another flag"),
    ],
)
def test_leader_elect_is_parsed_in_all_forms_of_go_flags(arguments: list[str], *, want: bool) -> None:
    assert flags(*arguments)["leader_elect"] is want


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--metrics-bind-address=:9090", "--health-probe-bind-address=:9091"], id="two dashes and ="),
        pytest.param(["-metrics-bind-address=:9090", "-health-probe-bind-address=:9091"], id="one dash and ="),
        pytest.param(["--metrics-bind-address", ":9090", "--health-probe-bind-address", ":9091"], id="two dashes"),
        pytest.param(["-metrics-bind-address", ":9090", "-health-probe-bind-address", ":9091"], id="one dash"),
    ],
)
def test_addresses_are_parsed_in_all_forms_of_go_flags(arguments: list[str]) -> None:
    found = flags(*arguments)
    assert (found["metrics_bind_address"], found["health_probe_bind_address"]) == (":9090", ":9091")


def test_flags_have_the_defaults_of_the_go_provisioner() -> None:
    found = flags()
    assert (found["metrics_bind_address"], found["health_probe_bind_address"]) == (":8080", ":8081")
    assert found["leader_elect"] is False


@pytest.mark.parametrize(
    ("argument", "want"),
    [
        pytest.param("--zap-log-level=info", "info", id="a level"),
        pytest.param("--zap-log-level=error", "error", id="error"),
        pytest.param("--zap-log-level=5", "debug", id="a number"),
    ],
)
def test_levels_of_the_go_logger_are_translated(argument: str, want: str) -> None:
    assert flags(argument)["zap_log_level"] == want


def test_go_logger_flags_take_effect_or_are_logged_as_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Manifests of the Go provisioner pass the flags of its logger, so the controller must accept them."""
    found: list[Any] = []
    monkeypatch.setattr(run.app, "run", lambda effective, *_: found.append(effective.log_level) or 0)
    monkeypatch.setattr(run.logs, "configure", lambda *given, **more: found.append((*given, *more.values())))
    monkeypatch.setattr(run, "log_checks", lambda _: None)
    for name, value in COMPLETE.items():
        monkeypatch.setenv(name, value)
    kubeconfig = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:9")
    given = ("-zap-devel", "--zap-encoder=json", "--zap-time-encoding=rfc3339", "-zap-stacktrace-level", "panic")
    with capture_logs() as logged:
        assert main(["run", f"--kubeconfig={kubeconfig}", *given]) == 0
    assert found == [("debug", True), "debug"]
    told = [line["remark"] for line in logged if line["event"] == "flag.ignored"]
    assert sorted(told) == ["--zap-stacktrace-level has no effect here", "--zap-time-encoding has no effect here"]


def test_invalid_boolean_is_reported_with_flag_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    """Click's own message would contain the name of the function that parses the value."""
    with pytest.raises(SystemExit):
        main(["run", "--leader-elect=maybe"])
    assert capsys.readouterr().err.endswith("Invalid value for '--leader-elect': 'maybe' is neither true nor false\n")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--no-such-flag"], id="unknown flag"),
        pytest.param(["--leader-elect=perhaps"], id="invalid boolean"),
        pytest.param(["--zap-log-level=loud"], id="unknown level"),
        pytest.param(["--zap-log-level=0"], id="a level of zero"),
        pytest.param(["stray"], id="an argument"),
    ],
)
def test_invalid_flags_exit_with_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["run", *arguments])
    assert error.value.code == 2


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `tpu-provisioner` in a new process, which gets no required settings except those in `environment`."""
    kept = {key: value for key, value in os.environ.items() if key not in COMPLETE}
    return subprocess.run(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_version_is_printed() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"tpu-provisioner {provisioner.__version__}\n")


def test_all_invalid_settings_are_reported_in_one_message() -> None:
    """Users see all mistakes at the first start: mistakes in variables, in the kubeconfig and in flags."""
    wrong = {"GCP_ZONE": "us-east1-b", "CONCURRENCY": "0", "NODE_MIN_LIFESPAN": "10", "KUBECONFIG": "/nowhere/config"}
    done = command("run", "--metrics-bind-address=8080", **(COMPLETE | wrong))
    assert done.returncode == 1
    assert re.search(r"cannot start; [5-9] problems:", done.stderr)
    assert all(name in done.stderr for name in ("GCP_ZONE", "CONCURRENCY", "NODE_MIN_LIFESPAN"))
    assert all(name in done.stderr for name in ("/nowhere/config", "'8080'"))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"KUBECONFIG": "/nowhere/config"}, "cannot start; 1 problem:\n  - there is no kubeconfig at /nowhere/config"),
        ({"CONCURRENCY": "0"}, "1 setting is missing or invalid:\n  - CONCURRENCY"),
    ],
    ids=["a kubeconfig", "a setting"],
)
def test_missing_kubeconfig_is_not_reported_as_an_invalid_setting(
    environment: dict[str, str], words: str, tmp_path: Path
) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:9")
    for name in ("run", "drain"):
        done = command(name, **(COMPLETE | {"KUBECONFIG": str(kubeconfig)} | environment))
        assert words in done.stderr
        assert ("exec deployment/tpu-provisioner -- tpu-provisioner drain" in done.stderr) == (name == "drain")
        assert done.returncode == 1


def test_program_named_manager_runs_without_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifests of the Go provisioner start /manager with only flags. Other names require a command first."""
    for program, usage in (("/manager", "Usage: tpu-provisioner run "), ("/bin/tpu-provisioner", "COMMAND")):
        monkeypatch.setattr(sys, "argv", [program, "-no-such-flag"])
        with pytest.raises(SystemExit) as error:
            main()
        assert error.value.code == 2
        assert usage in capsys.readouterr().err


def test_mock_provider_is_rejected() -> None:
    done = command("run", **(COMPLETE | {"PROVIDER": "mock"}))
    assert done.returncode == 1
    assert "PROVIDER='mock' is not one of gke, gce" in done.stderr


def test_allow_list_is_logged_only_if_it_differs_from_the_default() -> None:
    """ALLOWED_NETWORKS=none allows no network; if the list is unset, all networks are allowed."""
    logged = readable(settings(allowed_networks=(), allowed_reservations=None, allowed_node_settings=()))
    assert {key: value for key, value in logged.items() if key.startswith("ALLOWED_")} == {"ALLOWED_NETWORKS": "none"}


def test_durations_are_logged_with_their_unit() -> None:
    """The names of the variables do not contain the unit."""
    logged = readable(settings(deletion_delay_seconds=90.0))
    assert (logged["NODEPOOL_DELETION_DELAY"], logged["NODE_MIN_LIFESPAN"]) == ("90s", "10s")
