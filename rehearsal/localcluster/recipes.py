"""Recipes of the programs that are built for the local cluster: ten programs from seven pinned Go modules.

The versions are only in modules/*/go.mod and go.sum; the version that a program reports about itself is derived from
them. A folder such as kubernetes/1.37 pins another version for tests that need it. Each module has its own cache key,
so a new version of one program rebuilds no other. The key covers all inputs that affect the result, except for the
version of the Go toolchain: programs built by any supported version behave alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rehearsal.localcluster.errors import LocalClusterError

MODULES = Path(__file__).with_name("modules")

#: Minimum version of Go: the go directive of every module here.
MINIMUM_GO = (1, 26)

BUILD_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")

ETCD = "etcd"
KUBE_APISERVER = "kube-apiserver"
KUBE_CONTROLLER_MANAGER = "kube-controller-manager"
KUBE_SCHEDULER = "kube-scheduler"
KUBECTL = "kubectl"
KWOK = "kwok"
JOBSET = "jobset"
LWS = "lws"
KUEUE = "kueue"
KUBERAY = "kuberay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Instructions to build one program."""

    name: str
    #: Folder under modules/ that pins the program's version.
    module: str
    #: Path of the Go module whose version the program reports.
    source: str
    package: str

    #: Go variable for the version; None if the source already contains it.
    version_variable: str | None = None
    #: Whether $KUBEBUILDER_ASSETS may provide the program.
    from_assets: bool = True
    #: Folder of the source that contains its crd and webhook folders; empty if it has neither.
    manifests: str = ""
    #: CRD of another module that the program needs: path of the module, and path of the file in it.
    borrowed: tuple[str, str] = ("", "")
    #: Whether the program is built only on request.
    optional: bool = False
    gates: tuple[str, ...] = ()


_KUBERNETES = "k8s.io/kubernetes"
_KUBERNETES_VERSION = "k8s.io/component-base/version.gitVersion"

# etcd, which builds fast, comes first, so that a mistake in the set-up shows within a minute.
RECIPES = (
    Recipe(
        name=ETCD,
        module="etcd",
        source="go.etcd.io/etcd/server/v3",
        package="go.etcd.io/etcd/server/v3",
    ),
    *(
        Recipe(
            name=name,
            module="kubernetes",
            source=_KUBERNETES,
            package=f"{_KUBERNETES}/cmd/{name}",
            version_variable=_KUBERNETES_VERSION,
        )
        for name in (KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER, KUBECTL)
    ),
    Recipe(
        name=KWOK,
        module="kwok",
        source="sigs.k8s.io/kwok",
        package="sigs.k8s.io/kwok/cmd/kwok",
    ),
    Recipe(
        name=JOBSET,
        module="jobset",
        source="sigs.k8s.io/jobset",
        package="sigs.k8s.io/jobset",
        version_variable="sigs.k8s.io/jobset/pkg/version.GitVersion",
        # Assets may have another version than the CRD and webhooks, which come from this module.
        from_assets=False,
        manifests="config/components",
    ),
    Recipe(
        name=LWS,
        module="lws",
        source="sigs.k8s.io/lws",
        package="sigs.k8s.io/lws/cmd",
        version_variable="sigs.k8s.io/lws/pkg/version.GitVersion",
        from_assets=False,
        manifests="config",
        optional=True,
    ),
    Recipe(
        name=KUEUE,
        module="kueue",
        source="sigs.k8s.io/kueue",
        package="sigs.k8s.io/kueue/cmd/kueue",
        version_variable="sigs.k8s.io/kueue/pkg/version.GitVersion",
        from_assets=False,
        manifests="config/components",
        borrowed=(
            "k8s.io/autoscaler/cluster-autoscaler/apis",
            "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml",
        ),
        optional=True,
    ),
    Recipe(
        name=KUBERAY,
        module="kuberay",
        source="github.com/ray-project/kuberay/ray-operator",
        package="github.com/ray-project/kuberay/ray-operator",
        from_assets=False,
        manifests="config",
        optional=True,
    ),
)


#: Environment variable that selects another version of a module's programs, such as 1.37.
VERSION_VARIABLES = {"kubernetes": "REHEARSAL_KUBERNETES", "jobset": "REHEARSAL_JOBSET"}

#: Feature gates of newer versions that the tests of these versions use, by module.
_GATES = {"kubernetes/1.37": ("GenericWorkload",), "jobset/0.12": ("ElasticJobSet", "InPlaceRestart")}


def chosen_recipes(environment: Mapping[str, str], modules: Path) -> tuple[Recipe, ...]:
    """Return the recipes, with the modules of the versions that the environment selects."""
    chosen = {}
    for module, variable in VERSION_VARIABLES.items():
        if version := environment.get(variable, ""):
            chosen[module] = f"{module}/{version}"
            if not (modules / chosen[module]).is_dir():
                known = [folder.name for folder in sorted((modules / module).glob("*/"))]
                raise LocalClusterError(
                    f"{variable} is {version!r}, which is not pinned.",
                    advice=f"Unset it, or set it to one of these: {', '.join(known)}.",
                )
    return tuple(
        replace(recipe, module=chosen[recipe.module], gates=_GATES.get(chosen[recipe.module], ()))
        if recipe.module in chosen
        else recipe
        for recipe in RECIPES
    )


def pinned_version(recipe: Recipe, modules: Path) -> str:
    """Return the version that the recipe's go.mod requires, such as v1.36.3."""
    text = (modules / recipe.module / "go.mod").read_text(encoding="utf-8")
    match = re.search(rf"^\s*(?:require )?{re.escape(recipe.source)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"modules/{recipe.module}/go.mod requires no version of {recipe.source}")
    return match.group(1)


def linker_flags(recipe: Recipe, modules: Path) -> str:
    """Return the value of -ldflags, which leaves out symbol tables and sets the version."""
    flags = "-s -w"
    if recipe.version_variable is None:
        return flags
    version = pinned_version(recipe, modules)
    flags += f" -X {recipe.version_variable}={version}"
    if recipe.version_variable == _KUBERNETES_VERSION:
        # Clients compare the major and minor version, which Kubernetes has in separate variables.
        major, minor, _ = version.removeprefix("v").split(".", 2)
        package = _KUBERNETES_VERSION.rpartition(".")[0]
        flags += f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    return flags


def cache_key(module: str, modules: Path, *, platform: str, recipes: Sequence[Recipe] = RECIPES) -> str:
    """Return the name of a module's cache folder; it depends on sources, flags and platform (such as linux/amd64)."""
    digest = hashlib.sha256()
    for path in sorted((modules / module).glob("go.*")):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    for recipe in recipes:
        if recipe.module == module:
            made = f"{recipe.name} {recipe.package} {recipe.manifests} {linker_flags(recipe, modules)}"
            made += "".join(recipe.borrowed)
            digest.update(f"\0{made}".encode())
    digest.update(f"\0{' '.join(BUILD_FLAGS)}\0{platform}".encode())
    return f"{module.replace('/', '-')}-{digest.hexdigest()[:16]}"
