"""Tests of the files of a release for krew, OpenVEX and Artifact Hub."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

import provisioner
from generators import artifacts, release
from tests.deploy import tools
from tests.deploy.image import clean_environment, locked_wheels
from tests.deploy.kit import REPOSITORY

_TAG = f"v{provisioner.__version__}"
_DIGEST = f"sha256:{'0' * 64}"
_IMAGE = f"ghcr.io/owner/tpu-provisioner:{_TAG}@{_DIGEST}"
_SOURCE = "https://github.com/owner/tpu-provisioner"
_TIME = "2026-11-29T03:00:00+00:00"
_STATEMENT = artifacts.Statement("CVE-0000-0000", "example", "component_not_present")


def _plugin(folder: Path, wheel: Path) -> tuple[dict[str, Any], Path]:
    folder.mkdir()
    assert artifacts.main(["krew", _IMAGE, _SOURCE, str(wheel), str(folder)]) == 0
    manifest: dict[str, Any] = yaml.safe_load((folder / "tpu.yaml").read_text(encoding="utf-8"))
    return manifest, folder / manifest["spec"]["platforms"][0]["uri"].rpartition("/")[2]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    made = tmp_path / f"tpu_provisioner-{provisioner.__version__}-py3-none-any.whl"
    made.write_bytes(b"wheel")
    return made


def test_manifest_names_the_archive_of_the_release_with_its_checksum(wheel: Path, tmp_path: Path) -> None:
    """Two runs create the same bytes, so users can verify the checksum by building from the sources."""
    manifest, archive = _plugin(tmp_path / "a", wheel)
    (platform,) = manifest["spec"]["platforms"]
    assert platform["uri"] == f"{_SOURCE}/releases/download/{_TAG}/kubectl-tpu_{_TAG}.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert _plugin(tmp_path / "b", wheel)[1].read_bytes() == archive.read_bytes()
    with tarfile.open(archive) as tar:
        # krew requires the licence.
        assert tar.getnames() == [platform["bin"], wheel.name, "LICENSE"]
        assert tar.getmember(platform["bin"]).mode & 0o111
    assert len(manifest["spec"]["shortDescription"]) <= 50


@pytest.mark.e2e
@pytest.mark.timeout(600)  # The first run builds the validator.
def test_manifest_is_valid_for_krew(wheel: Path, tmp_path: Path) -> None:
    """Krew's own validator reads the manifest. It does not install the plugin, which needs a published release."""
    _plugin(tmp_path / "a", wheel)
    tools.run("validate-krew-manifest", "-skip-install", "-manifest", str(tmp_path / "a" / "tpu.yaml"))


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("installer", ["uv", pytest.param("venv", marks=pytest.mark.nightly)])
def test_plugin_that_a_link_starts_runs_the_commands(installer: str, tmp_path: Path) -> None:
    """Krew starts the plugin by a link in another folder."""
    python = Path(sys.executable)
    environment = clean_environment(python, tmp_path)
    wheels = " ".join(map(str, locked_wheels(REPOSITORY, python, environment)))
    # pip builds the wheel of the repository; its dependencies come from the folders of locked wheels.
    environment |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": wheels.replace(" ", ","),
    }
    build = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, REPOSITORY]
    subprocess.run(build, env=environment, check=True, timeout=100)
    (built,) = tmp_path.glob("tpu_provisioner-*.whl")
    _, archive = _plugin(tmp_path / "a", built)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "store", filter="data")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl-tpu").symlink_to(tmp_path / "store" / "kubectl-tpu")
    (programs / "python3").symlink_to(getattr(sys, "_base_executable", sys.executable))
    if installer == "uv":
        (programs / "uv").symlink_to(python.parent / "uv")
    environment["PATH"] = f"{programs}:/usr/bin:/bin"
    for _ in range(2):
        done = subprocess.run(
            ["kubectl-tpu", "--version"], env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == provisioner.__version__
    # The first start installs the wheel; later starts must not.
    assert "installing" not in done.stderr
    assert (tmp_path / ".cache" / "tpu-provisioner").exists() == (installer == "venv")


def test_document_on_vulnerabilities_has_the_fields_of_openvex() -> None:
    text = artifacts.vex(_IMAGE, _TIME, [_STATEMENT])
    assert text is not None
    document = json.loads(text)
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert re.fullmatch(r"https://\S+", document["@id"])
    assert (document["author"], document["version"]) == ("owner", 1)
    assert datetime.fromisoformat(document["timestamp"]).tzinfo is not None
    image = f"pkg:oci/tpu-provisioner@{_DIGEST.replace(':', '%3A')}?repository_url=ghcr.io/owner/tpu-provisioner"
    assert document["statements"] == [
        {
            "vulnerability": {"name": "CVE-0000-0000"},
            "products": [{"@id": image, "subcomponents": [{"@id": "pkg:deb/debian/example"}]}],
            "status": "not_affected",
            "justification": "component_not_present",
        }
    ]


def test_statements_of_the_repository_are_well_formed() -> None:
    statements = artifacts.read_statements(REPOSITORY / "generators" / "vex-statements.json")
    names = [statement.vulnerability for statement in statements]
    assert [name for name in names if not re.fullmatch(r"CVE-\d{4}-\d{4,}", name)] == []
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize(
    "change", [{"justification": "never runs"}, {"status": "not_affected"}], ids=["justification", "unknown field"]
)
def test_malformed_statement_is_rejected(change: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "statements.json"
    file.write_text(json.dumps([_STATEMENT._asdict() | change]), encoding="utf-8")
    with pytest.raises(release.ReleaseError, match=r"statements.json: .* needs the fields vulnerability, package"):
        artifacts.read_statements(file)


def test_release_without_statements_has_no_document() -> None:
    """The schema of OpenVEX 0.2 requires at least one statement."""
    assert artifacts.vex(_IMAGE, _TIME, []) is None


def test_artifact_hub_gets_the_identifier_only_in_its_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "artifacthub-repo.yml"
    identifier = "0b1e7f8a-6f3c-4f0e-9a52-0c8f6a7e1d20"
    assert artifacts.main(["artifacthub", identifier, str(file)]) == 0
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == {"repositoryID": identifier}
    assert artifacts.main(["artifacthub", "my-id", str(file)]) == 1
    assert "copy it from Artifact Hub's control panel" in capsys.readouterr().err


def test_no_placeholder_reaches_the_artifacts(wheel: Path, tmp_path: Path) -> None:
    _plugin(tmp_path / "a", wheel)
    texts = [artifacts.vex(_IMAGE, _TIME, [_STATEMENT]) or "", (tmp_path / "a" / "tpu.yaml").read_text("utf-8")]
    assert [text for text in texts if re.search(rf"{release.PLACEHOLDER}|WHEEL|TAG", text)] == []
    with tarfile.open(tmp_path / "a" / f"kubectl-tpu_{_TAG}.tar.gz") as tar:
        script = tar.extractfile("kubectl-tpu")
        assert script is not None
        assert not re.search(r"WHEEL|\bTAG\b", script.read().decode())


def test_artifacts_need_no_installed_packages(tmp_path: Path) -> None:
    """The publishing job of the release workflow has no virtual environment."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "generators.artifacts", "vex", _IMAGE, _TIME, str(tmp_path / "vex.json")],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
