"""Checks a release, and creates its notes, and charts and manifests that name its image.

Runs on a bare Python, before anything is installed.

    release.py check vX.Y.Z[-rc.N]             the tag is the code's version, and CHANGELOG.md has a section for it
    release.py notes vX.Y.Z[-rc.N]             that section
    release.py flags vX.Y.Z[-rc.N]             flags of `gh release create`: whether it is a pre-release
    release.py chart IMAGE REPOSITORY FOLDER   a chart for `helm package`
    release.py manifest IMAGE FOLDER           overlays for `kubectl kustomize`: install.yaml; settings.yaml
    release.py nodegroups IMAGE FOLDER         overlays: install-nodegroups.yaml; settings-nodegroups.yaml
    release.py partitions IMAGE FOLDER         overlays: install-partitions.yaml; settings-partitions.yaml

IMAGE is NAME:TAG@sha256:DIGEST; REPOSITORY is the source's address.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_REPOSITORY = Path(__file__).parents[1]
#: Organisation in the texts of this repository. A release replaces it by the organisation of its image.
PLACEHOLDER = "my-organization"
#: Registry of images and charts in the texts of this repository.
REGISTRY = f"ghcr.io/{PLACEHOLDER}"
_IMAGE = re.compile(r"(?P<name>[a-z0-9][^\s:@]*(?:/[^\s:@]+)+):(?P<tag>v[^\s:@]+)@(?P<digest>sha256:[0-9a-f]{64})")
_CHART = Path("deploy") / "charts" / "tpu-provisioner"
_OVERLAY = Path("deploy") / "example-project" / "example-cluster"
_OF_NODE_GROUPS = Path("deploy") / "example-project" / "self-managed-cluster"
_OF_PARTITIONS = Path("deploy") / "example-project" / "ipu-cluster"
_HEAD = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
#: Patch that removes the Namespace, which a separate manifest has, so that the delete of a product keeps it.
_WITHOUT_NAMESPACE = """- patch: |-
    $patch: delete
    apiVersion: v1
    kind: Namespace
    metadata:
      name: tpu-provisioner-system
"""
_USAGE = (
    "usage: release.py check|notes|flags TAG, chart IMAGE REPOSITORY FOLDER, "
    "manifest|nodegroups|partitions IMAGE FOLDER\n"
)


class ReleaseError(ValueError):
    """The release is not possible; the message has the reason and the remedy."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    try:
        match arguments:
            case ["check", tag]:
                check(_REPOSITORY, tag)
            case ["notes", tag]:
                sys.stdout.write(check(_REPOSITORY, tag))
            case ["flags", tag]:
                check(_REPOSITORY, tag)
                sys.stdout.write("--prerelease\n" if "-" in tag else "--latest\n")
            case ["chart", image, repository, folder]:
                make_chart(_REPOSITORY, image, repository, Path(folder))
            case ["manifest", image, folder]:
                make_manifest(_REPOSITORY, _OVERLAY, image, Path(folder))
            case ["nodegroups", image, folder]:
                make_manifest(_REPOSITORY, _OF_NODE_GROUPS, image, Path(folder))
            case ["partitions", image, folder]:
                make_manifest(_REPOSITORY, _OF_PARTITIONS, image, Path(folder))
            case _:
                sys.stderr.write(_USAGE)
                return 2
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def make_chart(source: Path, image: str, repository: str, folder: Path) -> None:
    """Copy the chart to a new folder, with the name and digest of the image as default values."""
    found = read_image(image)
    shutil.copytree(source / _CHART, folder)
    _replace(folder / "values.yaml", '  repository: ""\n', f"  repository: {found['name']}\n")
    _replace(folder / "values.yaml", '  digest: ""\n', f"  digest: {found['digest']}\n")
    for file in (path for path in folder.rglob("*") if path.is_file()):
        file.write_text(filled(file.read_text(encoding="utf-8"), found["name"]), encoding="utf-8")
    head = f"home: {repository}\nsources:\n- {repository}\nannotations:\n"
    _replace(folder / "Chart.yaml", "annotations:\n", head + _annotations(found, repository))


