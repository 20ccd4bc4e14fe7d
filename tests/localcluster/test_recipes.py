"""What is pinned, and what a cache folder's name depends on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rehearsal.localcluster.recipes import MINIMUM_GO, MODULES, RECIPES, Recipe, cache_key, pinned_version

KUBERNETES = next(recipe for recipe in RECIPES if recipe.name == "kube-apiserver")


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
    """Every file that pins something counts, for the programs of its module alone."""
    modules = tmp_path / "modules"
    shutil.copytree(MODULES, modules)
    before = {name: cache_key(name, modules, platform="linux/amd64") for name in ("etcd", "kwok")}
    assert before["etcd"] == cache_key("etcd", MODULES, platform="linux/amd64")
    change(modules / "etcd")
    assert cache_key("etcd", modules, platform="linux/amd64") != before["etcd"]
    assert cache_key("kwok", modules, platform="linux/amd64") == before["kwok"]


@pytest.mark.parametrize("recipe", [pytest.param(recipe, id=recipe.name) for recipe in RECIPES])
def test_every_program_is_pinned_for_the_oldest_go_that_is_accepted(recipe: Recipe) -> None:
    """The module requires the source, declares the tool, and asks for no newer Go than is checked for."""
    text = (MODULES / recipe.module / "go.mod").read_text()
    assert re.fullmatch(r"v\d+\.\d+\.\d+", pinned_version(recipe, MODULES))
    assert re.search(rf"^\s*(tool )?{re.escape(recipe.package)}$", text, re.MULTILINE)
    assert f"\ngo {'.'.join(map(str, MINIMUM_GO))}.0\n" in text
    assert f"{recipe.source} {pinned_version(recipe, MODULES)} h1:" in (MODULES / recipe.module / "go.sum").read_text()


def test_kubernetes_parts_are_all_of_the_release_that_is_stamped() -> None:
    """k8s.io/kubernetes v1.N.P goes with its published parts v0.N.P."""
    text = (MODULES / "kubernetes" / "go.mod").read_text()
    replaced = dict(re.findall(r"^replace (\S+) => \S+ (\S+)$", text, re.MULTILINE))
    version = pinned_version(KUBERNETES, MODULES)
    assert set(replaced.values()) == {version.replace("v1.", "v0.")}
    assert {"k8s.io/api", "k8s.io/client-go", "k8s.io/streaming"} <= replaced.keys()
    unreplaced = set(re.findall(r"^\t(k8s\.io/\S+) v0\.0\.0 ", text, re.MULTILINE)) - replaced.keys()
    assert not unreplaced
