"""Installs the commands from a clone, as in the README, into an empty folder and without a package index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import provisioner
from tests.deploy.image import clean_environment, locked_wheels
from tests.deploy.kit import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

_README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def _run(command: Sequence[str | Path], environment: Mapping[str, str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "installer",
    # pip takes five times as long as uv for the same wheels.
    ["uv tool install .", pytest.param("pipx install .", marks=pytest.mark.nightly)],
)
def test_commands_run_after_the_installation_from_a_clone(installer: str, tmp_path: Path) -> None:
    """The command pipx is not in the lock files, so the test runs the two steps of pipx: venv and pip."""
    assert f"\n{installer}" in _README
    python = Path(sys.executable)
    environment = clean_environment(python, tmp_path)
    wheels = [f"--find-links={wheel}" for wheel in locked_wheels(REPOSITORY, python, environment)]
    programs = tmp_path / "bin"
    if installer.startswith("uv"):
        environment |= {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(programs)}
        _run([python.parent / "uv", "tool", "install", "--no-index", *wheels, "."], environment, REPOSITORY)
    else:
        _run([python, "-m", "venv", tmp_path], environment, tmp_path)
        _run([programs / "pip", "install", "--no-index", *wheels, "."], environment, REPOSITORY)

    version = _run([programs / "tpu-provisioner", "--version"], environment, tmp_path)
    assert version == f"tpu-provisioner {provisioner.__version__}\n"
    assert "plan" in _run([programs / "kubectl-tpu", "--help"], environment, tmp_path)
    assert "demo" in _run([programs / "tpu-rehearsal", "--help"], environment, tmp_path)
    example = REPOSITORY / "examples" / "jobset.yaml"
    assert "2 node pools would be created" in _run(
        [programs / "tpu-provisioner", "plan", "-f", example], environment, tmp_path
    )
