"""Builds programs that only tests need from pinned Go modules, and keeps them in the user's cache."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rehearsal.localcluster.binaries import cache_root, find_toolchain
from rehearsal.localcluster.recipes import BUILD_FLAGS

_DEPLOY = Path(__file__).parents[2] / "deploy"
_MODULES = Path(__file__).with_name("tools")
_PACKAGES = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint",
    # The source is in tools/gitops. The build needs Go 1.27 and takes minutes, so tests call only `built_before`.
    "gitops": ".",
    "hclfmt": "github.com/hashicorp/hcl/v2/cmd/hclfmt",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5",
    "validate-krew-manifest": "sigs.k8s.io/krew/cmd/validate-krew-manifest",
    "promtool": "github.com/prometheus/prometheus/cmd/promtool",
}
#: Build tags by program. The tag of promtool leaves out the service discovery of about 30 clouds.
_TAGS = {"promtool": "remove_all_sd"}
_BUILD_TIMEOUT_SECONDS = 900
#: API of mutating policies, which clusters have since Kubernetes 1.36.
MUTATING_POLICIES = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"


def tool(name: str) -> Path:
    """Return the path of a tool. The first call on a machine builds the tool, which takes minutes."""
    program = _program(name)
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / f"{name}.lock").open("w", encoding="ascii") as lock:
        # The lock lets only one of several test runs build; the kernel releases the lock when this process ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(_MODULES / name, _PACKAGES[name], program, cache_root(os.environ), tags=_TAGS.get(name, ""))
    return program


def built_before(name: str) -> Path | None:
    """Return the path of a tool; None if it has not been built (by `python -m tests.deploy.tools NAME`)."""
    program = _program(name)
    return program if program.exists() else None


def _program(name: str) -> Path:
    sources = sorted(path for path in (_MODULES / name).iterdir() if path.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return cache_root(os.environ) / "test-tools" / f"{name}-{digest[:16]}"


def run(name: str, *arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run([tool(name), *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    # The loader in C takes a tenth of the time.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def built(folder: Path, *components: str, resources: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Write a kustomization with components and folders of deploy/ to an empty folder; return its objects."""
    # The paths are relative, because kustomize accepts no absolute paths.
    kustomization = {
        "resources": [os.path.relpath(_DEPLOY / resource, folder.resolve()) for resource in resources],
        "components": [os.path.relpath(_DEPLOY / "components" / name, folder.resolve()) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    return documents(run("kustomize", "build", str(folder)))


def template(
    chart: Path,
    values: Mapping[str, Any],
    *,
    release: str = "test",
    namespace: str,
    apis: Sequence[str] = (MUTATING_POLICIES,),
) -> list[dict[str, Any]]:
    """Return the objects of a chart. Raises ValueError with helm's message if it rejects the values."""
    return documents(_rendered(chart, json.dumps(values), release, namespace, tuple(apis)))


def notes(chart: Path, values: Mapping[str, Any], folder: Path, *, apis: Sequence[str] = (MUTATING_POLICIES,)) -> str:
    """Return the text that helm prints after an installation, rendered in a copy of the chart in an empty folder."""
    copied = Path(shutil.copytree(chart, folder / chart.name))
    # A template renders the text, because `helm template` omits it and `helm install --dry-run` needs a cluster.
    text = '{kind: Notes, text: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}}'
    (copied / "templates" / "notes.yaml").write_text(text, encoding="utf-8")
    documents = template(copied, values, namespace="system", apis=apis)
    (found,) = [document["text"] for document in documents if document["kind"] == "Notes"]
    return str(found)


@functools.cache
def _rendered(chart: Path, values: str, release: str, namespace: str, apis: tuple[str, ...]) -> str:
    # The version is given because helm, built without the flags of its releases, would assume an old cluster.
    command = [
        tool("helm"),
        "template",
        release,
        chart,
        "--kube-version=1.30.0",
        *(f"--api-versions={api}" for api in apis),
        f"--namespace={namespace}",
        "--values=-",
    ]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def _build(module: Path, package: str, program: Path, root: Path, *, tags: str) -> None:
    toolchain = find_toolchain(root, environment=os.environ, progress=print)
    made = program.with_suffix(".building")
    done = subprocess.run(
        [toolchain.go, "build", *BUILD_FLAGS, "-tags", tags, "-ldflags", "-s -w", "-o", made, package],
        cwd=module,
        env=dict(toolchain.environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    made.rename(program)


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        tool(wanted)
