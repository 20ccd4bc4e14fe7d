"""Tests of workflows, of releases, of the bill of materials, and of rights that several files list."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import provisioner
from generators import release
from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.slices.preflight.in_google import ACT_AS, PROJECT_PERMISSIONS
from rehearsal.demos import Rehearsal
from tests.deploy import tools
from tests.deploy.kit import DEPLOY, REPOSITORY, container_of, copy_of_deploy
from tests.deploy.mainjob import uninstalled
from tests.deploy.pages import read_blocks
from tests.support import nodegroup_rights

_WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def _read(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_workflow_has_no_permissions_and_its_jobs_keep_no_credentials(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"]
        assert "write-all" not in str(job["permissions"])
        # The nightly workflow may take longer, because no pull request waits for it.
        assert job["timeout-minutes"] <= (180 if path.name == "nightly.yml" else 60)
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    # The parser reads the key "on" of the workflow as True.
    assert "pull_request_target" not in workflow[True]


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_tag(path: Path) -> None:
    """An action has the same commit in all workflows."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    pins = {
        line.split("uses: ")[1] for file in _WORKFLOWS for line in file.read_text().splitlines() if "uses: " in line
    }
    assert len(pins) == len({pin.split("@")[0] for pin in pins})


def test_only_the_release_has_permissions_to_write() -> None:
    writers = {
        (path.name, name)
        for path in _WORKFLOWS
        for name, job in _read(path)["jobs"].items()
        if "write" in job["permissions"].values()
    }
    assert writers == {("release.yml", "image"), ("release.yml", "publish")}
    assert not any("secrets." in path.read_text(encoding="utf-8") for path in _WORKFLOWS)


@pytest.mark.e2e
def test_workflows_have_no_findings_of_actionlint() -> None:
    tools.run("actionlint", "-shellcheck=", "-pyflakes=", *map(str, _WORKFLOWS))


def test_nightly_scan_reads_every_lock_file() -> None:
    """The scanner itself finds files with "requirements" in their names; other lock files must be arguments."""
    locks = [path for path in REPOSITORY.glob("*/*.txt") if "--hash=" in path.read_text(encoding="utf-8")]
    nightly = (REPOSITORY / ".github/workflows/nightly.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"--lockfile=requirements\.txt:(\S+)", nightly))
    others = {str(path.relative_to(REPOSITORY)) for path in locks if "requirements" not in path.name}
    assert others == named


# --- release.py

_VERSION = '__version__ = "1.2.3"\n'
_REFUSED = (
    ("another version", _VERSION, "## 1.2.3\n\n- a\n", "v1.2.4", "the code says 1.2.3"),
    ("no v", _VERSION, "## 1.2.3\n\n- a\n", "1.2.3", "tag v1.2.3"),
    ("no section", _VERSION, "## Unreleased\n\n- a\n", "v1.2.3", "has no section 1.2.3"),
    ("an empty section", _VERSION, "## 1.2.3\n\n## 1.2.2\n\n- a\n", "v1.2.3", "has no section 1.2.3"),
    ("a longer version's section", _VERSION, "## 11.2.3\n\n- a\n", "v1.2.3", "has no section 1.2.3"),
    ("no date", _VERSION, "## 1.2.3 (unreleased)\n\n- a\n", "v1.2.3", "write the date"),
    ("no version", "", "## 1.2.3\n\n- a\n", "v1.2.3", "has no __version__"),
)


def _repository(root: Path, code: str, changelog: str) -> Path:
    (root / "provisioner").mkdir()
    (root / "provisioner" / "__init__.py").write_text(code, encoding="utf-8")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}", encoding="utf-8")
    return root


