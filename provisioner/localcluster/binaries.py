"""Where the programs of the local cluster come from.

In this order: $KUBEBUILDER_ASSETS for what it holds, then the cache, then a build out of pinned Go modules (minutes,
once per version). A cached program is trusted by its name alone: it only gets that name when it is whole. Programs
in $KUBEBUILDER_ASSETS are of whatever version the user put there. POSIX only.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from provisioner.localcluster.building import HEARTBEAT_SECONDS, GoRunner
from provisioner.localcluster.errors import LocalClusterError
from provisioner.localcluster.progress import Progress, log_progress
from provisioner.localcluster.recipes import MODULES, RECIPES, Recipe, cache_key
from provisioner.localcluster.toolchain import find_toolchain

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
_MANIFESTS = "jobset-manifests"
_SCRATCH_PREFIX = ".building-"
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Programs ready to run, by name (see recipes), and JobSet's manifests."""

    programs: Mapping[str, Path]
    jobset_manifests: Path
    """A folder with JobSet's config/components/crd and webhook."""

    def __getitem__(self, name: str) -> Path:
        """Return the path of the program of that name."""
        return self.programs[name]


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder that holds everything that is built or fetched."""
    base = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return root / "tpu-provisioner"


def resolve_binaries(
    *,
    progress: Progress = log_progress,
    environment: Mapping[str, str] | None = None,
    modules: Path = MODULES,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> Binaries:
    """Return all programs, building what is neither in $KUBEBUILDER_ASSETS nor in the cache.

    Raises LocalClusterError when a build fails. Two callers at once do the work once.
    """
    env = os.environ if environment is None else environment
    root = cache_root(env)
    machine = platform.machine()
    target = f"{sys.platform}/{_GO_ARCHITECTURES.get(machine, machine)}"
    folder = root / cache_key(modules, platform=target)
    given = _given(env)
    for name, path in given.items():
        progress(f"{name}: {path} (${ASSETS_VARIABLE})")
    if missing := _missing(folder, given):
        with _locked(root, progress=progress, heartbeat_seconds=heartbeat_seconds):
            # Another process may have built them while this one waited.
            if missing := _missing(folder, given):
                _build(missing, folder, root, env, modules, progress=progress, heartbeat_seconds=heartbeat_seconds)
    programs = {recipe.name: given.get(recipe.name, folder / recipe.name) for recipe in RECIPES}
    return Binaries(programs=programs, jobset_manifests=folder / _MANIFESTS)


def _given(environment: Mapping[str, str]) -> dict[str, Path]:
    assets = environment.get(ASSETS_VARIABLE, "")
    if not assets:
        return {}
    if not Path(assets).is_dir():
        raise LocalClusterError(
            f"{ASSETS_VARIABLE} is {assets!r}, which is not a folder.",
            advice=f"Point it at a folder that holds etcd, kube-apiserver and kubectl, or unset {ASSETS_VARIABLE}.",
        )
    paths = {recipe.name: Path(assets).absolute() / recipe.name for recipe in RECIPES if recipe.from_assets}
    return {name: path for name, path in paths.items() if os.access(path, os.X_OK) and path.is_file()}


def _missing(folder: Path, given: Mapping[str, Path]) -> list[str]:
    wanted = [recipe.name for recipe in RECIPES if recipe.name not in given]
    return [name for name in (*wanted, _MANIFESTS) if not (folder / name).exists()]


def _build(
    missing: list[str],
    folder: Path,
    root: Path,
    environment: Mapping[str, str],
    modules: Path,
    *,
    progress: Progress,
    heartbeat_seconds: float,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # What a killed build left behind; the lock says that nobody writes there now.
    for leftover in folder.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    toolchain = find_toolchain(root, environment=environment, progress=progress)
    runner = GoRunner(toolchain, progress=progress, heartbeat_seconds=heartbeat_seconds)
    recipes: list[Recipe] = [recipe for recipe in RECIPES if recipe.name in missing]
    if recipes:
        progress(
            f"building {len(recipes)} programs with Go {toolchain.version} into {folder}; "
            "the first time takes 5 to 15 minutes"
        )
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch:
        for index, recipe in enumerate(recipes, start=1):
            runner.build(
                recipe,
                modules=modules,
                scratch=Path(scratch),
                destination=folder / recipe.name,
                position=f"{index}/{len(recipes)}",
            )
        if _MANIFESTS in missing:
            runner.copy_jobset_manifests(modules=modules, scratch=Path(scratch), destination=folder / _MANIFESTS)


@contextmanager
def _locked(
    root: Path,
    *,
    progress: Progress,
    heartbeat_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold the cache's lock; the kernel releases it when this process ends, however it ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w", encoding="ascii") as lock:
        started = tell_at = clock()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if (now := clock()) >= tell_at:
                    tell_at = now + heartbeat_seconds
                    progress(f"another process is building in {root}: waiting, {now - started:.0f} s so far")
                sleep(0.2)
        yield