def _annotations(found: re.Match[str], repository: str) -> str:
    pages = f"{repository}/blob/{found['tag']}/docs"
    pictures = f"{repository}/raw/{found['tag']}/docs/pictures"
    return f"""  artifacthub.io/images: |
    - name: controller
      image: {found["name"]}@{found["digest"]}
  artifacthub.io/links: |
    - name: documentation
      url: {pages}/README.md
  artifacthub.io/screenshots: |
    - title: Status page
      url: {pictures}/board-light.webp
  artifacthub.io/prerelease: '{str("-" in found["tag"]).lower()}'
"""


def filled(text: str, image: str) -> str:
    """Return a text whose placeholders are replaced by the registry and organisation of an image."""
    registry, _, _ = image.rpartition("/")
    return text.replace(REGISTRY, registry).replace(PLACEHOLDER, registry.rpartition("/")[2])


def make_manifest(source: Path, overlay: Path, image: str, folder: Path) -> None:
    """Create an overlay without Namespace and settings in `folder`, and one with the settings in `folder`/settings.

    The settings are the example's, with empty values for those of a project. They are separate because users change
    them, and an apply of all objects for an upgrade would conflict with these changes.
    """
    found = read_image(image)
    shutil.copytree(source / overlay, folder)
    (folder / "settings").mkdir()
    settings = (folder / "settings.env").rename(folder / "settings" / "settings.env")
    text = re.sub(r"(?m)^((?:GCP|ALLOWED_PROJECTS|VIPU_SERVERS)\w*=).*$", r"\1", settings.read_text(encoding="utf-8"))
    settings.write_text(text, encoding="utf-8")
    kustomization = folder / "kustomization.yaml"
    text = kustomization.read_text(encoding="utf-8")
    entry = f"- digest: {found['digest']}\n  name: controller\n  newName: {found['name']}\n"
    text, images = re.subn(r"(?m)^- name: controller\n(?:  .*\n)+", entry, text)
    generator = re.search(r"(?m)^(?:#.*\n)?(configMapGenerator:\n(?:[- ] .*\n)+)", text)
    if images != 1 or generator is None:
        raise ReleaseError(f"{overlay} names no image controller, or generates no ConfigMap")
    text = text.replace(generator[0], "")
    text = re.sub(r"(?<=name: IPU_INIT_IMAGE\n        value: ).*", image, text)
    before, _, patches = text.partition("patches:\n")
    text = f"{before}patches:\n{_WITHOUT_NAMESPACE}{patches}"
    kustomization.write_text(text, encoding="utf-8")
    options = "generatorOptions:\n  disableNameSuffixHash: true\n"
    (settings.parent / "kustomization.yaml").write_text(f"{_HEAD}{options}{generator[1]}", encoding="utf-8")


def read_image(image: str) -> re.Match[str]:
    """Return the groups `name`, `tag` and `digest` of an image. Raises ReleaseError."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ReleaseError(f"{image!r} is not of the form NAME:vX.Y.Z@sha256:DIGEST; give the image as it was pushed")
    return found


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ReleaseError(f"{path.name} has {text.count(old)} lines {old.strip()!r} and should have one")
    path.write_text(text.replace(old, new), encoding="utf-8")


def check(repository: Path, tag: str) -> str:
    """Return the notes of the tag's release. Raises ReleaseError."""
    code = (repository / "provisioner" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'(?m)^__version__ = "([^"]+)"$', code)
    if match is None:
        raise ReleaseError("provisioner/__init__.py has no __version__")
    version = match.group(1)
    if tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag} and the code says {version}; tag v{version}, or change __version__")
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^## \[?{re.escape(version)}\]?([^\n]*)\n(.*?)(?=^## |\Z)", changelog)
    if section is None or not section.group(2).strip():
        raise ReleaseError(f"CHANGELOG.md has no section {version}; rename Unreleased to {version} and its date")
    if "unreleased" in section.group(1).lower():
        raise ReleaseError(f"CHANGELOG.md says that {version} is unreleased; write the date of the release there")
    return section.group(2).strip() + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
