"""Make the folder of one cluster: copy deploy/example-project/example-cluster and fill it.

All values are checked as the controller checks them, before anything is written; an existing folder is never touched.
What is not checked: that project, cluster and accounts exist.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from provisioner import settings

_DEPLOY = Path(__file__).parent
_TEMPLATE = Path("example-project") / "example-cluster"
#: A folder's name: a domain-scoped project id (example.com:project) is one too.
_FOLDER = re.compile(r"[a-z][-a-z0-9.:]*")
_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.:-]+\.gserviceaccount\.com")


class OverlayError(ValueError):
    """The overlay cannot be made; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make an overlay; return the exit code."""
    parser = argparse.ArgumentParser(description="Make deploy/PROJECT_ID/CLUSTER_NAME from the example.")
    parser.add_argument("--project-id", required=True, help="the cluster's project")
    parser.add_argument("--cluster-name", required=True, help="the cluster's name")
    parser.add_argument("--location", default="", help="region or zone of the cluster; empty: inferred on GKE")
    parser.add_argument("--zone", default="", help="where node pools are made; empty: inferred on GKE")
    parser.add_argument("--node-service-account", default="", help="of the TPU nodes; empty: the project's default")
    parser.add_argument(
        "--google-service-account", default="", help="that the controller acts as; empty: a direct principal"
    )
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
            google_service_account=given.google_service_account,
        )
    except OverlayError as error:
        sys.stderr.write(f"cluster-overlay: {error}\n")
        return 1
    sys.stdout.write(
        f"made {made}; now set its image and apply it:\n"
        f"  (cd {made} && kustomize edit set image controller=IMAGE)\n"
        f"  kubectl apply --server-side -k {made}\n"
    )
    return 0


def make_overlay(deploy: Path, values: Mapping[str, str], *, google_service_account: str = "") -> Path:
    """Make the folder below `deploy`; return it. Raises OverlayError, and then nothing was written."""
    _check(values, google_service_account)
    folder = deploy / values["GCP_PROJECT_ID"] / values["GCP_CLUSTER"]
    if folder.exists():
        raise OverlayError(f"{folder} exists and is left as it is; edit it, or remove it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into its place when it is whole.
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as scratch:
        copy = Path(scratch) / "overlay"
        shutil.copytree(deploy / _TEMPLATE, copy)
        _fill_settings(copy / "settings.env", values)
        _fill_kustomization(copy / "kustomization.yaml", values["GCP_PROJECT_ID"], google_service_account)
        copy.rename(folder)
    return folder


def _check(values: Mapping[str, str], google_service_account: str) -> None:
    problems = []
    for variable, name in (("GCP_PROJECT_ID", "PROJECT_ID"), ("GCP_CLUSTER", "CLUSTER_NAME")):
        if not _FOLDER.fullmatch(values[variable]):
            problems.append(f"{name}={values[variable]!r} is not a name")
    # What is inferred on GKE need not be given here, so it must not count as missing.
    inferred = {"GCP_CLUSTER_LOCATION": "us-central2", "GCP_ZONE": "us-central2-b"}
    if values["GCP_CLUSTER_LOCATION"] and not values["GCP_ZONE"]:
        region = settings.region_of(values["GCP_CLUSTER_LOCATION"])
        inferred["GCP_ZONE"] = f"{region}-a"
    elif values["GCP_ZONE"] and not values["GCP_CLUSTER_LOCATION"]:
        inferred["GCP_CLUSTER_LOCATION"] = settings.region_of(values["GCP_ZONE"])
    try:
        settings.read_settings(values, inferred=inferred)
    except settings.SettingsError as error:
        problems += error.problems
    if google_service_account and not _ACCOUNT.fullmatch(google_service_account):
        problems.append(
            f"GOOGLE_SERVICE_ACCOUNT={google_service_account!r} is not the address of a Google service account, such "
            "as name@project.iam.gserviceaccount.com"
        )
    if problems:
        raise OverlayError("; ".join(problems))


def _fill_settings(path: Path, values: Mapping[str, str]) -> None:
    filled = []
    for line in path.read_text(encoding="utf-8").splitlines():
        variable, separator, _ = line.partition("=")
        known = separator and variable in values
        filled.append(f"{variable}={values[variable]}" if known else line)
    path.write_text("\n".join(filled) + "\n", encoding="utf-8")


def _fill_kustomization(path: Path, project: str, google_service_account: str) -> None:
    text = path.read_text(encoding="utf-8").replace(
        # In an image's name a domain-scoped project is a path.
        "/example-project/",
        f"/{project.replace(':', '/')}/",
    )
    if google_service_account:
        chosen, other = "workload-identity-annotation", "workload-identity-principal"
        text = text.replace(f"  # - ../../components/{chosen}\n", f"  - ../../components/{chosen}\n")
        text = text.replace(f"  - ../../components/{other}\n", f"  # - ../../components/{other}\n")
        patch = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": "tpu-provisioner-controller-manager",
                "namespace": "tpu-provisioner-system",
                "annotations": {"iam.gke.io/gcp-service-account": google_service_account},
            },
        }
        name = "google-service-account.yaml"
        (path.parent / name).write_text(yaml.safe_dump(patch, sort_keys=False), encoding="utf-8")
        text += f"patches:\n  - path: {name}\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
