"""Create the folder of one cluster: copy deploy/example-project/example-cluster and fill it.

All values are checked as the controller checks them, before anything is written; an existing folder is never changed.
Not checked: whether project, cluster, accounts, image and remote repository exist. Runs with Python only.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioner import settings
from provisioner.settings.forms import region_of

_DEPLOY = Path(__file__).parents[1] / "deploy"
_TEMPLATE = Path("example-project") / "example-cluster"
#: References of the template to other folders, which are replaced if the folders are in a remote repository.
_LOCAL = re.compile(r"(?m)^((?:# )?- )(?:\.\./)+(\S+)$")
#: Name of a folder; a domain-scoped project ID (example.com:project) is valid as well.
_FOLDER = re.compile(r"[a-z][-a-z0-9.:]*")
_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.:-]+\.gserviceaccount\.com")
_IMAGE = re.compile(
    r"(?P<name>[a-z0-9][-a-z0-9.]*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_REMOTE = re.compile(r"(?:https|ssh|file)://[^\s?]+[^\s?/]")
_REF = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/]*")


class OverlayError(ValueError):
    """The overlay cannot be created; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Choices for an overlay, in addition to its settings; empty if they are left out."""

    #: Google service account that the controller acts as; empty for a direct principal.
    google_service_account: str = ""
    #: Image of the controller; empty to keep the placeholder of the template.
    image: str = ""
    #: Folder to create; None if it is below deploy/.
    folder: Path | None = None
    #: Repository that contains deploy/base, and its tag or commit; for a folder outside of this repository.
    remote: str = ""
    ref: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Create an overlay; return the exit code."""
    parser = argparse.ArgumentParser(description="Create deploy/PROJECT_ID/CLUSTER_NAME from the example.")
    parser.add_argument("--project-id", required=True, help="the cluster's project")
    parser.add_argument("--cluster-name", required=True, help="the cluster's name")
    parser.add_argument("--location", default="", help="region or zone of the cluster; empty: inferred on GKE")
    parser.add_argument("--zone", default="", help="zone in which node pools are created; empty: inferred on GKE")
    parser.add_argument(
        "--node-service-account", default="", help="service account of the TPU nodes; empty: the project's default"
    )
    parser.add_argument(
        "--google-service-account",
        default="",
        help="Google service account that the controller acts as; empty: a direct principal",
    )
    parser.add_argument("--image", default="", help="the controller's image, with its tag or digest")
    parser.add_argument("--folder", default="", help="folder to create; empty: deploy/PROJECT_ID/CLUSTER_NAME")
    parser.add_argument("--remote", default="", help="repository of deploy/base, for a folder in another repository")
    parser.add_argument("--ref", default="", help="tag or commit of the repository")
    parser.add_argument("--deploy", type=Path, default=_DEPLOY, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        made = make_overlay(
            given.deploy,
            {
                "GCP_PROJECT_ID": given.project_id,
                "GCP_CLUSTER": given.cluster_name,
                "GCP_CLUSTER_LOCATION": given.location,
                "GCP_ZONE": given.zone,
                "GCP_NODE_SERVICE_ACCOUNT": given.node_service_account,
            },
            Choices(
                google_service_account=given.google_service_account,
                image=given.image,
                folder=Path(given.folder).expanduser() if given.folder else None,
                remote=given.remote,
                ref=given.ref,
            ),
        )
    except OverlayError as error:
        sys.stderr.write(f"cluster-overlay: {error}\n")
        return 1
    todo = "apply it" if given.image else f"set its image in {made / 'kustomization.yaml'}, then apply it"
    sys.stdout.write(f"created {made}; {todo}:\n  kubectl apply --server-side -k {made}\n")
    return 0


def make_overlay(deploy: Path, values: Mapping[str, str], choices: Choices | None = None) -> Path:
    """Create the folder of an overlay; return its path. If it raises OverlayError, nothing was written."""
    choices = choices or Choices()
    _check(values, choices)
    folder = choices.folder or deploy / values["GCP_PROJECT_ID"] / values["GCP_CLUSTER"]
    if folder.exists():
        raise OverlayError(f"{folder} already exists and was not changed; edit it, or remove it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The folder gets its final name when it is complete, so that a failure leaves no incomplete overlay.
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as scratch:
        copy = Path(scratch) / "overlay"
        shutil.copytree(deploy / _TEMPLATE, copy)
        _fill_settings(copy / "settings.env", values)
        _fill_kustomization(copy, values["GCP_PROJECT_ID"], choices)
        copy.rename(folder)
    return folder


def _check(values: Mapping[str, str], choices: Choices) -> None:
    problems = []
    for variable, name in (("GCP_PROJECT_ID", "PROJECT_ID"), ("GCP_CLUSTER", "CLUSTER_NAME")):
        if not _FOLDER.fullmatch(values[variable]):
            problems.append(f"{name}={values[variable]!r} is not a valid name")
    # The check gets example values for empty settings that are inferred on GKE, which must not count as missing.
    inferred = {"GCP_CLUSTER_LOCATION": "us-central2", "GCP_ZONE": "us-central2-b"}
    if values["GCP_CLUSTER_LOCATION"] and not values["GCP_ZONE"]:
        region = region_of(values["GCP_CLUSTER_LOCATION"])
        inferred["GCP_ZONE"] = f"{region}-a"
    elif values["GCP_ZONE"] and not values["GCP_CLUSTER_LOCATION"]:
        inferred["GCP_CLUSTER_LOCATION"] = region_of(values["GCP_ZONE"])
    try:
        settings.read_settings(values, inferred=inferred)
    except settings.SettingsError as error:
        problems += error.problems
    account = choices.google_service_account
    if account and not _ACCOUNT.fullmatch(account):
        problems.append(
            f"GOOGLE_SERVICE_ACCOUNT={account!r} is not the address of a Google service account, such "
            "as name@project.iam.gserviceaccount.com"
        )
    problems += _check_image(choices.image)
    problems += _check_remote(choices)
    if problems:
        raise OverlayError("; ".join(problems))


def _check_image(image: str) -> list[str]:
    if not image:
        return []
    match = _IMAGE.fullmatch(image)
    if match is None:
        return [
            f"IMG={image!r} is not an image, such as us-docker.pkg.dev/my-project/tpu-provisioner/controller:v0.1.0"
        ]
    if not match["tag"] and not match["digest"]:
        return [f"IMG={image!r} has no tag and no digest; add one, such as {image}:v0.1.0"]
    return []


def _check_remote(choices: Choices) -> list[str]:
    if not (choices.folder or choices.remote or choices.ref):
        return []
    if not (choices.folder and choices.remote and choices.ref):
        return [
            "set FOLDER, REMOTE and REF together: your own folder must name the repository that contains deploy/base"
        ]
    problems = []
    if not _REMOTE.fullmatch(choices.remote):
        problems.append(
            f"REMOTE={choices.remote!r} is not a repository, such as https://github.com/my-organization/tpu-provisioner"
        )
    if not _REF.fullmatch(choices.ref):
        problems.append(f"REF={choices.ref!r} is not a tag or commit, such as v0.1.0")
    return problems


def _fill_settings(path: Path, values: Mapping[str, str]) -> None:
    filled = []
    for line in path.read_text(encoding="utf-8").splitlines():
        variable, separator, _ = line.partition("=")
        known = separator and variable in values
        filled.append(f"{variable}={values[variable]}" if known else line)
    path.write_text("\n".join(filled) + "\n", encoding="utf-8")


def _fill_kustomization(folder: Path, project: str, choices: Choices) -> None:
    paths = (folder / "kustomization.yaml", folder / "components" / "kustomization.yaml")
    main, components = (path.read_text(encoding="utf-8") for path in paths)
    # A domain-scoped project (example.com:project) is a path in the name of an image.
    main = main.replace("/example-project/", f"/{project.replace(':', '/')}/")
    if choices.google_service_account:
        main += _act_as(folder, choices.google_service_account)
        components = re.sub(r"(?m)^- (\S+/workload-identity-principal)$", r"# - \1", components)
        components = re.sub(r"(?m)^# - (\S+/workload-identity-annotation)$", r"- \1", components)
    if choices.image:
        main = re.sub(r"(?m)^- name: controller\n(?:  .*\n)+", lambda _: _image_entry(choices.image), main)
    for path, text in zip(paths, (main, components), strict=True):
        filled = text
        if choices.remote:
            filled = _LOCAL.sub(lambda found: f"{found[1]}{choices.remote}//deploy/{found[2]}?ref={choices.ref}", text)
        path.write_text(filled, encoding="utf-8")


def _act_as(folder: Path, account: str) -> str:
    """Write the patch with the account's address; return the lines that refer to it."""
    name = "google-service-account.yaml"
    template = (_DEPLOY / "components" / "workload-identity-annotation" / name).read_text(encoding="utf-8")
    patch = re.sub(r"(gcp-service-account: ).*", lambda found: found[1] + account, template)
    (folder / name).write_text(patch, encoding="utf-8")
    return f"patches:\n- path: {name}\n"


def _image_entry(image: str) -> str:
    match = _IMAGE.fullmatch(image)
    lines = ["- name: controller", f"  newName: {match['name']}"] if match else []
    if match and match["tag"]:
        # The tag is quoted, because it may look like a number.
        lines.append(f'  newTag: "{match["tag"]}"')
    if match and match["digest"]:
        lines.append(f"  digest: {match['digest']}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
