"""What the commands of the simulators say before they serve anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from provisioner.cli.output import ExitCode
from rehearsal.commands.main import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--set=colour=red"], "colour: no such setting", id="an unknown setting"),
        pytest.param(["--set=boot_seconds=soon"], "boot_seconds: 'soon' is not valid", id="another type"),
        pytest.param(["--set=heartbeat_seconds=0"], "heartbeat_seconds: 0 is not a time to wait", id="no pause at all"),
        pytest.param(["--set=project=x"], "project: can be set only at startup", id="one that is an option"),
    ],
)
def test_a_setting_that_is_none_is_a_usage_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a port is taken."""
    with pytest.raises(SystemExit) as ended:
        main(["simulator-gce", *arguments])
    assert ended.value.code == ExitCode.USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_cluster_that_cannot_be_used_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """By the simulator of GKE, which registers its nodes there."""
    assert main(["simulator", "--port=0", "--kubeconfig=missing"]) == ExitCode.ERROR
    assert "can't use the cluster of missing" in capsys.readouterr().err


def test_a_wheel_without_the_extra_says_what_to_install() -> None:
    """In a process of its own, where nothing of it was imported before."""
    code = (
        "import sys; sys.modules['google.cloud'] = None; from rehearsal.commands.main import main; "
        "sys.exit(main(['simulator', '--port=0']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.ERROR
    assert "pip install 'tpu-provisioner[rehearsal]'" in done.stderr
    assert "Traceback" not in done.stderr