@pytest.mark.parametrize(("name", "code", "changelog", "tag", "words"), _REFUSED, ids=[case[0] for case in _REFUSED])
def test_tag_that_contradicts_code_or_changelog_is_not_released(
    name: str, code: str, changelog: str, tag: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(release.ReleaseError, match=re.escape(words)):
        release.check(_repository(tmp_path, code, changelog), tag)


def test_release_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    changelog = "## Unreleased\n\n- later\n\n## [1.2.3] - 2026-01-01\n\n### Added\n\n- this\n\n## 1.2.2\n\n- before\n"
    assert release.check(_repository(tmp_path, _VERSION, changelog), "v1.2.3") == "### Added\n\n- this\n"


def test_release_check_needs_no_installed_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(REPOSITORY / "generators" / "release.py"), "check", "v0.0.0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the code says {provisioner.__version__}" in done.stderr


@pytest.mark.parametrize(
    ("tag", "want"), [("v1.2.3", "--latest\n"), ("v1.2.3-rc.1", "--prerelease\n")], ids=["a release", "a pre-release"]
)
def test_tag_with_a_dash_is_a_pre_release(
    tag: str, want: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In semantic versioning, a dash in the version marks a pre-release."""
    code = f'__version__ = "{tag[1:]}"\n'
    monkeypatch.setattr(release, "_REPOSITORY", _repository(tmp_path, code, f"## {tag[1:]}\n\n- a\n"))
    assert release.main(["flags", tag]) == 0
    assert capsys.readouterr().out == want


_DIGEST = f"sha256:{'0' * 64}"
_RELEASED = f"ghcr.io/owner/tpu-provisioner:v{provisioner.__version__}@{_DIGEST}"
_SOURCE = "https://github.com/owner/tpu-provisioner"


@pytest.mark.e2e
def test_released_chart_is_rendered_without_values_and_has_the_released_image(tmp_path: Path) -> None:
    folder = tmp_path / "tpu-provisioner"
    assert release.main(["chart", _RELEASED, _SOURCE, str(folder)]) == 0
    chart = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["home"], chart["sources"]) == (_SOURCE, [_SOURCE])
    assert chart["annotations"]["artifacthub.io/prerelease"] == "false"
    tools.run("helm", "package", str(folder), f"--destination={tmp_path}")
    package = tmp_path / f"tpu-provisioner-{provisioner.__version__}.tgz"
    text = tools.run("helm", "template", "test", str(package), "--kube-version=1.30.0")
    assert f'image: "ghcr.io/owner/tpu-provisioner@{_DIGEST}"' in text


@pytest.mark.e2e
@pytest.mark.parametrize("product", ["manifest", "nodegroups", "partitions"])
def test_manifest_of_a_release_has_its_image_and_a_configmap_for_settings(product: str, tmp_path: Path) -> None:
    made, settings = map(tools.documents, _released(tmp_path, product))
    (limits,) = settings
    deployments = [document["metadata"]["name"] for document in made if document["kind"] == "Deployment"]
    assert len(deployments) == (2 if product == "partitions" else 1)
    for name in deployments:
        container = container_of(made, name)
        assert container["image"] == f"ghcr.io/owner/tpu-provisioner@{_DIGEST}"
        assert container["envFrom"] == [{"configMapRef": {"name": limits["metadata"]["name"]}}]
    assert limits["data"].get("MAX_CHIPS") == ("256" if product == "manifest" else None)
    assert {value for name, value in limits["data"].items() if name.startswith(("GCP_", "VIPU_"))} <= {""}
    if product == "partitions":
        assert {"name": "IPU_INIT_IMAGE", "value": _RELEASED} in container_of(made, "tpu-provisioner-webhook")["env"]
    assert "example" not in str(made)
    assert not {"CustomResourceDefinition", "Namespace"} & {document["kind"] for document in made}


def _released(tmp_path: Path, product: str) -> tuple[str, str]:
    """Return the manifest and the settings that a release has for the provisioner, node groups or partitions."""
    folder = copy_of_deploy(tmp_path / product) / "release" / product
    assert release.main([product, _RELEASED, str(folder)]) == 0
    return tools.run("kustomize", "build", str(folder)), tools.run("kustomize", "build", str(folder / "settings"))


@pytest.mark.e2e
@pytest.mark.usefixtures("installed")
def test_products_of_a_release_do_not_touch_each_other(
    rehearsal: Rehearsal, cluster_overlay: Path, tmp_path: Path
) -> None:
    products = {product: _released(tmp_path, product) for product in ("manifest", "nodegroups", "partitions")}
    namespace = (DEPLOY / "base" / "namespace.yaml").read_text(encoding="utf-8")

    def apply(text: str) -> None:
        rehearsal.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def there(product: str) -> set[str]:
        text = "---\n".join(products[product])
        return set(rehearsal.kubectl("get", "--ignore-not-found", "-o=name", "-f", "-", stdin=text).split())

    with uninstalled(rehearsal, cluster_overlay):
        apply(namespace)
        for made, settings in products.values():
            apply(settings)
            apply(made)
        before = {product: there(product) for product in products}
        assert len(set.union(*before.values())) == sum(map(len, before.values()))
        limits = object_path("configmaps", "tpu-provisioner-settings", namespace=constants.DEFAULT_NAMESPACE)
        rehearsal.api.patch(limits, {"data": {"MAX_CHIPS": "512"}})
        apply(products["manifest"][0])
        assert rehearsal.api.get(limits)["data"]["MAX_CHIPS"] == "512"
        for product in reversed(products):
            for text in products[product]:
                rehearsal.kubectl("delete", "-f", "-", stdin=text)
            before[product] = set()
            assert {product: there(product) for product in products} == before


@pytest.mark.parametrize("image", ["controller:latest", "ghcr.io/a/b:v1", f"ghcr.io/a/b@{_DIGEST}"])
def test_image_that_lacks_tag_or_digest_is_rejected(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["chart", image, _SOURCE, str(tmp_path / "a")]) == 1
    assert "is not of the form" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_everything_published_is_attested() -> None:
    jobs = _read(REPOSITORY / ".github/workflows/release.yml")["jobs"]
    subjects = {
        step["with"].get("subject-name") or step["with"]["subject-path"]
        for job in jobs.values()
        for step in job["steps"]
        if "attest-build-provenance@" in step.get("uses", "")
    }
    assert subjects == {"${{ steps.facts.outputs.name }}", "${{ steps.facts.outputs.chart }}", "dist/*"}


def test_everything_published_is_signed() -> None:
    jobs = _read(REPOSITORY / ".github/workflows/release.yml")["jobs"]
    image, publish = (_commands(jobs[name]) for name in ("image", "publish"))
    assert '"${cosign}" sign --yes --recursive "${IMAGE}"' in image
    assert '"${cosign}" sign --yes "${CHART}"' in image
    assert '"${cosign}" attest --yes --type=openvex --predicate=shipped/vex.openvex.json "${IMAGE}"' in image
    assert publish.index("generators.artifacts krew") < publish.index("sign-blob") < publish.index("gh release create")
    # The loop signs all files before the upload, which therefore includes the signatures.
    assert "for file in dist/*" in publish
    for name in ("image", "publish"):
        assert jobs[name]["permissions"]["id-token"] == "write"


def test_release_workflow_runs_three_generators_and_installs_pinned_tools() -> None:
    jobs = _read(REPOSITORY / ".github/workflows/release.yml")["jobs"]
    commands = "\n".join(map(_commands, jobs.values())).replace("\\\n", " ")
    used = {line.split("generators.artifacts ")[1].split()[0] for line in commands.splitlines() if "artifacts" in line}
    assert used == {"krew", "vex", "artifacthub"}
    tools_used = set(re.findall(r"go install \"\$\{(\w+)\}\"", commands))
    pins = _read(REPOSITORY / ".github/workflows/release.yml")["env"]
    assert all(re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", pins[name]) for name in tools_used)


def _commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_dependabot_updates_every_pin() -> None:
    updates = _read(REPOSITORY / ".github/dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"github-actions", "docker", "pip", "gomod"}
    assert all(update["cooldown"]["default-days"] == 7 for update in updates)
    (go,) = [update for update in updates if update["package-ecosystem"] == "gomod"]
    matched = {found for pattern in go["directories"] for found in REPOSITORY.glob(f"{pattern.strip('/')}/go.mod")}
    assert matched == {path for path in REPOSITORY.rglob("go.mod") if ".venv" not in path.parts}
    (python,) = [update for update in updates if update["package-ecosystem"] == "pip"]
    locked = {REPOSITORY / folder.strip("/") for folder in python["directories"]}
    assert {path.parent for path in REPOSITORY.glob("*/*.txt") if "--hash=" in path.read_text()} == locked


# --- the bill of materials


@pytest.mark.timeout(60)  # reads all installed packages
def test_bill_of_materials_lists_every_package_of_the_image(tmp_path: Path) -> None:
    made, ready = tmp_path / "dist" / "sbom.cdx.json", tmp_path / "ready"
    ready.touch()
    done = subprocess.run(
        ["make", "sbom", f"SETUP={ready}", f"SBOM={made}", f"BIN={Path(sys.executable).parent}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bill = json.loads(made.read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    locked = re.findall(
        r"(?m)^([a-z0-9._-]+)==(\S+)", (REPOSITORY / "requirements" / "run.txt").read_text(encoding="utf-8")
    )
    assert {(part["name"], part["version"]) for part in bill["components"]} == set(locked)
    for part in bill["components"]:
        assert [digest["alg"] for entry in part["externalReferences"] for digest in entry["hashes"]], part["name"]
    component = bill["metadata"]["component"]
    assert (component["name"], component["version"]) == ("tpu-provisioner", provisioner.__version__)


# --- rights in Google Cloud: Terraform and the installation pages

_TERRAFORM = DEPLOY / "terraform" / "main.tf"
_PAGES = [REPOSITORY / "docs" / name for name in ("install.md", "install-variants.md")]
#: Permissions of the roles for the provisioner, by ID of the role.
_ROLES = {
    "tpuProvisioner": set(PROJECT_PERMISSIONS),
    "tpuProvisionerActAs": {ACT_AS},
    "tpuProvisionerTpu7x": {"compute.resourcePolicies.get", "compute.resourcePolicies.create"},
}
_OF_NODE_GROUPS = {"tpuNodeGroups": nodegroup_rights.NEEDED - {ACT_AS}, "tpuNodeGroupsActAs": {ACT_AS}}
#: Roles that are granted to the provisioner, and the kind of the resource on which each is granted.
_GRANTS = {
    ("tpuProvisioner", "project"),
    ("tpuProvisionerActAs", "service account"),
    ("tpuProvisionerTpu7x", "project"),
}
_MODULES = pytest.mark.parametrize(
    ("module", "pages", "roles"),
    [
        pytest.param(_TERRAFORM, _PAGES, _ROLES, id="the provisioner"),
        pytest.param(
            DEPLOY / "terraform" / "nodegroups" / "main.tf",
            [REPOSITORY / "docs" / "node-groups" / "install.md"],
            _OF_NODE_GROUPS,
            id="node groups",
        ),
    ],
)


def _resources(module: Path, kind: str) -> dict[str, str]:
    text = module.read_text(encoding="utf-8")
    return dict(re.findall(rf'(?ms)^resource "{kind}" "(\w+)" \{{\n(.*?)^\}}', text))


def _role_ids(module: Path) -> dict[str, str]:
    made = _resources(module, "google_project_iam_custom_role")
    return {name: re.findall(r'role_id +\= "(\w+)\$\{var\.role_suffix\}"', body)[0] for name, body in made.items()}


@_MODULES
def test_roles_of_terraform_and_pages_have_the_needed_permissions(
    module: Path, pages: list[Path], roles: dict[str, set[str]]
) -> None:
    ids = _role_ids(module)
    assert roles == {
        ids[name]: set(re.findall(r'"(\w+\.\w+\.\w+)"', body))
        for name, body in _resources(module, "google_project_iam_custom_role").items()
    }
    commands = "".join(page.read_text(encoding="utf-8") for page in pages).replace("\\\n", " ")
    made = re.findall(r"gcloud iam roles create (\w+) .*--permissions=([\w.,]+)", commands)
    assert {role: set(permissions.split(",")) for role, permissions in made} == roles


@_MODULES
def test_every_text_variable_of_terraform_is_validated(
    module: Path, pages: list[Path], roles: dict[str, set[str]]
) -> None:
    """`terraform plan` rejects a wrong value, so that `terraform apply` does not fail half-way."""
    variables = re.findall(r'(?ms)^variable "\w+" \{\n(.*?)^\}', module.read_text(encoding="utf-8"))
    texts = [body for body in variables if re.search(r"type +\= string", body)]
    assert texts
    assert all("validation {" in body for body in texts)


def test_terraform_and_pages_grant_roles_on_the_same_resources() -> None:
    ids = _role_ids(_TERRAFORM)
    kinds = {"google_project_iam_member": "project", "google_service_account_iam_member": "service account"}
    assert {
        (ids[role], place)
        for kind, place in kinds.items()
        for body in _resources(_TERRAFORM, kind).values()
        for role in re.findall(r"(?s)custom_role\.(\w+).*local\.member", body)
    } == _GRANTS
    commands = "".join(block.text.replace("\\\n", " ") for page in _PAGES for block in read_blocks(page))
    places = {"projects": "project", "iam service-accounts": "service account"}
    granted = re.findall(
        r'gcloud (.*) add-iam-policy-binding .*--member="\$\{MEMBER\}" +--role="projects/\$\{PROJECT_ID\}/roles/(\w+)"',
        commands,
    )
    assert {(role, places[command]) for command, role in granted} == _GRANTS


@pytest.mark.parametrize("paths", [[_TERRAFORM], _PAGES], ids=["Terraform", "gcloud"])
def test_provisioner_gets_no_predefined_role_except_workload_identity_user(paths: list[Path]) -> None:
    """Each permission that Terraform and the pages name is in a custom role of this repository."""
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    # The page grants Google's predefined role for nodes to the service account of the nodes.
    of_nodes = set() if paths == [_TERRAFORM] else {"roles/container.defaultNodeServiceAccount"}
    assert set(re.findall(r"roles/[a-z]+\.[A-Za-z.]+", text)) == {"roles/iam.workloadIdentityUser"} | of_nodes
    text = re.sub(r"[a-z.]+(?:googleapis|gserviceaccount)\.com|roles/[a-z]+\.[A-Za-z.]+", "", text)
    named = re.findall(r"\b(?:container|compute|iam)\.(?!googleapis|gserviceaccount)[a-zA-Z]+\.[a-zA-Z]+\b", text)
    assert set(named) == {permission for permissions in _ROLES.values() for permission in permissions}


@pytest.mark.e2e
def test_terraform_is_formatted_by_hclfmt() -> None:
    tools.run("hclfmt", "-require-no-change", *map(str, (DEPLOY / "terraform").rglob("main.tf")))


_TEXTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "deploy").rglob("*.md")]


def test_pages_name_no_registry_but_the_placeholder() -> None:
    """Replacing the placeholder is then enough to change the registry on all pages."""
    named = {(path.name, word) for path in _TEXTS for word in re.findall(r"ghcr\.io/[\w-]+", path.read_text("utf-8"))}
    assert len(named) > 3
    assert {word for _, word in named} == {release.REGISTRY}
    words = r"\bOWNER\b|REGISTRY/|YOUR[_-]ORG"
    assert [path.name for path in _TEXTS if re.search(words, path.read_text("utf-8"))] == []


def test_readme_runs_the_wheel_of_the_release() -> None:
    """No workflow publishes the wheel to a package index, so users run the wheel by its URL."""
    tag, wheel = f"v{provisioner.__version__}", f"tpu_provisioner-{provisioner.__version__}-py3-none-any.whl"
    url = f"https://github.com/{release.PLACEHOLDER}/tpu-provisioner/releases/download/{tag}/{wheel}"
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    assert re.findall(r"^uvx .*", readme, re.MULTILINE) == [f"uvx --from={url} tpu-provisioner plan -f jobset.yaml"]


def test_no_placeholder_reaches_the_chart_of_a_release(tmp_path: Path) -> None:
    folder = tmp_path / "tpu-provisioner"
    release.make_chart(REPOSITORY, _RELEASED, _SOURCE, folder)
    texts = [path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()]
    assert [text for text in texts if release.PLACEHOLDER in text] == []
    assert "oci://ghcr.io/owner/charts/tpu-provisioner" in (folder / "README.md").read_text("utf-8")
