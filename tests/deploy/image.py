"""Executes the instructions of the Dockerfile without a container engine.

COPY copies files, and RUN runs commands, with the paths of the build below a scratch folder. The final stage provides
environment, user, entry point and the paths of files. pip installs from folders with the locked wheels, which are
fetched once per lock file, because pip's search in the index took half of the build's CPU time. Not tested: that the
base image exists and contains the same Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rehearsal.localcluster.binaries import cache_root

#: Folders that the Dockerfile writes to; each is replaced by a folder in the scratch folder.
_OURS = ("/opt/tpu-provisioner", "/opt/build", "/wheels")
_LOCKS = ("requirements/run.txt", "requirements/build.txt")


@dataclass(slots=True, kw_only=True)
class Stage:
    """A FROM instruction, and the instructions up to the next FROM."""

    base: str
    name: str = ""
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]

    def environment(self) -> dict[str, str]:
        return dict(part.split("=", 1) for line in self.all("ENV") for part in shlex.split(line))

    def words(self, instruction: str) -> list[str]:
        (line,) = self.all(instruction)
        return list(json.loads(line))


def read_stages(dockerfile: Path) -> list[Stage]:
    text = re.sub(r"(?m)^\s*#.*\n", "", dockerfile.read_text(encoding="utf-8"))
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            stages.append(Stage(base=base, name=alias))
        elif name:
            stages[-1].instructions.append((name, rest.strip()))
    return stages


def build(stage: Stage, context: Path, scratch: Path) -> None:
    source = scratch / "src"
    source.mkdir(parents=True)
    python = _base_python(scratch)
    environment = clean_environment(python, scratch)
    wheels = " ".join(map(str, locked_wheels(context, python, environment)))
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels}
    for name, arguments in stage.instructions:
        if name == "ENV":
            environment |= dict(part.split("=", 1) for part in shlex.split(arguments))
        elif name == "COPY":
            _copy(shlex.split(arguments), context, source)
        elif name == "RUN":
            command = arguments
            for path in _OURS:
                command = command.replace(path, f"{scratch}{path}")
            done = subprocess.run(
                ["/bin/sh", "-ec", command],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
            )
            assert done.returncode == 0, f"RUN {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def clean_environment(python: Path, home: Path) -> dict[str, str]:
    """Return an environment with PATH, HOME, and this machine's package index, proxies and certificates."""
    names = ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
    return {
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        **{name: value for name in names if (value := os.environ.get(name))},
    }


def locked_wheels(context: Path, python: Path, environment: Mapping[str, str]) -> list[Path]:
    return [_fetched(context / lock, python, environment) for lock in _LOCKS]


def _fetched(lock: Path, python: Path, environment: Mapping[str, str]) -> Path:
    """Return a cache folder with the wheels of a lock file for this Python; the first call fetches them."""
    digest = hashlib.sha256(f"{sysconfig.get_platform()} {sys.version}\n".encode() + lock.read_bytes()).hexdigest()
    wheels = cache_root(os.environ) / "test-wheels" / digest[:16]
    wheels.parent.mkdir(parents=True, exist_ok=True)
    with (wheels.parent / "lock").open("w", encoding="ascii") as held:
        # The lock lets only one of several test runs fetch; the kernel releases the lock when this process ends.
        fcntl.flock(held, fcntl.LOCK_EX)
        if not wheels.exists():
            incomplete = wheels.with_suffix(".incomplete")
            shutil.rmtree(incomplete, ignore_errors=True)
            done = subprocess.run(
                [
                    python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
                    "--require-hashes", "--only-binary=:all:", "--dest", incomplete, "-r", lock,
                ],
                env=environment, capture_output=True, text=True, check=False, timeout=240,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            incomplete.rename(wheels)
    return wheels


def finish(stage: Stage, scratch: Path) -> None:
    """Execute the COPY instructions of the final stage; files of the build stage remain in the scratch folder."""
    for arguments in stage.all("COPY"):
        option, *sources, target = shlex.split(arguments)
        assert option == "--from=build", arguments
        for source in sources:
            if source != target:
                shutil.copy(f"{scratch}{source}", f"{scratch}{target}")


def _base_python(scratch: Path) -> Path:
    """Return the Python of this process, or a copy of it if other users cannot enter one of its folders."""
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if all(parent.stat().st_mode & 0o001 for parent in python.resolve().parents):
        return python
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    base = scratch / "base"
    (base / "bin").mkdir(parents=True)
    # Bytecode is copied as well, because it makes pip faster. PYTHONPYCACHEPREFIX makes the image's Python ignore it.
    ignored = shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "config-*")
    shutil.copytree(stdlib, base / stdlib.relative_to(sys.base_prefix), ignore=ignored)
    shutil.copy(python.resolve(), base / "bin" / "python")
    for library in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
        shutil.copy(library, base / "lib" / library.name)
    return base / "bin" / "python"


def _copy(words: list[str], context: Path, source: Path) -> None:
    *sources, target = words
    for name in sources:
        origin = context / name
        to = source / target
        if origin.is_dir():
            shutil.copytree(origin, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif target.endswith("/"):
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin, to / origin.name)
        else:
            shutil.copyfile(origin, to)
