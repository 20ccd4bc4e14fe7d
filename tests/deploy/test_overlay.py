"""The folder of one cluster: copied, filled, checked, never overwritten."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy import overlay
from provisioner import settings
from tests.deploy.kit import DEPLOY

_TEMPLATE = DEPLOY / "example-project" / "example-cluster"
_VALUES = {
    "GCP_PROJECT_ID": "a-project",
    "GCP_CLUSTER": "a-cluster",
    "GCP_CLUSTER_LOCATION": "europe-west4",
    "GCP_ZONE": "europe-west4-b",
    "GCP_NODE_SERVICE_ACCOUNT": "nodes@a-project.iam.gserviceaccount.com",
}


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """Give a copy of deploy/ that may be written to."""
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "deploy"


def _environment(folder: Path) -> dict[str, str]:
    lines = (folder / "settings.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_filled(deploy: Path) -> None:
    """The values land in the settings, as the controller reads them, and the project in the image's name."""
    folder = overlay.make_overlay(deploy, _VALUES)

    assert folder == deploy / "a-project" / "a-cluster"
    assert _environment(folder) == _environment(_TEMPLATE) | _VALUES
    assert settings.read_settings(_environment(folder)).zone == "europe-west4-b"
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    assert "us-docker.pkg.dev/a-project/" in text
    assert "example" not in "".join(path.read_text(encoding="utf-8") for path in folder.iterdir())
    assert {path.name for path in folder.iterdir()} == {"kustomization.yaml", "settings.env"}


def test_the_template_is_complete() -> None:
    """The example has settings that the controller takes and knows, and it has nothing to warn of at its start."""
    environment = _environment(_TEMPLATE)
    read = settings.read_settings(environment)
    assert read.project_id == "example-project"
    assert environment.keys() <= {option.variable for option in settings.OPTIONS}
    assert settings.warnings_about(read) == ()


def test_a_google_service_account(deploy: Path) -> None:
    """With a Google service account the annotation takes the principal's place."""
    account = "tpu-provisioner@a-project.iam.gserviceaccount.com"
    folder = overlay.make_overlay(deploy, _VALUES, google_service_account=account)

    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    assert "\n  - ../../components/workload-identity-annotation\n" in text
    assert "\n  - ../../components/workload-identity-principal" not in text
    assert account in (folder / "google-service-account.yaml").read_text(encoding="utf-8")


def test_only_what_is_known(deploy: Path) -> None:
    """Location, zone and node account may be left out: they are inferred, and nothing of the example stays."""
    left_out = dict.fromkeys(("GCP_CLUSTER_LOCATION", "GCP_ZONE", "GCP_NODE_SERVICE_ACCOUNT"), "")
    folder = overlay.make_overlay(deploy, _VALUES | left_out)
    assert _environment(folder) == _environment(_TEMPLATE) | _VALUES | left_out


_REFUSED = (
    ("a project that is none", {"GCP_PROJECT_ID": "A_Project"}, "PROJECT_ID='A_Project'"),
    ("a way out of the folder", {"GCP_PROJECT_ID": "../.."}, "PROJECT_ID='../..'"),
    ("a cluster with a slash", {"GCP_CLUSTER": "a/b"}, "CLUSTER_NAME='a/b'"),
    ("no cluster", {"GCP_CLUSTER": ""}, "CLUSTER_NAME=''"),
    ("a zone that is a region", {"GCP_ZONE": "europe-west4"}, "is a region"),
    ("a zone elsewhere", {"GCP_ZONE": "us-central1-a"}, "is not in GCP_CLUSTER_LOCATION"),
    ("a zone elsewhere than inferred", {"GCP_ZONE": "no zone", "GCP_CLUSTER_LOCATION": ""}, "GCP_ZONE='no zone'"),
    ("nodes' account without a domain", {"GCP_NODE_SERVICE_ACCOUNT": "nodes"}, "GCP_NODE_SERVICE_ACCOUNT='nodes'"),
)


@pytest.mark.parametrize(("name", "change", "words"), _REFUSED, ids=[case[0] for case in _REFUSED])
def test_refused(name: str, change: dict[str, str], words: str, deploy: Path) -> None:
    """What the controller would refuse is refused before anything is written."""
    before = sorted(deploy.rglob("*"))
    with pytest.raises(overlay.OverlayError) as refused:
        overlay.make_overlay(deploy, _VALUES | change)
    assert words in str(refused.value)
    assert sorted(deploy.rglob("*")) == before


def test_a_wrong_google_service_account(deploy: Path) -> None:
    """An address that is no Google service account's is refused."""
    with pytest.raises(overlay.OverlayError, match=r"GOOGLE_SERVICE_ACCOUNT='me@example\.com'"):
        overlay.make_overlay(deploy, _VALUES, google_service_account="me@example.com")


def test_never_overwritten(deploy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that exists is left as it is, and the command says so with exit code 1."""
    arguments = ["--project-id=a-project", "--cluster-name=a-cluster", f"--deploy={deploy}"]
    assert overlay.main(arguments) == 0
    assert "kubectl apply --server-side -k" in capsys.readouterr().out
    kept = deploy / "a-project" / "a-cluster" / "settings.env"
    kept.write_text("edited", encoding="utf-8")
    assert overlay.main(arguments) == 1
    assert "exists and is left as it is" in capsys.readouterr().err
    assert kept.read_text(encoding="utf-8") == "edited"


def test_a_second_cluster(deploy: Path) -> None:
    """A project has as many folders as clusters."""
    overlay.make_overlay(deploy, _VALUES)
    overlay.make_overlay(deploy, _VALUES | {"GCP_CLUSTER": "another"})
    assert {path.name for path in (deploy / "a-project").iterdir()} == {"a-cluster", "another"}
