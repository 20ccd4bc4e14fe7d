"""Tests of pinned versions, and of the files on which the key of a cache folder depends."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rehearsal.localcluster import LocalClusterError
from rehearsal.localcluster.recipes import (
    MINIMUM_GO,
    MODULES,
    RECIPES,
    Recipe,
    cache_key,
    chosen_recipes,
    pinned_version,
)

NEWEST = {"REHEARSAL_KUBERNETES": "1.37", "REHEARSAL_JOBSET": "0.12"}
OLDEST = {"REHEARSAL_KUBERNETES": "1.35"}
ALL = dict.fromkeys(recipe for chosen in ({}, NEWEST, OLDEST) for recipe in chosen_recipes(chosen, MODULES))


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda module: _append(module / "go.sum"), id="the sums"),
        pytest.param(lambda module: _append(module / "go.mod"), id="the requirements"),
        pytest.param(lambda module: (module / "go.sum").rename(module / "go.work.sum"), id="the name of a file"),
    ],
)
def test_the_cache_key_changes_with_the_sources(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Each file of a module changes the key of the programs of this module, but of no other."""
    modules = tmp_path / "modules"
    shutil.copytree(MODULES, modules)
    before = {name: cache_key(name, modules, platform="linux/amd64") for name in ("etcd", "kwok")}
    assert before["etcd"] == cache_key("etcd", MODULES, platform="linux/amd64")
    change(modules / "etcd")
    assert cache_key("etcd", modules, platform="linux/amd64") != before["etcd"]
    assert cache_key("kwok", modules, platform="linux/amd64") == before["kwok"]


@pytest.mark.parametrize("recipe", [pytest.param(recipe, id=f"{recipe.name} of {recipe.module}") for recipe in ALL])
def test_every_program_is_pinned_for_the_oldest_go_that_is_accepted(recipe: Recipe) -> None:
    text = (MODULES / recipe.module / "go.mod").read_text()
    assert re.fullmatch(r"v\d+\.\d+\.\d+", pinned_version(recipe, MODULES))
    assert re.search(rf"^\s*(tool )?{re.escape(recipe.package)}$", text, re.MULTILINE)
    assert f"\ngo {'.'.join(map(str, MINIMUM_GO))}.0\n" in text
    assert f"{recipe.source} {pinned_version(recipe, MODULES)} h1:" in (MODULES / recipe.module / "go.sum").read_text()


@pytest.mark.parametrize(
    "recipe", [recipe for recipe in ALL if recipe.name == "kube-apiserver"], ids=lambda recipe: recipe.module
)
def test_kubernetes_parts_all_have_the_stamped_release(recipe: Recipe) -> None:
    """The release v1.N.P of k8s.io/kubernetes needs its parts, such as k8s.io/api, in version v0.N.P."""
    text = (MODULES / recipe.module / "go.mod").read_text()
    replaced = dict(re.findall(r"^\t(\S+) => \S+ (\S+)$", text, re.MULTILINE))
    version = pinned_version(recipe, MODULES)
    assert set(replaced.values()) == {version.replace("v1.", "v0.")}
    assert {"k8s.io/api", "k8s.io/client-go"} <= replaced.keys()
    unreplaced = set(re.findall(r"^\t(k8s\.io/\S+) v0\.0\.0 ", text, re.MULTILINE)) - replaced.keys()
    assert not unreplaced


def test_environment_chooses_among_pinned_versions() -> None:
    """Each version has its own folder and cache key. Programs that the environment does not name keep their version."""
    chosen = {recipe.name: recipe for recipe in chosen_recipes(NEWEST, MODULES)}
    assert pinned_version(chosen["kube-scheduler"], MODULES).startswith("v1.37.")
    assert (chosen["kube-scheduler"].gates, chosen["jobset"].module) == (("GenericWorkload",), "jobset/0.12")
    assert chosen["etcd"] in RECIPES
    keys = {cache_key(recipe.module, MODULES, platform="linux/amd64", recipes=[recipe]) for recipe in ALL}
    assert len(keys) == len(ALL)
    with pytest.raises(
        LocalClusterError, match=r"REHEARSAL_KUBERNETES is '1\.2', which is not pinned\.\n.*1\.35, 1\.37"
    ):
        chosen_recipes({"REHEARSAL_KUBERNETES": "1.2"}, MODULES)


def test_install_page_lists_the_pinned_versions() -> None:
    page = Path("docs/install.md").read_text(encoding="utf-8").partition("## Tested versions")[2]
    pinned = {pinned_version(recipe, MODULES) for recipe in ALL if recipe.name not in {"etcd", "kwok"}}
    assert {f"v{version}" for version in re.findall(r"\d+\.\d+\.\d+", page)} == pinned
