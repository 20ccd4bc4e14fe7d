"""Tests of creating the overlay of a cluster: values are checked and filled in, and no overlay is overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generators import overlay
from provisioner import settings
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, REPOSITORY, copy_of_deploy
from tests.deploy.pages import read_blocks

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
    return copy_of_deploy(tmp_path)


def _environment(folder: Path) -> dict[str, str]:
    lines = (folder / "settings.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_overlay_contains_the_values_and_the_image_of_the_project(deploy: Path) -> None:
    folder = overlay.make_overlay(deploy, _VALUES)

    assert folder == deploy / "a-project" / "a-cluster"
    assert _environment(folder) == _environment(_TEMPLATE) | _VALUES
    assert settings.read_settings(_environment(folder)).zone == "europe-west4-b"
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    assert "us-docker.pkg.dev/a-project/" in text
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert "example" not in "".join(path.read_text(encoding="utf-8") for path in files)
    assert {str(path.relative_to(folder)) for path in files} == {
        "kustomization.yaml",
        "settings.env",
        "components/kustomization.yaml",
    }


def test_template_of_overlays_has_valid_settings_without_warnings() -> None:
    environment = _environment(_TEMPLATE)
    read = settings.read_settings(environment)
    assert read.project_id == "example-project"
    assert environment.keys() <= {option.variable for option in settings.OPTIONS}
    assert not list(settings.warnings_about(read))


def test_google_service_account_enables_the_annotation_component(deploy: Path) -> None:
    account = "tpu-provisioner@a-project.iam.gserviceaccount.com"
    folder = overlay.make_overlay(deploy, _VALUES, overlay.Choices(google_service_account=account))

    chosen = yaml.safe_load((folder / "components" / "kustomization.yaml").read_text(encoding="utf-8"))
    components = [f"../../../components/{name}" for name in ("workload-identity-annotation", "placement")]
    assert chosen["components"] == components
    made = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert made["patches"] == [{"path": "google-service-account.yaml"}]
    assert account in (folder / "google-service-account.yaml").read_text(encoding="utf-8")


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
def test_invalid_value_is_rejected_before_anything_is_written(
    name: str, change: dict[str, str], words: str, deploy: Path
) -> None:
    """The controller would reject these values only at its start."""
    before = sorted(deploy.rglob("*"))
    with pytest.raises(overlay.OverlayError) as refused:
        overlay.make_overlay(deploy, _VALUES | change)
    assert words in str(refused.value)
    assert sorted(deploy.rglob("*")) == before


_DIGEST = f"sha256:{'0' * 64}"
_REPOSITORY_URL = "https://github.com/owner/tpu-provisioner"
_WRONG_CHOICES = (
    (
        "an account that is no Google service account's",
        overlay.Choices(google_service_account="me@example.com"),
        "GOOGLE_SERVICE_ACCOUNT='me@example.com'",
    ),
    ("an image without a tag", overlay.Choices(image="gcr.io:443/a/b"), "has no tag and no digest"),
    ("an image that is none", overlay.Choices(image="Registry/B:v1"), "IMG='Registry/B:v1'"),
    ("a folder of one's own without a repository", overlay.Choices(folder=Path("/tmp/x")), "REMOTE"),
    (
        "a repository that is none",
        overlay.Choices(folder=Path("/tmp/x"), remote="owner/tpu-provisioner", ref="v1"),
        "REMOTE='owner/tpu-provisioner'",
    ),
    (
        "a tag with a space",
        overlay.Choices(folder=Path("/tmp/x"), remote=_REPOSITORY_URL, ref="v 1"),
        "REF='v 1'",
    ),
)


@pytest.mark.parametrize(("name", "choices", "words"), _WRONG_CHOICES, ids=[case[0] for case in _WRONG_CHOICES])
def test_invalid_choice_is_rejected_before_anything_is_written(
    name: str, choices: overlay.Choices, words: str, deploy: Path
) -> None:
    with pytest.raises(overlay.OverlayError) as refused:
        overlay.make_overlay(deploy, _VALUES, choices)
    assert words in str(refused.value)
    assert not (deploy / "a-project").exists()


_IMAGES = (
    ("gcr.io/a/b:v1", {"newName": "gcr.io/a/b", "newTag": "v1"}),
    ("gcr.io:443/a/b:1.0", {"newName": "gcr.io:443/a/b", "newTag": "1.0"}),
    (f"gcr.io:443/a/b@{_DIGEST}", {"newName": "gcr.io:443/a/b", "digest": _DIGEST}),
    (f"gcr.io/a/b:v1@{_DIGEST}", {"newName": "gcr.io/a/b", "newTag": "v1", "digest": _DIGEST}),
)


@pytest.mark.parametrize(("image", "want"), _IMAGES, ids=[case[0] for case in _IMAGES])
def test_image_is_written_as_kustomize_edit_writes_it(image: str, want: dict[str, str], deploy: Path) -> None:
    folder = overlay.make_overlay(deploy, _VALUES, overlay.Choices(image=image))
    (entry,) = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert entry == {"name": "controller"} | want


@pytest.mark.e2e
@pytest.mark.parametrize(("image", "want"), _IMAGES, ids=[case[0] for case in _IMAGES])
def test_upgrade_replaces_tag_and_digest_of_the_image(image: str, want: dict[str, str], deploy: Path) -> None:
    folder = overlay.make_overlay(deploy, _VALUES, overlay.Choices(image=image))
    (block,) = (block for block in read_blocks(REPOSITORY / "docs" / "upgrade.md") if block.where == "kustomize")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PROJECT_ID": "a-project", "CLUSTER_NAME": "a-cluster", "IMG": image, "NEW_TAG": "v2",
    }  # fmt: skip
    commands = f"kustomize() {{ '{tools.tool('kustomize')}' \"$@\"; }}\n{block.text.partition('kubectl')[0]}"
    subprocess.run(["bash", "-euc", commands], cwd=deploy.parent, env=environment, check=True, timeout=60)
    (entry,) = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["images"]
    assert entry == {"name": "controller", "newName": want["newName"], "newTag": "v2"}


def test_make_cluster_overlay_needs_no_installed_packages(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="ascii")
    bare.chmod(0o755)
    folder = tmp_path / "made"
    done = subprocess.run(
        [
            "make", "cluster-overlay", f"PYTHON={bare}", "VENV=/nonexistent", "PROJECT_ID=a-project",
            "CLUSTER_NAME=a-cluster", "LOCATION=europe-west4", "ZONE=europe-west4-b", f"FOLDER={folder}",
            f"REMOTE={_REPOSITORY_URL}", "REF=v0.1.0",
        ],
        cwd=REPOSITORY,
        # IMG is an exported variable, not an argument of make.
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "IMG": "gcr.io/a/b:v1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"kubectl apply --server-side -k {folder}" in done.stdout
    assert 'newTag: "v1"' in (folder / "kustomization.yaml").read_text(encoding="utf-8")


def test_existing_overlay_is_not_changed(deploy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--project-id=a-project", "--cluster-name=a-cluster", f"--deploy={deploy}"]
    assert overlay.main(arguments) == 0
    assert "kubectl apply --server-side -k" in capsys.readouterr().out
    kept = deploy / "a-project" / "a-cluster" / "settings.env"
    kept.write_text("edited", encoding="utf-8")
    assert overlay.main(arguments) == 1
    assert "already exists and was not changed" in capsys.readouterr().err
    assert kept.read_text(encoding="utf-8") == "edited"


@pytest.mark.e2e
def test_overlay_in_another_folder_renders_the_same_objects(deploy: Path, tmp_path: Path) -> None:
    """Kustomize fetches the base and the components by git."""
    repository = deploy.parent
    for command in (
        ["init", "--quiet"],
        ["add", "deploy"],
        ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=a"],
        ["tag", "v0.1.0"],
    ):
        subprocess.run(["git", *command], cwd=repository, check=True)
    image = "gcr.io/a/b:v1"
    own = tmp_path / "infrastructure" / "tpu"
    choices = overlay.Choices(folder=own, remote=f"file://{repository}", ref="v0.1.0", image=image)
    overlay.make_overlay(deploy, _VALUES, choices)
    here = overlay.make_overlay(deploy, _VALUES, overlay.Choices(image=image))
    assert tools.run("kustomize", "build", str(own)) == tools.run("kustomize", "build", str(here))
    path = own / "components" / "kustomization.yaml"
    tools.run("kustomize", "edit", "set", "image", "controller=gcr.io/a/b:v2", cwd=own)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\n# - file:", "\n- file:", 3), encoding="utf-8")
    made = tools.run("kustomize", "build", str(own))
    assert "image: gcr.io/a/b:v2" in made
    assert "kind: PodMonitor\n" in made
