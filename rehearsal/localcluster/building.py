"""Running Go's long commands: progress while they run, and nothing left running when they are given up.

A program is written beside its place and renamed into it, so a file that has its final name is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.processes import bound_to_parent
from rehearsal.localcluster.progress import Progress
from rehearsal.localcluster.recipes import BUILD_FLAGS, Recipe, linker_flags
from rehearsal.localcluster.toolchain import Toolchain

HEARTBEAT_SECONDS = 10.0
"""A running build says something at least this often."""

_TAIL_LINES = 25
# With -v, Go writes the path of each package that it compiles on a line of its own.
_PACKAGE = re.compile(r"[\w.\-]+(?:/[\w.\-~]+)*")
_ADVICE = (
    "The first build fetches Go modules (GOPROXY is respected) and needs about 6 GB on disk for Go's caches; "
    "run it again when these are available: finished programs are kept."
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
        """Build one program; position is its place in the row, such as 1/7."""
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
        """Copy a program's CRDs and webhooks out of its module, which Go's own cache may drop at any time."""
        answer = self._run(
            ["mod", "download", "-json", recipe.source],
            directory=modules / recipe.module,
            label=f"reading the manifests of {recipe.name}",
        )
        source = Path(json.loads(answer)["Dir"]) / recipe.manifests
        copy = scratch / f"{recipe.name}-{destination.name}"
        for part in ("crd", "webhook"):
            # Files in Go's module cache are read-only; copies of them could not be removed again.
            shutil.copytree(source / part, copy / part, copy_function=shutil.copyfile)
        for folder in (copy, *copy.rglob("*/")):
            folder.chmod(0o755)
        copy.rename(destination)

    def _run(self, arguments: Sequence[str], *, directory: Path, label: str) -> str:
        """Run go, telling progress; return what it wrote."""
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
            # One group, so that the compilers can be ended together with the go command.
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
            # Names of packages tell nothing about a failure; a message of one word would look like one.
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
    """Give a finished program its name, its bytes being on disk first: a power cut must not leave an empty one."""
    with output.open("rb") as program:
        os.fsync(program.fileno())
    output.replace(destination)
