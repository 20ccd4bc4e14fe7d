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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rehearsal.localcluster.building import HEARTBEAT_SECONDS, GoRunner
from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.progress import Progress, log_progress
from rehearsal.localcluster.recipes import MODULES, RECIPES, Recipe, cache_key
from rehearsal.localcluster.toolchain import find_toolchain

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
_MANIFESTS = "manifests"
_SCRATCH_PREFIX = ".building-"
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Programs ready to run and the manifests of those that have some, by the program's name (see recipes)."""

    programs: Mapping[str, Path]
    manifests: Mapping[str, Path]
    """Folders with the crd and webhook folders of a program's source."""

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
    optional: Collection[str] = (),
    progress: Progress = log_progress,
    environment: Mapping[str, str] | None = None,
    modules: Path = MODULES,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> Binaries:
    """Return all programs, building what is neither in $KUBEBUILDER_ASSETS nor in the cache.

    Optional programs are among them where they are named. Raises LocalClusterError when a build fails. Two callers at
    once do the work once.
    """
    env = os.environ if environment is None else environment
    root = cache_root(env)
    machine = platform.machine()
    target = f"{sys.platform}/{_GO_ARCHITECTURES.get(machine, machine)}"
    given = _given(env)
    wanted = [
        _Wanted(recipe=recipe, folder=root / cache_key(recipe.module, modules, platform=target))
        for recipe in RECIPES
        if not recipe.optional or recipe.name in optional
    ]
    for name, path in given.items():
        progress(f"{name}: {path} (${ASSETS_VARIABLE})")
    to_build = [one for one in wanted if one.recipe.name not in given]
    if any(one.missing for one in to_build):
        with _locked(root, progress=progress, heartbeat_seconds=heartbeat_seconds):
            # Another process may have built them while this one waited.
            if missing := [one for one in to_build if one.missing]:
                _build(missing, root, env, modules, progress=progress, heartbeat_seconds=heartbeat_seconds)
    return Binaries(
        programs={one.recipe.name: given.get(one.recipe.name, one.program) for one in wanted},
        manifests={one.recipe.name: one.manifests for one in wanted if one.recipe.manifests},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A program, and where the cache has it."""

    recipe: Recipe
    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / self.recipe.name

    @property
    def manifests(self) -> Path:
        return self.folder / _MANIFESTS

    @property
    def missing(self) -> bool:
        return not self.program.exists() or (bool(self.recipe.manifests) and not self.manifests.exists())


def _given(environment: Mapping[str, str]) -> dict[str, Path]:
    assets = environment.get(ASSETS_VARIABLE, "")
    if not assets:
        return {}
    if not Path(assets).is_dir():
        raise LocalClusterError(
            f"{ASSETS_VARIABLE} is {assets!r}, which is not a folder.",
            advice=f"Set it to a folder that contains etcd, kube-apiserver and kubectl, or unset {ASSETS_VARIABLE}.",
        )
    paths = {recipe.name: Path(assets).absolute() / recipe.name for recipe in RECIPES if recipe.from_assets}
    return {name: path for name, path in paths.items() if os.access(path, os.X_OK) and path.is_file()}


def _build(
    missing: list[_Wanted],
    root: Path,
    environment: Mapping[str, str],
    modules: Path,
    *,
    progress: Progress,
    heartbeat_seconds: float,
) -> None:
    # What a killed build left behind; the lock says that nobody writes there now.
    for leftover in root.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    toolchain = find_toolchain(root, environment=environment, progress=progress)
    runner = GoRunner(toolchain, progress=progress, heartbeat_seconds=heartbeat_seconds)
    programs = [one for one in missing if not one.program.exists()]
    if programs:
        progress(
            f"building {len(programs)} programs with Go {toolchain.version} into {root}; "
            "the first time takes 5 to 15 minutes"
        )
    # Below the root, so that what is finished gets its name without being copied.
    with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=root) as scratch:
        for index, one in enumerate(programs, start=1):
            one.folder.mkdir(exist_ok=True)
            runner.build(
                one.recipe,
                modules=modules,
                scratch=Path(scratch),
                destination=one.program,
                position=f"{index}/{len(programs)}",
            )
        for one in missing:
            if one.recipe.manifests and not one.manifests.exists():
                runner.copy_manifests(one.recipe, modules=modules, scratch=Path(scratch), destination=one.manifests)


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
