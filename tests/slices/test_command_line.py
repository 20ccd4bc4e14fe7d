"""The command line of the controller."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import provisioner
from provisioner.cli import main, run
from provisioner.cli.run import parse_flags
from tests.support.settings import settings

#: Some of these tests start Python.
pytestmark = pytest.mark.timeout(60)

COMPLETE = {
    "GCP_PROJECT_ID": "project-1",
    "GCP_CLUSTER_LOCATION": "us-central2",
    "GCP_ZONE": "us-central2-b",
    "GCP_CLUSTER": "cluster-1",
    "GKE_ENDPOINT": "http://127.0.0.1:9",
}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param([], False, id="left out"),
        pytest.param(["--leader-elect"], True, id="two dashes"),
        pytest.param(["-leader-elect"], True, id="one dash"),
        pytest.param(["--leader-elect=true"], True, id="set to true"),
        pytest.param(["-leader-elect=false"], False, id="one dash and set to false"),
        pytest.param(["--leader-elect=F"], False, id="set to F as Go takes it"),
        pytest.param(["--leader-elect", "--zap-devel"], True, id="before another flag"),
    ],
)
def test_leader_elect(arguments: list[str], *, want: bool) -> None:
    """A truth value is read as Go's flag package reads it."""
    assert parse_flags(arguments).leader_elect is want


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--metrics-bind-address=:9090", "--health-probe-bind-address=:9091"], id="two dashes and ="),
        pytest.param(["-metrics-bind-address=:9090", "-health-probe-bind-address=:9091"], id="one dash and ="),
        pytest.param(["--metrics-bind-address", ":9090", "--health-probe-bind-address", ":9091"], id="two dashes"),
        pytest.param(["-metrics-bind-address", ":9090", "-health-probe-bind-address", ":9091"], id="one dash"),
    ],
)
def test_addresses(arguments: list[str]) -> None:
    """Addresses are taken in all of Go's forms."""
    flags = parse_flags(arguments)
    assert (flags.metrics_address, flags.probe_address) == (":9090", ":9091")


def test_the_defaults_are_those_of_the_go_provisioner() -> None:
    """Without flags, metrics are on 8080, probes on 8081, and there is no election."""
    flags = parse_flags([])
    assert (flags.metrics_address, flags.probe_address, flags.leader_elect) == (":8080", ":8081", False)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["-zap-devel"], "debug", id="development"),
        pytest.param(["--zap-log-level=info"], "info", id="a level"),
        pytest.param(["--zap-log-level=error"], "error", id="error"),
        pytest.param(["--zap-log-level=5"], "debug", id="a number"),
        pytest.param(["--zap-devel=false"], None, id="no development"),
    ],
)
def test_levels_of_the_go_logger(arguments: list[str], want: str | None) -> None:
    assert parse_flags(arguments).log_level == want


def test_flags_of_the_go_logger_without_counterpart_are_told() -> None:
    """Flags without effect are taken, and named."""
    flags = parse_flags(["--zap-encoder=json", "--zap-time-encoding=rfc3339", "-zap-stacktrace-level=panic"])
    assert flags.json_logs
    assert len(flags.remarks) == 2


def test_a_wrong_truth_value_is_told_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The flag, the value, and what is wrong; no name of a function."""
    with pytest.raises(SystemExit):
        parse_flags(["--leader-elect=maybe"])
    assert capsys.readouterr().err.endswith("argument --leader-elect: 'maybe' is neither true nor false\n")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--no-such-flag"], id="unknown flag"),
        pytest.param(["--leader-elect=perhaps"], id="no truth value"),
        pytest.param(["--zap-log-level=loud"], id="no level"),
        pytest.param(["--zap-log-level=0"], id="a level of zero"),
        pytest.param(["stray"], id="an argument"),
    ],
)
def test_wrong_flags_are_a_usage_error(arguments: list[str]) -> None:
    """What is not understood ends the process with code 2."""
    with pytest.raises(SystemExit) as error:
        parse_flags(arguments)
    assert error.value.code == 2


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    kept = {key: value for key, value in os.environ.items() if key not in COMPLETE}
    return subprocess.run(
        [sys.executable, "-m", "provisioner", *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"tpu-provisioner {provisioner.__version__}\n")


def test_wrong_settings_are_refused_in_one_message() -> None:
    """All that is wrong is named in one message, the kubeconfig and flags included, and the exit code is 1."""
    wrong = {"GCP_ZONE": "us-east1-b", "CONCURRENCY": "0", "NODE_MIN_LIFESPAN": "10", "KUBECONFIG": "/nowhere/config"}
    done = command("run", "--metrics-bind-address=8080", **(COMPLETE | wrong))
    assert done.returncode == 1
    assert done.stderr.count("missing or invalid") == 1
    assert all(name in done.stderr for name in ("GCP_ZONE", "CONCURRENCY", "NODE_MIN_LIFESPAN"))
    assert all(name in done.stderr for name in ("/nowhere/config", "'8080'"))
    assert "Traceback" not in done.stderr


def test_under_the_name_of_the_go_program_it_is_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifests of the Go provisioner start /manager with flags alone; any other name takes a command first."""
    for program, usage in (("/manager", "usage: tpu-provisioner run "), ("/bin/tpu-provisioner", "COMMAND")):
        monkeypatch.setattr(sys, "argv", [program, "-no-such-flag"])
        with pytest.raises(SystemExit) as error:
            main()
        assert error.value.code == 2
        assert usage in capsys.readouterr().err


def test_the_mock_provider_is_refused_with_a_way_out() -> None:
    """PROVIDER=mock is refused with a pointer to the simulator."""
    done = command("run", **(COMPLETE | {"PROVIDER": "mock"}))
    assert done.returncode == 1
    assert "GKE_ENDPOINT" in done.stderr


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that does not exist ends with code 2 and the list of commands."""
    with pytest.raises(SystemExit) as error:
        main(["fly"])
    assert error.value.code == 2
    assert "run" in capsys.readouterr().err


def test_durations_are_logged_with_their_unit() -> None:
    """The names of the variables do not say it."""
    logged = run._readable(settings(deletion_delay_seconds=90.0))
    assert (logged["NODEPOOL_DELETION_DELAY"], logged["NODE_MIN_LIFESPAN"]) == ("90s", "10s")
